"""The real client of OpenAI, release 3.54.0, takes the mock model for what it stands for, and sees each fault."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.testing import Faults, MockModel
from tests.interop.peers import Peer, PeerUnavailable, peer

CLIENT = Path(__file__).with_name("openai_client.py")
pytestmark = pytest.mark.interop

SEEN = {
    "429": "RateLimitError",
    "500": "InternalServerError",
    "503": "InternalServerError",
    "401": "AuthenticationError",
    "context": "BadRequestError",
    "reset_early": "APIConnectionError",
    "reset_late": "APIConnectionError",
    "truncated": "APIConnectionError",
    "hang": "APITimeoutError",
    "malformed": "JSONDecodeError",
    "empty": "no choices",
    "length": "length",
    "content_filter": "content_filter",
    "refusal": "stop",
}


@pytest.fixture(scope="module")
def client() -> Peer:
    try:
        return peer("openai-3.54.0")
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def run(client: Peer, *arguments: str) -> Any:
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(client.python), str(CLIENT), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_reads_every_kind_of_answer(client: Peer) -> None:
    with MockModel(models=("m",)) as model:
        told = run(client, "answers", model.url)
        assert told.pop("call") == told.pop("streamed")
        assert len(set(told.pop("tokens"))) == 1
        assert told == {"finish": ["tool_calls"] * 2, "parsed": True, "models": ["m"], "words": True}
        assert all(one.header("authorization") == "Bearer k" and one.status == 200 for one in model.requests)


def test_it_sees_every_fault(client: Peer) -> None:
    with MockModel(faults=Faults(sequence=(*SEEN, None))) as model:
        told = run(client, "faults", model.url, str(len(SEEN) + 1))
        assert dict(zip((*SEEN, None), told, strict=True)) == {**SEEN, None: "stop"}

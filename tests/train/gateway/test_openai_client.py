"""The real client of OpenAI, release 3.54.0, plays an attempt at the gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path

import pytest

from taskapp_kit.train.gateway.attempt import AttemptRecord, Faithfulness
from tests.interop.peers import PeerUnavailable, peer
from tests.train.gateway.peers import SETTINGS, ScriptedSampler, client

CLIENT = Path(__file__).with_name("openai_client.py")
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
pytestmark = [pytest.mark.interop, pytest.mark.server]


def test_it_reads_answers_streams_and_refusals() -> None:
    try:
        python = peer("openai-3.54.0").python
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    sampler = ScriptedSampler(lambda call: CALL if "look" in call.prompt else "Hi.")

    async def scenario() -> tuple[dict[str, object], AttemptRecord]:
        async with client(sampler, dataclasses.replace(SETTINGS, max_tokens=100)) as it:
            talking = await asyncio.create_subprocess_exec(
                str(python), str(CLIENT), it.attempt.url, stdout=-1, env={"PATH": os.environ["PATH"]}
            )
            written, _ = await asyncio.wait_for(talking.communicate(), 60)
            assert talking.returncode == 0
        return json.loads(written), it.attempt.record()

    seen, record = asyncio.run(scenario())
    assert seen == {
        "tokens": [4, 4],
        "calls": [["look"], ["look"]],
        "finish": ["stop", "tool_calls", "tool_calls"],
        "refused": [
            ["UnprocessableEntityError", "invalid_request"],
            ["UnprocessableEntityError", "context_length_exceeded"],
        ],
        "text": "Hi.",
    }
    # tools stand before the conversation, so the second call is no continuation of the first
    assert record.faithfulness == Faithfulness(exact=1, forked=3, refused=2)
    assert record.overridden == {"temperature": 1}
    assert record.unenforced == {"tool_choice": 1}

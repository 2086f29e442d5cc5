"""The real Synth AI SDK, release 0.3.9, drives our server: every answer must pass its models and its own verifiers."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peer_programs import ROOT, free_port, python_of, server_process, variables_of

PEER = "synth-ai-0.3.9"
CLIENT = Path(__file__).with_name("synth_client.py")
pytestmark = pytest.mark.interop

OLD_FAULTS = {
    "info": "the SDK's own encoder turns the data set into '<circular type=dict>'",
    "verify_trace_correlation_id_rl": "the SDK's server strips the trajectory's id that its verifier asks for",
    "verify_trace_correlation_id_eval": "the same",
    "wrong_key_answer_shows_no_key": "the refusal carries 15 characters of every valid key",
}
"""What the examination must find wrong with the SDK's own server, which shows that it can find anything."""


@contextmanager
def served(python: Path | str, factory: str, directory: Path, home: Path, key: str) -> Iterator[str]:
    """The address of a real uvicorn in a separate process."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [python, "-m", "uvicorn", "--factory", factory, "--app-dir", directory, "--port", str(port)]
    ours = str(ROOT) if python == sys.executable else ""
    with server_process(command, url, home / "server.log", PYTHONPATH=ours, ENVIRONMENT_API_KEY=key):
        yield url


def examined(address: str, home: Path, key: str, *arguments: str) -> dict[str, Any]:
    """What `synth_client.py` found, run by the peer's Python."""
    done = subprocess.run(
        [str(python_of(PEER)), str(CLIENT), address, *arguments],
        env=variables_of(home, ENVIRONMENT_API_KEY=key),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.startswith("{"), f"The peer's script broke off ({done.returncode}):\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["peer"] == "synth-ai 0.3.9"
    assert len(found["checks"]) == 19
    return found


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        pytest.param("adder", ("--env-name", "adder", "--policy-name", "random"), id="adder-random"),
        pytest.param("adder", ("--env-name=adder", "--policy-name=gold", "--ops=[]"), id="adder-gold-to-the-end"),
        pytest.param(
            "capitals",
            (
                "--env-name=capitals",
                "--policy-name=synth-trainer",
                '--policy-config={"policy": "constant", "action": "Paris"}',
                "--seeds=[0, 1]",
            ),
            id="capitals-constant",
        ),
    ],
)
def test_our_server_passes_every_check(tmp_path: Path, file: str, arguments: tuple[str, ...]) -> None:
    key = secrets.token_hex(16)
    with served(sys.executable, f"{file}:app.asgi", ROOT / "examples", tmp_path, key) as address:
        found = examined(address, tmp_path, key, *arguments)
    failed = {check["name"]: check["detail"] for check in found["checks"] if not check["ok"]}
    assert failed == {}
    assert found["ok"] is True
    details = {check["name"]: check["detail"] for check in found["checks"]}
    assert details["task_info_without_seed_in_client"].startswith("accepted"), "their own server's answer it refuses"
    if "--policy-name=gold" in arguments:
        assert "return 1.0" in details["rollout_rl"]
        assert details["rollout_rl"] == details["rollout_eval"], "the mode must not change an episode"
    log = (tmp_path / "server.log").read_text()
    assert not any(key[at : at + 6] in log for at in range(len(key) - 5)), "the server's log shows a piece of its key"


def test_the_examination_finds_the_known_faults_of_the_original(tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    with served(python_of(PEER), "synth_reference_app:build_app", ROOT / "bench", tmp_path, key) as address:
        found = examined(address, tmp_path, key, "--env-name", "counter", "--policy-name", "scripted")
    assert {check["name"] for check in found["checks"] if not check["ok"]} == set(OLD_FAULTS)

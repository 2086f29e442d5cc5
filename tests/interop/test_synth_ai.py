"""The real Synth AI SDK, release 0.3.9, drives our server: every answer must pass its models and its own verifiers."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Peer, PeerUnavailable, peer

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("synth_client.py")
START_TIMEOUT_SECONDS = 60.0
pytestmark = pytest.mark.interop

OLD_FAULTS = {
    "info": "the SDK's own encoder turns the data set into '<circular type=dict>'",
    "verify_trace_correlation_id_rl": "the SDK's server strips the trajectory's id that its verifier asks for",
    "verify_trace_correlation_id_eval": "the same",
    "wrong_key_answer_shows_no_key": "the refusal carries 15 characters of every valid key",
}
"""What the examination must find wrong with the SDK's own server, which shows that it can find anything."""


@pytest.fixture(scope="module")
def synth() -> Peer:
    """The peer's environment; a test that cannot have it fails, it is never skipped."""
    try:
        return peer("synth-ai-0.3.9")
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def environment_of(home: Path, key: str) -> dict[str, str]:
    """Nothing of the developer's: no vendor key, no home, no telemetry."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "ENVIRONMENT_API_KEY": key, "SYNTH_DISABLE_LOGGING": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(python: Path | str, factory: str, directory: Path, home: Path, key: str) -> Iterator[str]:
    """A real uvicorn in a process of its own, up when `/` answers; yields its address."""
    port, log_path = free_port(), home / "server.log"
    command = [str(python), "-m", "uvicorn", "--factory", factory, "--app-dir", str(directory), "--port", str(port)]
    variables = {**environment_of(home, key), "PYTHONPATH": str(ROOT) if python == sys.executable else ""}
    with log_path.open("w") as log:
        server = subprocess.Popen(command, env=variables, cwd=home, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_up(f"http://127.0.0.1:{port}/", server, log_path)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(timeout=3)  # the SDK takes over SIGTERM and does not end
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_until_up(address: str, server: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail(f"The server did not come up (exit status {server.poll()}). It said:\n{log_path.read_text()[-4000:]}")


def examined(synth: Peer, address: str, home: Path, key: str, *arguments: str) -> dict[str, Any]:
    """What `synth_client.py` found, run by the peer's Python."""
    done = subprocess.run(
        [str(synth.python), str(CLIENT), address, *arguments],
        env=environment_of(home, key),
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
def test_our_server_passes_every_check(synth: Peer, tmp_path: Path, file: str, arguments: tuple[str, ...]) -> None:
    key = secrets.token_hex(16)
    with served(sys.executable, f"{file}:app.asgi", ROOT / "examples", tmp_path, key) as address:
        found = examined(synth, address, tmp_path, key, *arguments)
    failed = {check["name"]: check["detail"] for check in found["checks"] if not check["ok"]}
    assert failed == {}
    assert found["ok"] is True
    details = {check["name"]: check["detail"] for check in found["checks"]}
    assert details["task_info_without_seed_in_client"].startswith("accepted"), "their own server's answer it refuses"
    log = (tmp_path / "server.log").read_text()
    assert not any(key[at : at + 6] in log for at in range(len(key) - 5)), "the server's log shows a piece of its key"


def test_the_gold_policy_is_paid_through_the_foreign_client(synth: Peer, tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    with served(sys.executable, "adder:app.asgi", ROOT / "examples", tmp_path, key) as address:
        found = examined(synth, address, tmp_path, key, "--env-name", "adder", "--policy-name", "gold", "--ops", "[]")
    details = {check["name"]: check["detail"] for check in found["checks"]}
    assert "return 1.0" in details["rollout_rl"]
    assert details["rollout_rl"] == details["rollout_eval"], "the mode must not change an episode"


def test_the_examination_finds_the_known_faults_of_the_original(synth: Peer, tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    with served(synth.python, "synth_reference_app:build_app", ROOT / "bench", tmp_path, key) as address:
        found = examined(synth, address, tmp_path, key, "--env-name", "counter", "--policy-name", "scripted")
    assert {check["name"] for check in found["checks"] if not check["ok"]} == set(OLD_FAULTS)

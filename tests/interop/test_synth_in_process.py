"""A task app of the Synth AI SDK, release 0.3.9, is served by our InProcessTaskApp, as the first RL guide has it.

It runs in the SDK's own environment, with our checkout beside it: all that we need of others is there, too.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from tests.interop.peers import Peer, PeerUnavailable, peer

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("synth_in_process.py")
THEIRS = ROOT / "bench" / "synth_reference_app.py"
pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def synth() -> Peer:
    """The peer's environment; a test that cannot have it fails, it is never skipped."""
    try:
        return peer("synth-ai-0.3.9")
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def test_their_build_config_is_served_in_process(synth: Peer, tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    done = subprocess.run(
        [str(synth.python), str(SCRIPT), str(THEIRS)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "ENVIRONMENT_API_KEY": key,
            "SYNTH_DISABLE_LOGGING": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["peer"] == "synth-ai 0.3.9"
    for way in ("path", "config_factory", "config", "app"):
        assert found[way] == {"status": 200, "mean_return": 1.0, "without_key": 400, "minted": False}, way
    status, code, sentence = found["no key"]
    assert (status, code) == (503, "missing_environment_api_key")
    assert "no key is configured for it" in sentence and "Set ENVIRONMENT_API_KEY" in sentence
    assert found["handlers"] is True, "importing their package replaces the handlers of Ctrl-C and SIGTERM"
    assert found["ctrl_c"] == "interrupts"
    assert key not in done.stdout

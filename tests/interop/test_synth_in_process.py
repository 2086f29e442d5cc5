"""InProcessTaskApp serves a task app of the Synth AI SDK, release 0.3.9, as in the SDK's first RL guide.

It runs in the SDK's environment, with our checkout on the path: all packages that we need are installed there.
"""

from __future__ import annotations

import json
import secrets
import signal
from pathlib import Path

import pytest

from tests.interop.peer_programs import ROOT, found_by

pytestmark = pytest.mark.interop


def test_build_config_of_synth_ai_is_served_in_process(tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    found = found_by(
        "synth-ai-0.3.9",
        "synth_in_process.py",
        tmp_path,
        ROOT / "bench" / "synth_reference_app.py",
        preexec=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        PYTHONPATH=str(ROOT),
        ENVIRONMENT_API_KEY=key,
    )
    assert found["peer"] == "synth-ai 0.3.9"
    for way in ("path", "config_factory", "config", "app"):
        assert found[way] == {"status": 200, "mean_return": 1.0, "without_key": 400, "minted": False}, way
    assert found["no key"] == [503, "missing_environment_api_key"]
    assert found["handlers"] is True, "importing their package replaces the handlers of Ctrl-C and SIGTERM"
    assert found["ctrl_c"] == "interrupts"
    assert key not in json.dumps(found)

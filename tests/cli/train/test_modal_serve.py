"""`taskapp modal-serve`: it serves, follows an edit, and takes its app down when it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from modal_proto import api_pb2

from tests.deploy.control_plane import ControlPlane
from tests.deploy.deploys import environment, write_own
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]


def _takes_ctrl_c() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("edits", "stop"),
    [
        (False, signal.SIGINT),
        pytest.param(True, signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(False, signal.SIGHUP, marks=pytest.mark.exhaustive),
    ],
)
def test_it_serves_follows_an_edit_and_goes(tmp_path: Path, edits: bool, stop: signal.Signals) -> None:
    """At Ctrl-C, and when its terminal is closed."""
    own, log = write_own(tmp_path / "own"), tmp_path / "log"
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}, web_url="http://127.0.0.1:9").running() as plane:
        command = [sys.executable, "-m", "taskapp_kit", "modal-serve", "capitals.py", "--store", "none", "--no-wait"]
        process = subprocess.Popen(
            command,
            cwd=own,
            env=environment(plane, own),
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            preexec_fn=_takes_ctrl_c,  # noqa: PLW1509 — one call, no lock
        )
        try:
            until(lambda: "Watching" in log.read_text() or process.poll() is not None)
            assert len(plane.requests("FunctionCreate")) == 1
            assert "capitals is running at http://127.0.0.1:9 until Ctrl-C" in log.read_text()
            if edits:
                time.sleep(1.0)  # the watcher starts after it says so
                (own / "capitals.py").write_text((own / "capitals.py").read_text() + "\n# an edit\n")
                until(lambda: len(plane.requests("FunctionCreate")) >= 2)
            process.send_signal(stop)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
        assert plane.requests("AppClientDisconnect"), log.read_text()
        assert {request.app_state for request in plane.published} <= {
            api_pb2.APP_STATE_EPHEMERAL,
            api_pb2.APP_STATE_UNSPECIFIED,
        }
        assert plane.apps == {}
    assert "Stopped." in log.read_text()

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from taskapp_kit.cli.output.terminal import exit_status
from taskapp_kit.cli.remote_task_app import asked
from taskapp_kit.client import SyncTaskAppClient
from taskapp_kit.errors import TaskAppError

from .conftest import ADDER, Run, serving

pytestmark = pytest.mark.server

KEY = "canary-key-4711"
ANSWERS = {
    "/html": (404, "<html>no</html>"),
    "/odd": (500, '{"detail": "no"}'),
    "/list": (500, "[]"),
    "/empty": (200, ""),
    "/ok": (200, '{"a": 1}'),
    "/wrong": (422, ('{"detail": {"error": {"code": "c", "message": "it is wrong", "hint": "", '
               '"fields": [{"loc": ["body", "env", "seed"], "message": "should be less", "type": "t"}]}}}')),
}  # fmt: skip


class _Foreign(BaseHTTPRequestHandler):
    asked: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("X-API-Key")))
        if self.path == "/moved":
            self.send_response(307)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/ok")
            self.end_headers()
            return
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """A server that is no task app."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "words", "status"),
    [
        ("/html", "404. Check whether this is the address of a task app.", 1),
        ("/odd", " 500", 1),
        ("/list", " 500", 1),
        ("/empty", "JSON", 1),
        ("/wrong", "it is wrong.", 2),
    ],
)
def test_what_goes_wrong_is_told(foreign: str, path: str, words: str, status: int) -> None:
    with pytest.raises(TaskAppError) as told:
        asked(SyncTaskAppClient(foreign, KEY).get, path)
    assert words in str(told.value)
    assert exit_status(told.value) == status
    assert KEY not in str(told.value)


def test_wrong_fields_are_named(foreign: str) -> None:
    with pytest.raises(TaskAppError, match=r"body\.env\.seed: "):
        asked(SyncTaskAppClient(foreign, KEY).get, "/wrong")


def test_the_key_goes_to_the_address_and_not_where_it_redirects(foreign: str) -> None:
    _Foreign.asked.clear()
    assert asked(SyncTaskAppClient(foreign + "/", KEY).get, "/ok") == {"a": 1}
    with pytest.raises(TaskAppError, match=r"/moved .*\b307\b"):
        asked(SyncTaskAppClient(foreign, KEY).get, "/moved")
    assert _Foreign.asked == [("/ok", KEY), ("/moved", KEY)]


@pytest.mark.process
def test_a_failed_rollout_carries_boundary_and_ids(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(Path(ADDER).read_text().replace("self.total += amount", "1 / 0"))
    with serving(tmp_path, "bad.py", "--store", "none", ENVIRONMENT_API_KEY=KEY) as served:
        told = run("rollout", served.url, "--seed", "3", "--key", KEY, status=1)
        assert "boundary environment" in told.stderr
        error_id = told.stderr.partition("error id ")[2].partition(" in the")[0]
        assert error_id
        assert error_id in served.err
    assert KEY not in told.stderr


def test_a_foreign_server_described_or_played(run: Run, foreign: str) -> None:
    ANSWERS["/info"] = (200, '{"service": []}')
    run("info", foreign, status=1)

"""A server that is killed with episodes open leaves no process of theirs behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from threading import Thread

import httpx
import psutil
import pytest

from tests.stress.server import Server
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server, pytest.mark.usefixtures("chromium_here")]

ROOT = Path(__file__).resolve().parents[3]
APP = Path(__file__).with_name("broken_app.py")
BODY = {
    "run_id": "run-1",
    "env": {"env_name": "broken", "seed": 0, "config": {"way": "loop at click"}},
    "policy": {"config": {"policy": "clicks"}},
    "ops": [],
    "mode": "eval",
}


@pytest.mark.parametrize("workers", [0, 2], ids=["threads", "workers"])
def test_a_killed_server_leaves_no_browser(workers: int, tmp_path: Path, chromium_here: None) -> None:
    with Server(tmp_path, "--workers", str(workers), app=APP, PYTHONPATH=str(ROOT)) as server:

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):  # it is killed meanwhile
                httpx.post(server.url + "/rollout", json=BODY, headers=server.headers, timeout=60)

        asking = [Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()

        def pages() -> bool:
            return any("--type=renderer" in " ".join(child.cmdline()) for child in family(server.pid))

        until(pages, 120, "an episode has a page open")
        left = family(server.pid)
        server.kill()
        for thread in asking:
            thread.join()
        until(lambda: not [process for process in left if lives(process)], what="all have ended")


def family(pid: int) -> list[psutil.Process]:
    """A process's descendants that live."""
    return [child for child in psutil.Process(pid).children(recursive=True) if lives(child)]


def lives(process: psutil.Process) -> bool:
    """It has not ended: a zombie has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE and process.cmdline())
    except psutil.NoSuchProcess:
        return False

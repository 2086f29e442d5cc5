"""`taskapp serve` as a process of its own, for stress tests; and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store.sqlite import SqliteStore, StoreCheck
from tests import recording
from tests.store.opened_stores import in_use
from tests.waiting import until

ROOT = Path(__file__).parents[2]
STRESS_APP = ROOT / "tests" / "stress" / "app.py"
START_SECONDS = 60.0
STORE = "kept.db"

T = TypeVar("T")


class Server:
    """A server in a folder of its own, on a free port, with a key of its own, from `with` to the end of the block.

    args: flags of `taskapp serve`. descriptors: how many files and sockets it may have open. Its store is the file `kept.db` in the folder, what it prints goes to files there.
    A server that ended before the block did, by itself, is a failure of the test; `stop` and `kill` end it on purpose.
    """

    def __init__(
        self, folder: Path, *args: str, app: Path = STRESS_APP, descriptors: int | None = None, **variables: str
    ) -> None:
        self.folder = folder
        self.key = secrets.token_urlsafe(24)
        recording.keys.add(self.key)
        self.url = ""
        self.store = folder / STORE
        self._argv = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
        self._argv += [sys.executable, "-m", "taskapp_kit", "serve", str(app), "--port", "0", "--store", STORE, *args]
        kept = {name: text for name, text in os.environ.items() if "_API_KEY" not in name and "TASKAPP" not in name}
        self._environment = {**kept, "COLUMNS": "200", "ENVIRONMENT_API_KEY": self.key, **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._client = httpx.Client(headers=self.headers, verify=False)  # plain HTTP: no certificates to read

    def __enter__(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "out.txt").open("wb") as out, (self.folder / "err.txt").open("ab") as err:
            self._process = subprocess.Popen(
                self._argv, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        try:
            found = until(self._address, START_SECONDS, "the server's address")
            self.url = found[1]
            assert self.health(START_SECONDS)["healthy"] is True  # held back until it serves
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._client.close()
        code = self._process.poll()
        if code is None:
            self.stop()
        elif not self._ended and error is None:
            raise AssertionError(f"the server ended by itself with {code}: {self.log()[-4000:]}")

    def _address(self) -> re.Match[str] | None:
        text = (self.folder / "out.txt").read_text(errors="replace")
        assert self.process.poll() is None, self.log()
        return re.search(r" at (http://\S+)", text)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """Of the front process."""
        return self.process.pid

    def variables(self, **variables: str) -> None:
        """Sets these in the environment that it is going to be started in."""
        self._environment.update(variables)

    @property
    def headers(self) -> dict[str, str]:
        """Those with its key."""
        return {"X-API-Key": self.key}

    def log(self) -> str:
        """What it and its workers wrote to stderr so far."""
        return (self.folder / "err.txt").read_text(errors="replace")

    def worker_pids(self) -> list[int]:
        """Its worker processes that live now."""
        return [child.pid for child in self._family()[1:]]

    def rss_bytes(self) -> int:
        """Resident memory of the front and its workers."""
        return sum(_asked(member, lambda process: process.memory_info().rss) for member in self._family())

    def fds(self) -> int:
        """Open file descriptors of the front and its workers. Skips where they cannot be counted."""
        try:
            return sum(_asked(member, lambda process: process.num_fds()) for member in self._family())
        except psutil.AccessDenied:  # /proc/PID/fd of a server that holds keys
            pytest.skip("needs root: a server with workers closes its /proc entries to other processes of its user")

    def threads(self) -> int:
        """Threads of the front and its workers."""
        return sum(_asked(member, lambda process: process.num_threads()) for member in self._family())

    def _family(self) -> list[psutil.Process]:
        front = psutil.Process(self.pid)
        return [front, *(child for child in front.children() if _asked(child, _lives))]

    # -- what it answers -------------------------------------------------------------------------------------------

    def health(self, timeout_seconds: float = 10.0) -> dict[str, Any]:
        """What `/health` says. Any other answer than 200 is an AssertionError."""
        answer = self._client.get(self.url + "/health", timeout=timeout_seconds)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def rollout(self, timeout_seconds: float = 30.0, **given: Any) -> httpx.Response:
        """The answer to one rollout; `given` is what `body` takes."""
        return self.post(body(**given), timeout_seconds)

    def post(self, request: dict[str, Any], timeout_seconds: float = 30.0) -> httpx.Response:
        """The answer to one rollout that was written out."""
        return self._client.post(self.url + "/rollout", json=request, timeout=timeout_seconds)

    def idle(self, seconds: float = 10.0) -> None:
        """Waits until no rollout is in flight."""
        until(lambda: self.health()["in_flight"] == 0, seconds, "no rollout in flight")

    # -- how it ends -----------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """A signal that ends it, and no waiting."""
        self._ended = True
        self.process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM, and no waiting."""
        self.signal(signal.SIGTERM)

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM; its exit code. Killed, and a failure, when it does not end within `seconds`."""
        self.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"SIGTERM did not end it within {seconds:g} s: {self.log()[-4000:]}") from None

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self._ended = True
        self.process.kill()
        self.process.wait(10)


def body(environment: str = "shared", *, seed: int = 1, policy: str = "noop", run_id: str = "r",
         max_time_seconds: float | None = None, **config: Any) -> dict[str, Any]:  # fmt: skip
    """A rollout's request; what is not named goes to env.config."""
    whole: dict[str, Any] = {
        "run_id": run_id,
        "env": {"env_name": environment, "seed": seed, "config": config},
        "policy": {"config": {"policy": policy}},
        "ops": [],
        "mode": "eval",
    }
    if max_time_seconds is not None:
        whole["safety"] = {"max_time_s": max_time_seconds}
    return whole


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error that an answer tells; AssertionError when it tells none or has a reward beside it."""
    told = answer.json()
    assert set(told) == {"detail"}, told
    assert set(told["detail"]) == {"error"}, told
    error: dict[str, Any] = told["detail"]["error"]
    return error


def alive(pid: int) -> bool:
    """Whether the process runs still; one that waits to be reaped does not."""
    try:
        return _lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _lives(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def _asked(process: psutil.Process, question: Callable[[psutil.Process], T]) -> T | int:
    """The answer, 0 for a process that went meanwhile."""
    try:
        return question(process)
    except psutil.NoSuchProcess:
        return 0


# -- what it kept --------------------------------------------------------------------------------------------------


def _with_store(path: Path, work: Callable[[SqliteStore], Awaitable[T]]) -> T:
    async def main() -> T:
        async with in_use(SqliteStore(path)) as store:
            return await work(store)

    return asyncio.run(main())


def stored(path: Path, rollout_id: str) -> StoredRollout:
    """A rollout from the store, as any other program reads it; AssertionError when it is not there."""
    return all_stored(path, [rollout_id])[0]


def stored_failure(path: Path, error: dict[str, Any]) -> StoredRollout:
    """The failed rollout of this error: stored with its boundary and code, without reward and digest."""
    row = stored(path, error["rollout_id"])
    assert (row.status, row.failure["boundary"], row.failure["code"]) == ("failed", error["boundary"], error["code"])
    assert (row.reward, row.digest) == (None, None)
    return row


def all_stored(path: Path, rollout_ids: Iterable[str]) -> list[StoredRollout]:
    """Those rollouts from the store, in this order; AssertionError when one is not there."""

    async def load(store: SqliteStore) -> list[StoredRollout]:
        found = []
        for rollout_id in rollout_ids:
            row = await store.load(rollout_id)
            assert row is not None, f"{rollout_id} is not in the store"
            found.append(row)
        return found

    return _with_store(path, load)


def recent(path: Path, limit: int = 10_000) -> list[StoredRollout]:
    """The newest rollouts of the store, without their events."""
    return _with_store(path, lambda store: store.recent(limit))


def missing(path: Path, rollout_ids: Iterable[str]) -> tuple[StoreCheck, list[str]]:
    """What the store's check says, and which of the ids cannot be read from it."""

    async def look(store: SqliteStore) -> tuple[StoreCheck, list[str]]:
        return await store.check(), [name for name in rollout_ids if await store.load(name) is None]

    return _with_store(path, look)

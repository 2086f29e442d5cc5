"""Strangers who hold sockets, and readers who do not read, against servers of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests import recording
from tests.stress.server import Server, body
from tests.waiting import until

pytestmark = pytest.mark.process

DESCRIPTORS = 1024
STRANGERS = 1010
UNREAD = 60
EARLY = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
QUEUED = b"GET /?a HTTP/1.1\r\n\r\n"
"""20 bytes, so that what a server reads at once, 256 000 bytes, holds whole ones."""

Listener = tuple[str, int]


@pytest.fixture(autouse=True, scope="module")
def many_sockets() -> Iterator[None]:
    """This process needs a socket for each that it opens at a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * DESCRIPTORS if hard == resource.RLIM_INFINITY else min(4 * DESCRIPTORS, hard)
    if wanted < 2 * DESCRIPTORS:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def listener(url: str) -> Listener:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def opened(where: Listener, data: bytes, *, window: int | None = None) -> socket.socket:
    """A connection on which this was sent. window: bytes that its kernel takes of an answer."""
    made = socket.socket()
    if window is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    made.settimeout(10)
    made.connect(where)
    made.sendall(data)
    return made


def over(connection: socket.socket) -> bool:
    """The server ended the connection: everything was read, or it was reset."""
    try:
        while connection.recv(65536, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def held_by_strangers(where: Listener, path: bytes, honest: Callable[[], int]) -> None:
    """A thousand requests without a key, their bodies never sent: callers are answered, and the sockets end."""
    with ExitStack() as held:
        strangers = []
        for _ in range(STRANGERS):
            stranger = held.enter_context(opened(where, EARLY % path))
            strangers.append(stranger)
            with contextlib.suppress(OSError):  # ended to make room for another
                stranger.recv(12)
                stranger.sendall(b"{")
        assert honest() == 200
        until(lambda: sum(map(over, strangers)) == STRANGERS, 30, "the strangers' sockets end")
        assert honest() == 200


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few descriptors."""
    with Server(tmp_path_factory.mktemp("few"), descriptors=DESCRIPTORS) as server:
        yield server


def test_keyless_connections_do_not_block_keyed_clients(few: Server) -> None:
    held_by_strangers(
        listener(few.url),
        b"/rollout",
        lambda: httpx.get(few.url + "/health", headers=few.headers, timeout=5).status_code,
    )
    until(lambda: few.fds() < 200, 30, "the server closes the strangers' sockets")


@contextmanager
def backend(folder: Path) -> Iterator[tuple[str, str]]:
    """`taskapp backend serve` with few descriptors; its address and key."""
    key = secrets.token_urlsafe(24)
    recording.keys.add(key)
    command = [sys.executable, "-m", "taskapp_kit", "backend", "serve", "--port", "0", "--store", "none"]
    out = folder / "out.txt"
    with out.open("wb") as stdout, (folder / "err.txt").open("wb") as stderr:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *command],
            cwd=folder,
            env={**os.environ, "COLUMNS": "200", "SYNTH_API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    try:
        found = until(lambda: re.search(r" at (http://\S+)", out.read_text()), 60, "the backend's address")
        yield found[1], key
    finally:
        process.kill()
        process.wait()


@pytest.mark.ci
def test_backend_accepts_keys_during_a_connection_flood(tmp_path: Path) -> None:
    with backend(tmp_path) as (url, key):
        headers = {"Authorization": f"Bearer {key}"}
        held_by_strangers(
            listener(url),
            b"/api/rl/jobs",
            lambda: httpx.get(url + "/api/rl/jobs", headers=headers, timeout=5).status_code,
        )


def test_a_flood_of_queued_requests_is_cut(few: Server) -> None:
    """25 MB of requests without a key on 100 connections, no answer read: they take neither memory nor time."""
    with ExitStack() as held:
        before = few.rss_bytes()
        strangers = [held.enter_context(opened(listener(few.url), QUEUED * 12_800)) for _ in range(100)]
        until(lambda: sum(map(over, strangers)) == len(strangers), 30, "all are ended")
        assert few.rss_bytes() - before < 30_000_000
        assert ended(few, "queued_requests") == len(strangers)


LARGE = """
from taskapp_kit import Step, TaskApp, action
app = TaskApp("large", version="1.0.0")
@app.environment("large", splits={"train": range(100)}, max_steps=3)
class Large:
    "Shows a lot."
    def __init__(self, kilobytes: int = 4000) -> None:
        self.kilobytes = kilobytes
    def reset(self, seed: int) -> str:
        return f"seed {seed}"
    @action(noop={})
    def go(self) -> Step:
        "Go."
        return Step("x" * 1000 * self.kilobytes, 1.0, terminated=True)
"""
TRAINER = secrets.token_urlsafe(24)
"""A key with a quota of one rollout in flight."""
NARROW = 16_384
"""What the kernel of a reader that does not read takes of an answer."""


@contextmanager
def large(folder: Path, *args: str, **variables: str) -> Iterator[Server]:
    """A server whose rollouts have answers of megabytes."""
    app = folder / "large.py"
    app.write_text(LARGE)
    with Server(folder, *args, app=app, **variables) as server:
        yield server


def played(server: Server, seed: int = 1, key: str | None = None, **config: int) -> tuple[str, int]:
    """A rollout that can be fetched; its id and the size of its answer."""
    headers = {"X-API-Key": key or server.key, "Idempotency-Key": f"{seed}"}
    request = body("large", seed=seed, **config)
    answer = httpx.post(server.url + "/rollout", json=request, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text[:300]
    return answer.json()["rollout_id"], len(answer.content)


def fetching(server: Server, rollout_id: str, *headers: str, key: str | None = None) -> bytes:
    """A request for the answer of a rollout."""
    lines = [f"GET /rollouts/{rollout_id} HTTP/1.1", "Host: localhost", f"X-API-Key: {key or server.key}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def unread(server: Server, rollout_id: str, *headers: str, key: str | None = None) -> socket.socket:
    """A reader who asked for an answer, got the first bytes, and reads no more."""
    made = opened(listener(server.url), fetching(server, rollout_id, *headers, key=key), window=NARROW)
    assert made.recv(12) == b"HTTP/1.1 200"
    return made


def rest_of(reader: socket.socket) -> bytes:
    """What is still to be read, of an answer with a length."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += reader.recv(65536)
    head, _, text = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    parts, size = [text], len(text)
    while size < int(length[1]):
        parts.append(reader.recv(1 << 20))
        assert parts[-1], "the answer was cut"
        size += len(parts[-1])
    return b"".join(parts)


def ended(server: Server, cause: str) -> int:
    """So many connections the server ended for this cause."""
    told = httpx.get(server.url + "/metrics", headers=server.headers, timeout=10).text
    found = re.search(rf'^taskapp_connections_ended_total{{cause="{cause}"}} (\d+)', told, re.MULTILINE)
    assert found is not None, told
    return int(found[1])


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits long for its readers; TRAINER's key may have one rollout in flight."""
    folder = tmp_path_factory.mktemp("patient")
    recording.keys.add(TRAINER)
    (folder / "keys").write_text(f"trainer {TRAINER} max_in_flight=1\n")
    with large(folder, "--keys-file", "keys", TASKAPP_STALLED_SECONDS="30") as server:
        yield server


@pytest.mark.ci
def test_unread_answers_of_one_rollout_share_their_memory(patient: Server) -> None:
    with ExitStack() as readers:
        rollout_id, _ = played(patient)
        readers.enter_context(unread(patient, rollout_id, "Accept: text/event-stream"))
        readers.enter_context(unread(patient, rollout_id))
        before = patient.rss_bytes()
        for _ in range(UNREAD):
            readers.enter_context(unread(patient, rollout_id, "Accept: text/event-stream"))
        for _ in range(UNREAD):
            readers.enter_context(unread(patient, rollout_id))
        grown = patient.rss_bytes() - before
        assert grown < 2 * UNREAD * 500_000, f"{grown} bytes for {2 * UNREAD} readers"
        assert patient.health()["healthy"] is True


@pytest.mark.ci
def test_a_reader_that_pauses_gets_its_whole_answer(patient: Server) -> None:
    """Longer than the server looks for progress, shorter than it waits: a trainer's step blocks its reader for long."""
    before = ended(patient, "stalled_reader")
    rollout_id, size = played(patient, seed=2)
    with unread(patient, rollout_id) as reader:
        time.sleep(4)
        assert len(rest_of(reader)) == size
    assert ended(patient, "stalled_reader") == before


@pytest.mark.ci
def test_a_reader_that_takes_nothing_for_long_is_ended(tmp_path: Path) -> None:
    with large(tmp_path, TASKAPP_STALLED_SECONDS="2") as server, ExitStack() as readers:
        rollout_id, _ = played(server)
        for accept in ("application/json", "text/event-stream"):
            readers.enter_context(unread(server, rollout_id, f"Accept: {accept}"))
        until(lambda: ended(server, "stalled_reader") == 2, 30, "both are ended")
        assert "reader ended cause=stalled_reader" in server.log()


@pytest.mark.ci
def test_beyond_the_cap_the_longest_stalled_reader_goes_first(tmp_path: Path) -> None:
    with large(tmp_path, TASKAPP_MAX_BUFFERED_BYTES="30000000") as server, ExitStack() as readers:
        answers = [played(server, seed) for seed in range(8)]
        size = answers[0][1]
        assert 4_000_000 < size < 15_000_000
        held = [readers.enter_context(unread(server, rollout_id)) for rollout_id, _ in answers[:2]]
        time.sleep(2.5)  # they have been stalled for longer than those that come now
        held += [readers.enter_context(unread(server, rollout_id)) for rollout_id, _ in answers[2:]]
        until(lambda: ended(server, "buffered_bytes") > 0, 30, "one is ended")
        time.sleep(2.5)
        left = 8 - ended(server, "buffered_bytes")
        assert 1 <= left * size <= 30_000_000
        assert ended(server, "buffered_bytes") == 8 - 30_000_000 // size, "no more than it takes"
        assert len(rest_of(held[-1])) == answers[-1][1]
        assert cut(held[0])


def cut(reader: socket.socket) -> bool:
    """The answer ends too early."""
    try:
        rest_of(reader)
    except (AssertionError, OSError):
        return True
    return False


def test_a_rollout_counts_for_its_key_until_its_answer_is_read(patient: Server) -> None:
    server, one = patient, TRAINER

    def ask() -> httpx.Response:
        headers = {"X-API-Key": one}
        return httpx.post(server.url + "/rollout", json=body("large", kilobytes=1), headers=headers, timeout=60)

    request = json.dumps(body("large")).encode()
    head = f"POST /rollout HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {one}\r\nContent-Length: {len(request)}\r\n\r\n"
    with opened(listener(server.url), head.encode() + request, window=NARROW) as reader:
        assert reader.recv(12) == b"HTTP/1.1 200"
        refused = ask()
        assert refused.status_code == 429
        assert refused.json()["detail"]["error"]["code"] == "key_quota_reached"
        assert server.health()["in_flight"] == 0, "the server itself has room"
        rest_of(reader)
        assert ask().status_code == 200
    rollout_id, _ = played(server, seed=3, key=one)
    with unread(server, rollout_id, "Accept: text/event-stream", key=one):
        assert ask().status_code == 429
        httpx.get(f"{server.url}/rollouts/{rollout_id}", headers={"X-API-Key": one}, timeout=60)
        assert ask().status_code == 200, "who comes back and reads it all has it, whatever hangs still"
    with unread(server, rollout_id, key=one):
        assert ask().status_code == 429
    until(lambda: ask().status_code == 200, 10, "a reader that hung up counts no more")

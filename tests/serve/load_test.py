"""What has to hold around every attack, asked of a real server before and after it."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest

from taskapp_kit.config import Settings
from tests.recording import answered
from tests.serve.running_server import KEY, RESETS, RunningServer, error_of, fragments, opened

GROWTH_BYTES = 5_000_000
"""What an attack may leave behind in the memory of the process, which is the server's and the test's in one."""
GROWTH_OBJECTS = 25_000
"""The same for small objects, which find room in memory that the interpreter has, so that no byte count shows them."""
SECOND = "0b55e8d2-S3same-zw1/te+q"
"""The other key: no six letters of it are a word that a server may say."""
KEYS = (KEY, SECOND)
WARM_ROUNDS = 3
_process = psutil.Process()
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's way to give free memory back; without it, what an attack holds could hide in what an earlier one left free."""


class LoadTest:
    """One attack on a running server: what is sent goes through here, so that each answer is looked at, byte by byte."""

    def __init__(self, running: RunningServer, keys: tuple[str, ...] = KEYS) -> None:
        self.running = running
        self.keys = keys
        self.answers: list[bytes] = []

    def send(self, data: bytes, *, seconds: float = 5.0, end: bool = False) -> bytes:
        """Sends bytes on a connection of their own; gives the raw answer: status line, headers, body."""
        return self.note(self.running.raw(data, seconds=seconds, end=end))

    def note(self, answer: bytes) -> bytes:
        """Takes an answer that came another way among those that are looked at."""
        self.answers.append(answered(answer))
        return answer

    def refused(self, data: bytes, status: int, code: str) -> dict[str, object]:
        """Sends bytes that must be refused with this status and code, in the one shape; gives the error."""
        response = parsed(self.send(data))
        assert response.status_code == status, response.text[:300]
        error = error_of(response)
        assert error["code"] == code, error
        return error


@contextmanager
def load_test(
    running: RunningServer, caplog: pytest.LogCaptureFixture, keys: tuple[str, ...] = KEYS
) -> Iterator[LoadTest]:
    """Around one attack: it was answered, no rollout began, no answer and no log line has 6 characters of a key, the
    process grew by less than 5 MB, and a good request is answered right after it.

    keys: every key that the server knows. Call it with the server of `attacked_server`.
    """
    resets, (held_bytes, held_objects) = RESETS[0], held()
    attack = LoadTest(running, keys)
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="taskapp_kit"):
        yield attack
        good = running.client.get("/health")
    assert attack.answers, "the attack asked the server nothing"
    assert RESETS[0] == resets, "a rollout began"
    for answer in attack.answers:
        assert not fragments(answer, *keys), "an answer shows a piece of a key"
    told = caplog.text + "".join(repr(vars(record)) for record in caplog.records)
    assert not fragments(told, *keys), "the log shows a piece of a key"
    del told
    grown_bytes, grown_objects = held()
    grown_bytes, grown_objects = grown_bytes - held_bytes, grown_objects - held_objects
    assert grown_bytes < GROWTH_BYTES, f"the process grew by {grown_bytes} bytes"
    assert grown_objects < GROWTH_OBJECTS, f"the process grew by {grown_objects} objects"
    assert good.status_code == 200, good.text


@contextmanager
def attacked_server(**more: Any) -> Iterator[RunningServer]:
    """A server with the two keys, around all the attacks of a file; what would blur their memory figures is done before.

    more: further settings.

    It has answered bodies as long as any attack's, so that the process has the memory that those need; and what is
    alive now is left out of the collections that `load_test` asks for, which then take no time.
    """
    settings = Settings(environment_api_key=KEY, environment_api_key_aliases=(SECOND,), **more)
    long = {
        "run_id": "r",
        "env": {},
        "policy": {"config": {"policy": "one"}},
        "mode": "eval",
        "ops": ["agent"] * 200_000,
    }
    with opened(settings) as running:
        for _ in range(WARM_ROUNDS):
            running.client.post("/rollout", json=long).raise_for_status()
        gc.collect()
        gc.freeze()
        yield running


def parsed(answer: bytes) -> httpx.Response:
    """A raw answer as httpx reads it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = [tuple(part.strip() for part in line.split(b":", 1)) for line in lines[1:]]
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


def held() -> tuple[int, int]:
    """Bytes of the process in memory, and objects alive, when nothing is kept that nobody needs."""
    gc.collect()
    if _trim is not None:
        _trim(0)
    return _process.memory_info().rss, sys.getallocatedblocks()

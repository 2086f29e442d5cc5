"""What was answered is readable: our process killed, a backend killed, the whole server killed, in mid-write."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.store.postgres import PostgresStore
from taskapp_kit.store.sql import StoreCheck
from tests.store.opened_stores import child, in_use
from tests.store.postgres_server import PASSWORD, PostgresServer, name_of, new_server

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.server]

SAVER = """
import asyncio, os, sys, time
from stored_samples import pictured
from taskapp_kit.records.protocols import StoredResult, SystemClock, IdempotencyRecord
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.store.postgres import PostgresStore

async def main(name, count):
    store = PostgresStore(os.environ["ADDRESS"], retry_seconds=90)
    tickets = store.coordinator(SystemClock())
    numbers = iter(range(count))
    async def one():
        for number in numbers:
            try:
                await tickets.claim(IdempotencyRecord(f"{name}-{number}", "body", time.time(), f"{name}-{number}"))
                await store.save(pictured(f"{name}-{number}", number % 7, number))
                await tickets.settle(StoredResult(f"{name}-{number}", answer=b"{}"))
            except StoreError as error:
                print(error, file=sys.stderr, flush=True)
            else:
                print(f"{name}-{number}", flush=True)
    await asyncio.gather(*(one() for _ in range(16)))
    await tickets.close()
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server that may be crashed."""
    running = new_server()
    yield running
    running.stop()


def saver(address: str, name: str, count: int) -> subprocess.Popen[str]:
    return child(SAVER, name, str(count), ADDRESS=address)


async def found_in(address: str, names: list[str]) -> tuple[StoreCheck, list[str]]:
    """What check() says, and which of `names` are not both kept and settled."""
    lost = []
    async with in_use(PostgresStore(address)) as store:
        tickets = store.coordinator(SystemClock())
        for name in names:
            found = await tickets.look(name)
            if found is None or found.state != "settled" or await store.load(name) is None:
                lost.append(name)
        await tickets.close()
        return await store.check(), lost


def read(process: subprocess.Popen[str], count: int) -> list[str]:
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.ci
@pytest.mark.parametrize(
    "after_saves", [40, *(pytest.param(count, marks=pytest.mark.exhaustive) for count in (1, 200))]
)
async def test_every_acknowledged_rollout_survives_kill_9_of_ours(postgres: PostgresServer, after_saves: int) -> None:
    address = postgres.database()
    process = saver(address, "r", 100_000)
    acknowledged = read(process, after_saves)
    process.kill()
    acknowledged += process.stdout.read().split("\n")[:-1]  # a line that was cut says nothing
    assert process.wait(30) == -signal.SIGKILL
    assert all(acknowledged)
    found, lost = await found_in(address, acknowledged)
    assert lost == []
    assert found.ok, found
    assert found.rollouts >= len(acknowledged)


@pytest.mark.ci
@pytest.mark.parametrize("what", [pytest.param("a backend", marks=pytest.mark.exhaustive), "the server"])
async def test_every_acknowledged_rollout_survives_kill_9_of_theirs(postgres: PostgresServer, what: str) -> None:
    """One killed backend makes Postgres end all others and replay its log; a killed server has to be started anew."""
    address = postgres.database()
    process = saver(address, "r", 400)
    acknowledged = read(process, 60)
    for _ in range(2):
        if what == "a backend":
            os.kill(postgres.backends(name_of(address))[0], signal.SIGKILL)
            time.sleep(0.1)
        else:
            postgres.stop(signal.SIGQUIT)
            time.sleep(0.1)
            postgres.start()
        acknowledged += read(process, 40)
    assert process.stdout is not None and process.stderr is not None
    acknowledged += process.stdout.read().split()
    told = process.stderr.read()
    assert process.wait(30) == 0, told
    assert [line for line in told.splitlines() if line.startswith("Could not")] == []
    assert len(set(acknowledged)) == 400, "each one was written on once the server was back"
    assert PASSWORD not in told
    found, lost = await found_in(address, acknowledged)
    assert lost == []
    assert found.ok, found

"""Tickets in a database that several processes serve: races, leases, a holder's death, a busy file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Claim, Clock, IdempotencyRecord, StoredResult, SystemClock
from taskapp_kit.store.idempotency import RECORD_SECONDS
from taskapp_kit.store.idempotency_sql import (
    LEASE_SECONDS,
    PURGE_SECONDS,
    PURGED_AT_ONCE,
    RENEW_SECONDS,
    SqlIdempotencyStore,
    certainly_dead,
    this_process,
)
from taskapp_kit.store.sql import SqlStore
from taskapp_kit.store.sqlite import SqliteStore
from tests.idempotency_contract import HandClock
from tests.store.opened_stores import child, in_use, opened
from tests.store.postgres_server import name_of, server
from tests.store.stored_samples import rollout
from tests.waiting import until, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.server]

LINUX = pytest.mark.skipif(this_process() is None, reason="a holder's death is read from Linux's /proc")


def coordinated(store: SqlStore, clock: Clock) -> SqlIdempotencyStore:
    tickets = store.coordinator(clock)
    assert tickets is not None
    return tickets


@asynccontextmanager
async def two_holders(
    address: str, *, renew_seconds: float = RENEW_SECONDS
) -> AsyncIterator[tuple[SqlIdempotencyStore, SqlIdempotencyStore, HandClock]]:
    """Two holders on one store, and the clock that both read."""
    clock = HandClock()
    async with in_use(opened(address)) as store, in_use(opened(address)) as other:
        one = SqlIdempotencyStore(store._database, clock, renew_seconds=renew_seconds)
        two = coordinated(other, clock)
        try:
            yield one, two, clock
        finally:
            await one.close()
            await two.close()


@asynccontextmanager
async def tickets_at(address: str, clock: Clock | None = None) -> AsyncIterator[SqlIdempotencyStore]:
    async with in_use(opened(address)) as store:
        tickets = coordinated(store, clock or SystemClock())
        try:
            yield tickets
        finally:
            await tickets.close()


def asked(address: str, statement: str) -> float:
    """The first value that the database answers, behind the store's back; 0 when it has none."""
    if "://" in address:
        rows: list[tuple[object, ...]] = server().execute(statement, name_of(address))
    else:
        file = sqlite3.connect(address)
        rows = file.execute(statement).fetchall()
        file.commit()
        file.close()
    return float(str(rows[0][0])) if rows else 0.0


async def test_a_store_in_memory_keeps_no_tickets() -> None:
    store = SqliteStore(None)
    assert store.coordinator(SystemClock()) is None
    await store.close()


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_a_clock_set_back_keeps_no_dead_holders_lease(shared_address: str) -> None:
    async with two_holders(shared_address) as (one, two, clock):
        await one.claim(IdempotencyRecord("r1", "body", clock.now(), "key"))
        for back, state in ((LEASE_SECONDS, "running"), (3600.0, "lost")):
            clock.at -= back
            found = await two.look("r1")
            assert found is not None and found.state == state
        assert await two.claim(IdempotencyRecord("r2", "body", clock.now(), "key")) is None


async def test_leases_are_renewed_while_tickets_run(shared_address: str) -> None:
    async with two_holders(shared_address, renew_seconds=0.05) as (one, two, clock):
        first = IdempotencyRecord("r1", "body", clock.now(), "key")
        await one.claim(first)
        await one.claim(IdempotencyRecord("over", "body", clock.now()))
        await one.settle(StoredResult("over", answer=b"{}"))
        for _ in range(4):
            clock.at += LEASE_SECONDS - 1
            async with asyncio.timeout(5):
                while _lease_until(shared_address, "r1") < clock.at + LEASE_SECONDS:
                    await asyncio.sleep(0.02)
            assert await two.look("r1") == Claim(first, "running")
        assert _lease_until(shared_address, "over") == 1_000_000.0 + LEASE_SECONDS


def _lease_until(address: str, rollout_id: str) -> float:
    return asked(address, f"SELECT lease_until FROM idempotency_keys WHERE rollout_id = '{rollout_id}'")


# -- a holder's death -------------------------------------------------------------------------------------------------

HOLDER = """
import asyncio, sys, time
from taskapp_kit.records.protocols import StoredResult, SystemClock, IdempotencyRecord
from taskapp_kit.store import open_store

async def main(path):
    tickets = open_store(path).coordinator(SystemClock())
    await tickets.claim(IdempotencyRecord("running", "body", time.time(), "key-1"))
    await tickets.claim(IdempotencyRecord("settled", "body", time.time(), "key-2"))
    await tickets.settle(StoredResult("settled", answer=b"a" * 10_000))
    print("settled", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


@LINUX
async def test_kill_9_loses_what_ran_at_once_and_nothing_that_was_settled(shared_address: str) -> None:
    process = child(HOLDER, shared_address)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "settled\n", process.communicate()
        async with tickets_at(shared_address) as tickets:
            found = await tickets.look("running")
            assert found is not None and found.state == "running"
            assert (await tickets.claim(IdempotencyRecord("r2", "body", time.time(), "key-1"))) == found
        os.kill(process.pid, signal.SIGKILL)
        # A process that was killed and not yet waited for has a pid still, and threads for a moment.
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: (fields := stat.read_text().rpartition(")")[2].split())[0] == "Z" and int(fields[17]) <= 1, 20)
        async with tickets_at(shared_address) as tickets:
            found = await tickets.look("running")
            assert found is not None and found.state == "lost"
            assert await tickets.claim(IdempotencyRecord("r2", "body", time.time(), "key-1")) is None
            kept = await tickets.claim(IdempotencyRecord("r3", "body", time.time(), "key-2"))
            assert kept.settled == StoredResult("settled", answer=b"a" * 10_000)
    finally:
        process.kill()
        process.communicate(timeout=20)


@LINUX
def test_only_a_certainly_ended_process_counts_as_dead() -> None:
    script = "import sys; from taskapp_kit.store.idempotency_sql import this_process; print(this_process(), flush=True); input()\n"
    process = child(script)
    name, own = process.stdout.readline().strip(), this_process()
    try:
        assert own is not None
        place, pid, started = name.rsplit("/", 2)
        assert place == own.rsplit("/", 2)[0]
        assert int(pid) == process.pid
        assert not certainly_dead(name, own)
        assert certainly_dead(f"{place}/{pid}/{int(started) - 1}", own), "the pid was given to another process"
    finally:
        process.communicate("\n", timeout=20)
    assert certainly_dead(name, own)
    assert not certainly_dead(f"elsewhere{name}", own), "of another host nothing is known"
    assert not certainly_dead(own, own)
    assert not certainly_dead(None, own)
    assert not certainly_dead(name, None)
    assert not certainly_dead("nonsense", own)


# -- several processes ------------------------------------------------------------------------------------------------

CLAIMER = """
import asyncio, json, sys, time
from taskapp_kit.records.protocols import SystemClock, IdempotencyRecord
from taskapp_kit.store import open_store

async def main(path, name):
    store = open_store(path)
    tickets = store.coordinator(SystemClock())
    print("ready", flush=True)
    input()
    claims = [IdempotencyRecord(f"{name}-{number}", "body", time.time(), f"key-{number}") for number in range(50)]
    found = await asyncio.gather(*map(tickets.claim, claims))
    print(json.dumps([one and one.record.rollout_id for one in found]), flush=True)
    input()
    await tickets.close()
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.ci(keep=1)
def test_two_processes_claim_the_same_keys_and_one_wins_each(shared_address: str) -> None:
    processes = [child(CLAIMER, shared_address, name) for name in ("a", "b")]
    try:
        answers = []
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            answers.append(json.loads(process.stdout.readline()))
    finally:
        errors = [process.communicate("\n", timeout=20)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    for number, (one, two) in enumerate(zip(*answers, strict=True)):
        assert (one, two) in ((None, f"a-{number}"), (f"b-{number}", None))


async def test_lock_held_too_long_raises_store_error_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    store = SqliteStore(path, busy_timeout_seconds=0.2)
    tickets = coordinated(store, SystemClock())
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    calls = (tickets.claim(IdempotencyRecord(f"r{n}", "body", time.time())) for n in range(3))
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, StoreError)
        assert f"Could not write the store {path}: another process has held the write lock" in str(outcome)
    locker.execute("COMMIT")
    locker.close()
    assert await tickets.claim(IdempotencyRecord("r0", "body", time.time())) is None
    await tickets.close()
    await store.close()


async def test_tickets_and_rollouts_are_written_side_by_side(shared_address: str) -> None:
    store = opened(shared_address)
    tickets = coordinated(store, SystemClock())

    async def one(name: str) -> None:
        assert await tickets.claim(IdempotencyRecord(name, "body", time.time(), f"key-{name}")) is None
        await store.save(rollout(name))
        await tickets.settle(StoredResult(name, answer=name.encode()))

    await asyncio.gather(*(one(f"r{number}") for number in range(200)))
    for number in range(200):
        found = await tickets.look(f"r{number}")
        assert found is not None and found.settled is not None
        assert found.settled.answer == f"r{number}".encode()
    await store.close()  # whichever is closed first
    await tickets.close()
    again = opened(shared_address)
    report = await again.check()
    assert report.ok and report.rollouts == 200
    await again.close()


# -- faults, and what is removed --------------------------------------------------------------------------------------


async def test_one_that_cannot_be_written_is_refused_alone(shared_address: str) -> None:
    async with tickets_at(shared_address) as tickets:
        now = time.time()
        names = ["r1", "bad \ud800", "r2", "r1b"]
        claims = [IdempotencyRecord(name, "body", now, "key" if name == "r1" else None) for name in names]
        outcomes = await asyncio.gather(*map(tickets.claim, claims), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None), type(None)]
        assert all([await tickets.look(name) for name in ("r1", "r2", "r1b")])


async def test_damaged_result_raises_store_error(shared_address: str) -> None:
    async with tickets_at(shared_address) as tickets:
        for name in ("r1", "r2"):
            await tickets.claim(IdempotencyRecord(name, "body", time.time(), name))
            await tickets.settle(StoredResult(name, answer=b"a" * 10_000))
    asked(shared_address, "UPDATE idempotency_keys SET answer = substr(answer, 1, 9) WHERE rollout_id = 'r1'")
    async with tickets_at(shared_address) as tickets:
        with pytest.raises(StoreError, match=r"'r1' .*read from the store: \w+\."):
            await tickets.look("r1")
        with pytest.raises(StoreError, match=r"'r1' .*read from the store: \w+\."):
            await tickets.claim(IdempotencyRecord("r3", "body", time.time(), "r1"))
        assert await tickets.look("r2") is not None


async def test_old_tickets_are_removed_with_the_first_claim_and_then_once_an_hour(shared_address: str) -> None:
    clock = HandClock()

    def count() -> int:
        return int(asked(shared_address, "SELECT count(*) FROM idempotency_keys"))

    async with tickets_at(shared_address, clock) as tickets:
        old = [IdempotencyRecord(f"old-{number}", "body", clock.at) for number in range(2 * PURGED_AT_ONCE + 10)]
        await asyncio.gather(*map(tickets.claim, old))
        for ahead in range(3):  # a clock that was wrong for a while
            await tickets.claim(IdempotencyRecord(f"ahead-{ahead}", "body", clock.at + 10 * RECORD_SECONDS))
    assert count() == 2 * PURGED_AT_ONCE + 10 + 3
    clock.at += RECORD_SECONDS
    async with tickets_at(shared_address, clock) as tickets:
        await tickets.claim(IdempotencyRecord("new-1", "body", clock.at - RECORD_SECONDS + PURGE_SECONDS))
        await until_async(lambda: count() == 1, 5)
        clock.at += PURGE_SECONDS - 1
        await tickets.claim(IdempotencyRecord("new-2", "body", clock.at))
        clock.at += 1
        await tickets.claim(IdempotencyRecord("new-3", "body", clock.at))
        await until_async(lambda: count() == 2, 5)
        assert await tickets.look("new-1") is None
        assert await tickets.look("new-2") is not None


def test_every_statement_uses_an_index(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "rollouts.db")._finish()
    from taskapp_kit.store.idempotency_sql import statements
    from taskapp_kit.store.sqlite import Database

    file = sqlite3.connect(tmp_path / "rollouts.db")
    for name, statement in asdict(statements(Database.spelling)).items():
        arguments = ["[]" if name == "renew" else 0] * statement.count("?")
        plan = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]
        assert not any(line.startswith("SCAN idempotency_keys") for line in plan), (name, plan)
    file.close()

"""Rollouts that several wait for: joined, followed, abandoned, found again, here and from another process of one store."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import IdempotencyKeyReused, RequestError, RolloutFailed, Saturated, StoreError
from taskapp_kit.records.events import fold, from_json
from taskapp_kit.records.protocols import (
    Claim,
    IdempotencyRecord,
    IdempotencyStore,
    Store,
    StoredResult,
    StoredRollout,
    SystemClock,
)
from taskapp_kit.rollout.admission import ANYONE, Caller
from taskapp_kit.rollout.shared_rollouts import SharedRollouts
from taskapp_kit.rollout.subscribers import SharedRollout
from taskapp_kit.store import open_store
from taskapp_kit.store.idempotency_memory import MemoryIdempotencyStore
from taskapp_kit.store.sqlite import SqliteStore
from taskapp_kit.wire.rollout import RolloutRequest
from tests.live_app import SECRET, a_body, marks
from tests.rollouts import a_service
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
APP = find_app(str(Path(__file__).parents[1] / "live_app.py"))


class SharingServer:
    """A service and its shared rollouts, as one server process has them."""

    def __init__(self, store: Store | None = None, coordinator: IdempotencyStore | None = None, **options: Any) -> None:
        self.service = a_service(APP, store=store, **options)
        self.coordinator = coordinator
        self.shared = SharedRollouts(self.service, coordinator)

    def start(
        self, body: dict[str, Any] | None = None, key: str | None = "k", label: str = "", **how: bool
    ) -> SharedRollout:
        body = body or a_body()
        request, caller = RolloutRequest.model_validate(body), Caller(label or None)
        return self.shared.start(request, body=body, caller=caller, idempotency_key=key, **how)

    async def close(self) -> None:
        await self.shared.close()
        await self.service.close()


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """At the end no task is left, and no error that nobody took."""
    complaints: list[Any] = []
    before = len(asyncio.all_tasks())
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before, asyncio.all_tasks()
    gc.collect()
    assert not complaints, complaints


@asynccontextmanager
async def running(store: Store | None = None, **options: Any) -> AsyncIterator[SharingServer]:
    """One server, closed at the end."""
    server = SharingServer(store, **options)
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
async def server() -> AsyncIterator[SharingServer]:
    async with running() as made:
        yield made


async def answer_of(shared: SharedRollout) -> bytes:
    settled = await shared.result()
    assert settled is not None and settled.failure is None, settled
    assert settled.answer is not None
    return settled.answer


async def failure_of(shared: SharedRollout) -> dict[str, str]:
    settled = await shared.result()
    assert settled is not None and settled.answer is None and settled.failure is not None
    failure = settled.failure
    return {"boundary": failure.boundary, "code": failure.code, "error_id": failure.error_id, "id": shared.rollout_id}


def kinds(shared: SharedRollout) -> list[str]:
    return [json.loads(line)["kind"] for line in shared.event_buffer.lines]


async def stored(server: SharingServer, rollout_id: str) -> StoredRollout:
    found = await server.service.store.load(rollout_id)
    assert found is not None
    return found


def sqlite(folder: Path) -> SqliteStore:
    return open_store(f"sqlite:///{folder}/shared.db")  # type: ignore[return-value]


# -- who waits -----------------------------------------------------------------------------------------------------


async def test_the_last_to_leave_cancels_it(tmp_path: Path) -> None:
    async with running(SqliteStore(None)) as server:
        shared = server.start(a_body(gate=tmp_path / "never", mark=tmp_path / "mark"))
        one, two = shared.subscribe(), shared.subscribe()
        await until_async(lambda: marks(tmp_path / "mark", "waiting") == 1)
        one.leave()
        one.leave()
        await asyncio.sleep(0.02)
        assert not shared.over and not shared.cancelled
        two.leave()
        failure = await failure_of(shared)
        assert (failure["boundary"], failure["code"]) == ("cancelled", "cancelled")
        kept = await stored(server, shared.rollout_id)
        assert (kept.status, kept.failure["error_id"]) == ("failed", failure["error_id"])
        assert [event["kind"] for event in kept.events] == kinds(shared)
        assert kinds(shared)[-1] == "failed"
        (tmp_path / "never").touch()
        await until_async(lambda: marks(tmp_path / "mark", "close") == 1)


async def test_who_comes_back_within_the_grace_finds_it_running(server: SharingServer, tmp_path: Path) -> None:
    shared = server.start(a_body(gate=tmp_path / "gate"))
    shared.subscribe(1.0).leave()
    await asyncio.sleep(0.05)
    subscriber = shared.subscribe(1.0)
    await asyncio.sleep(1.1)
    assert not shared.cancelled
    subscriber.leave()
    await asyncio.sleep(0.05)
    shared.subscribe(0.05).leave()
    await asyncio.sleep(0.1)
    assert not shared.cancelled, "the second time has a whole grace of its own"
    (tmp_path / "gate").touch()
    assert await answer_of(shared)


async def test_who_leaves_later_with_less_patience_does_not_end_anothers_grace(
    server: SharingServer, tmp_path: Path
) -> None:
    shared = server.start(a_body(gate=tmp_path / "gate"))
    patient, other = shared.subscribe(1.0), shared.subscribe()
    patient.leave()
    other.leave()
    await asyncio.sleep(0.1)
    assert not shared.cancelled
    began = time.monotonic()
    await shared.ended()
    assert time.monotonic() - began > 0.05, "abandoned in the end, and not at once"
    assert (await failure_of(shared))["code"] == "cancelled"
    (tmp_path / "gate").touch()


async def test_one_that_is_detached_needs_nobody(server: SharingServer, tmp_path: Path) -> None:
    shared = server.start(a_body(gate=tmp_path / "gate"))
    subscriber = shared.subscribe()
    assert server.start(a_body(gate=tmp_path / "gate"), detached=True) is shared, "a joiner may detach it"
    subscriber.leave()
    await asyncio.sleep(0.05)
    (tmp_path / "gate").touch()
    assert await answer_of(shared)


async def test_cancelled_before_its_first_step_it_is_over_too(server: SharingServer) -> None:
    shared = server.start()
    shared.subscribe().leave()
    with pytest.raises(RolloutFailed) as caught:
        await shared.admitted()
    assert caught.value.boundary == "cancelled"
    assert shared.over
    assert await answer_of(server.start())


# -- the same key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
async def test_a_hundred_with_one_key_are_one_episode(tmp_path: Path, kept: str) -> None:
    async with running(sqlite(tmp_path) if kept == "sqlite" else None) as server:
        body = a_body(mark=tmp_path / "mark", slow=0.02)
        lives = [server.start(body) for _ in range(100)]
        answers = await asyncio.gather(*map(answer_of, lives))
        assert len(set(answers)) == 1
        again = server.start(body)
        assert await answer_of(again) == answers[0]
        assert (again.replayed, again.rollout_id) == (True, lives[0].rollout_id)
        assert again.event_buffer.lines == lives[0].event_buffer.lines
        assert marks(tmp_path / "mark", "reset") == 1


async def test_another_body_is_refused_while_it_runs_and_afterwards(server: SharingServer, tmp_path: Path) -> None:
    shared = server.start(a_body(gate=tmp_path / "gate"))
    with pytest.raises(IdempotencyKeyReused):
        server.start(a_body(seed=1))
    (tmp_path / "gate").touch()
    await shared.result()
    late = server.start(a_body(seed=1))
    with pytest.raises(IdempotencyKeyReused):
        await late.admitted()
    with pytest.raises(IdempotencyKeyReused):
        await late.result()
    assert await answer_of(server.start(a_body(gate=tmp_path / "gate"))) == await answer_of(shared)


async def test_a_key_belongs_to_a_label(server: SharingServer, tmp_path: Path) -> None:
    bodies = [server.start(a_body(seed), label=label) for seed, label in ((0, "a"), (1, "b"), (2, ""))]
    assert len({await answer_of(shared) for shared in bodies}) == 3
    assert len({shared.rollout_id for shared in bodies}) == 3


@pytest.mark.parametrize("breaks", ["reset", "step", "rubric"])
async def test_a_failure_is_repeated_as_that_failure(tmp_path: Path, breaks: str) -> None:
    async with running(sqlite(tmp_path)) as server:
        body = a_body(breaks=breaks, mark=tmp_path / "mark")
        one = server.start(body)
        first = await failure_of(one)
        two = server.start(body)
        assert await failure_of(two) == first
        assert first["error_id"]
        assert two.event_buffer.lines == one.event_buffer.lines
        assert marks(tmp_path / "mark", "reset") == 1


@pytest.mark.parametrize("wrong", [{"seed": 1000}, {"breaks": "config"}])
async def test_a_refused_request_is_not_remembered(server: SharingServer, wrong: dict[str, Any]) -> None:
    refused = server.start(a_body(**wrong))
    with pytest.raises(RequestError):
        await refused.result()
    assert await answer_of(server.start(a_body()))
    assert server.service.in_flight == 0


async def test_saturation_is_not_remembered(tmp_path: Path) -> None:
    async with running(max_concurrent=1) as server:
        first = server.start(a_body(gate=tmp_path / "gate"), "one")
        await first.admitted()
        refused = server.start(a_body(), "two")
        with pytest.raises(Saturated):
            await refused.admitted()
        (tmp_path / "gate").touch()
        await first.result()
        assert await answer_of(server.start(a_body(), "two"))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
async def test_repeating_a_cancelled_rollout_plays_it_again(tmp_path: Path, workers: int) -> None:
    async with running(sqlite(tmp_path), workers=workers) as server:
        body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
        shared = server.start(body)
        subscriber = shared.subscribe()
        await until_async(lambda: marks(tmp_path / "mark", "waiting") == 1)
        subscriber.leave()
        again = server.start(body)  # before the first one has ended
        assert again is not shared
        joined = server.start(body)
        assert joined is again
        (tmp_path / "gate").touch()
        answer = await answer_of(again)
        assert json.loads(answer)["rollout_id"] == again.rollout_id != shared.rollout_id
        assert not again.replayed
        assert (await failure_of(shared))["code"] == "cancelled"
        assert await answer_of(server.start(body)) == answer, "and this one is remembered"
        assert marks(tmp_path / "mark", "reset") == 2
        await until_async(lambda: marks(tmp_path / "mark", "close") == 2)


async def test_without_a_key_each_is_its_own(server: SharingServer) -> None:
    lives = [server.start(key=None) for _ in range(5)]
    assert len({await answer_of(shared) for shared in lives}) == 5


# -- found again ---------------------------------------------------------------------------------------------------


async def test_it_is_found_by_its_id_while_it_runs_and_afterwards(server: SharingServer, tmp_path: Path) -> None:
    shared = server.start(a_body(gate=tmp_path / "gate"), None, detached=True)
    await shared.admitted()
    assert await server.shared.find(shared.rollout_id, ANYONE) is shared
    assert await server.shared.find("0" * 32, ANYONE) is None
    assert await shared.result(0.0) is None
    assert await shared.result(0.01) is None
    (tmp_path / "gate").touch()
    answer = await answer_of(shared)
    for with_events in (True, False):
        again = await server.shared.find(shared.rollout_id, ANYONE, with_events=with_events)
        assert again is not None and again is not shared
        assert await answer_of(again) == answer
        assert again.event_buffer.lines == (shared.event_buffer.lines if with_events else [])


@pytest.mark.parametrize("kept", ["memory", "sqlite", "sqlite in memory"])
async def test_the_events_afterwards_are_those_that_were_told(tmp_path: Path, kept: str) -> None:
    store = {"memory": None, "sqlite": sqlite(tmp_path), "sqlite in memory": SqliteStore(None)}[kept]

    async with running(store) as server:
        shared = server.start(a_body(image=True), None, detached=True)
        answer = json.loads(await answer_of(shared))
        found = await server.shared.find(shared.rollout_id, ANYONE, with_events=True)
        assert found.event_buffer.lines == shared.event_buffer.lines
        told = [json.loads(line) for line in shared.event_buffer.lines]
        assert [event["seq"] for event in told] == list(range(len(told)))
        pictures = {}
        for event in told:
            part = event["step"] if event["kind"] == "stepped" else event
            for block in part.get("observation", []):
                if isinstance(block, dict):
                    pictures[block["image"]] = await server.service.stored.blob(block["image"])
        assert len(pictures) == 4 and all(pictures.values())
        trajectory = fold(from_json(event, pictures) for event in told)  # type: ignore[arg-type]
        trajectory.final_state = {"private": SECRET}  # which no event tells
        assert trajectory.digest() == answer["digest"]


async def test_after_a_restart_it_is_still_there(tmp_path: Path) -> None:
    body = a_body(mark=tmp_path / "mark")

    async def outcome(server: SharingServer) -> tuple[bytes, str, dict[str, str]]:
        shared, failing = server.start(body), server.start(a_body(breaks="step"), "wrong")
        return await answer_of(shared), shared.rollout_id, await failure_of(failing)

    async with running(sqlite(tmp_path)) as server:
        before = await outcome(server)
    async with running(sqlite(tmp_path)) as server:
        answer, rollout_id, _ = before
        again = await server.shared.find(rollout_id, ANYONE)
        assert again is not None and await answer_of(again) == answer
        with pytest.raises(IdempotencyKeyReused):
            await server.start(a_body(seed=7)).result()
        assert await outcome(server) == before
    assert marks(tmp_path / "mark", "reset") == 1


# -- two processes of one store ------------------------------------------------------------------------------------


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[SharingServer, SharingServer]]:
    """Two servers of one file, each with a connection to it."""
    stores = (sqlite(tmp_path), sqlite(tmp_path))
    one, other = (SharingServer(store, store.coordinator(SystemClock())) for store in stores)
    yield one, other
    await one.close()
    await other.close()


async def test_another_process_joins_a_running_key(two: tuple[SharingServer, SharingServer], tmp_path: Path) -> None:
    one, other = two
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    shared = one.start(body)
    await shared.admitted()
    joined = other.start(body)
    await joined.admitted()
    assert (joined.rollout_id, joined.is_local) == (shared.rollout_id, False)
    with pytest.raises(IdempotencyKeyReused):
        await other.start(a_body(seed=1), "k").result()
    (tmp_path / "gate").touch()
    assert await answer_of(joined) == await answer_of(shared)
    assert joined.event_buffer.lines == shared.event_buffer.lines
    assert marks(tmp_path / "mark", "reset") == 1


async def test_another_process_finds_it_by_its_id(two: tuple[SharingServer, SharingServer], tmp_path: Path) -> None:
    one, other = two
    shared = one.start(a_body(gate=tmp_path / "gate"), None, detached=True)
    await shared.admitted()
    watched = await other.shared.find(shared.rollout_id, ANYONE)
    assert watched is not None
    assert await other.shared.find(shared.rollout_id, ANYONE) is watched
    assert (watched.is_local, watched.over) == (False, False)
    (tmp_path / "gate").touch()
    assert await answer_of(watched) == await answer_of(shared)
    assert watched.event_buffer.lines == shared.event_buffer.lines


async def test_what_another_process_cancelled_is_played_here(
    two: tuple[SharingServer, SharingServer], tmp_path: Path
) -> None:
    one, other = two
    body = a_body(gate=tmp_path / "gate")
    shared = one.start(body)
    subscriber = shared.subscribe()
    await shared.admitted()
    joined = other.start(body)
    await joined.admitted()
    subscriber.leave()
    await shared.ended()
    (tmp_path / "gate").touch()
    answer = json.loads(await answer_of(joined))
    assert answer["rollout_id"] == joined.rollout_id != shared.rollout_id


async def test_what_another_process_lost_is_played_here(
    two: tuple[SharingServer, SharingServer], tmp_path: Path
) -> None:
    one, other = two
    body = a_body(gate=tmp_path / "gate")
    shared = one.start(body)
    subscriber = shared.subscribe()
    await shared.admitted()
    joined, watched = other.start(body), await other.shared.find(shared.rollout_id, ANYONE)
    assert watched is not None
    await joined.admitted()
    await one.coordinator.close()  # as its process dies: from now on nobody holds the ticket
    subscriber.leave()
    await shared.ended()
    (tmp_path / "gate").touch()
    assert json.loads(await answer_of(joined))["rollout_id"] != shared.rollout_id
    lost = await failure_of(watched)
    assert (lost["boundary"], lost["code"]) == ("cancelled", "server_died")
    again = await other.shared.find(shared.rollout_id, ANYONE)
    assert again is not None and (await failure_of(again))["code"] == "server_died"


async def test_what_another_process_stored_before_it_died_is_the_answer_of_its_key(
    two: tuple[SharingServer, SharingServer], tmp_path: Path
) -> None:
    """Killed between the rollout's commit and that of its record: it is not played again."""

    one, other = two
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    shared = one.start(body)
    await shared.admitted()
    await one.coordinator.close()
    (tmp_path / "gate").touch()
    with pytest.raises(StoreError):
        await shared.result()
    await stored(other, shared.rollout_id)
    again = json.loads(await answer_of(other.start(body)))
    assert (again["rollout_id"], again["status"]) == (shared.rollout_id, "terminated")
    assert marks(tmp_path / "mark", "reset") == 1
    with pytest.raises(IdempotencyKeyReused):
        await other.start({**body, "run_id": "another"}).result()


# -- coordinators that fail ----------------------------------------------------------------------------------------


class Failing(MemoryIdempotencyStore):
    """Refuses what it is told to, as a file on a full disk would."""

    def __init__(self, *refused: str) -> None:
        super().__init__(SystemClock())
        self.refused = set(refused)

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            raise StoreError("the disk is full.")

    async def claim(self, ticket: IdempotencyRecord, *, keep_lost: bool = False) -> Claim | None:
        self._refuse("claim")
        return await super().claim(ticket, keep_lost=keep_lost)

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        try:
            self._refuse("settle")
        except StoreError:
            await super().release(settled.rollout_id)
            raise
        await super().settle(settled, free_key=free_key)

    async def look(self, rollout_id: str) -> Claim | None:
        self._refuse("look")
        return await super().look(rollout_id)


@pytest.mark.parametrize("refused", ["claim", "settle"])
@pytest.mark.parametrize("config", [{}, {"breaks": "step"}])
async def test_a_coordinator_that_fails_is_an_error_and_leaves_the_key_usable(
    refused: str, config: dict[str, Any]
) -> None:
    coordinator = Failing(refused)

    async with running(coordinator=coordinator) as server:
        lives = [server.start(a_body(**config)) for _ in range(3)]
        for shared in lives:
            with pytest.raises(StoreError):
                await shared.result()
        assert server.service.in_flight == 0
        coordinator.refused.clear()
        assert await server.start(a_body(**config)).result()


async def test_a_cancelled_one_that_cannot_be_settled_ends_too(tmp_path: Path) -> None:
    coordinator = Failing("settle")

    async with running(coordinator=coordinator) as server:
        shared = server.start(a_body(gate=tmp_path / "gate"))
        subscriber = shared.subscribe()
        await shared.admitted()
        subscriber.leave()
        with pytest.raises(StoreError):
            await shared.result()
        (tmp_path / "gate").touch()


async def test_a_lookup_that_fails_says_so() -> None:
    async with running(coordinator=Failing("look")) as server:
        with pytest.raises(StoreError):
            await server.shared.find("0" * 32, ANYONE)


class Full(SqliteStore):
    """A store in memory that can save nothing."""

    async def save(self, rollout: StoredRollout) -> None:
        raise StoreError("the disk is full.")


@pytest.mark.parametrize("way", [{"detached": True}, {"followed": True}], ids=str)
async def test_an_answer_that_could_not_be_kept_is_told_as_that_to_who_asks_later(way: dict[str, bool]) -> None:
    async with running(Full(None)) as server:
        shared = server.start(key="k", **way)
        with pytest.raises(StoreError):
            await shared.result()
        found = await server.shared.find(shared.rollout_id, ANYONE)
        assert found is not None
        with pytest.raises(StoreError):
            await found.result()
        with pytest.raises(Saturated) as refused:  # it is not remembered under its key, and not played again
            await server.start(key="k").result()
        assert refused.value.code == "store_failing"


class Slow(MemoryIdempotencyStore):
    """Settles when it is told to."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        self.asked.set()
        await self.go.wait()
        await super().settle(settled, free_key=free_key)


async def test_what_is_being_settled_is_cancelled_no_more() -> None:
    coordinator = Slow()
    server = SharingServer(coordinator=coordinator)
    shared = server.start()
    await coordinator.asked.wait()
    shared.subscribe().leave()
    shared.cancel()
    assert server.start() is shared, "it can still be joined"
    coordinator.go.set()
    answer = await answer_of(shared)
    assert await answer_of(server.start()) == answer
    await server.close()


# -- the end of the server -----------------------------------------------------------------------------------------


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
async def test_a_drain_ends_what_hangs_and_says_so_everywhere(tmp_path: Path, workers: int) -> None:
    async with running(sqlite(tmp_path), workers=workers) as server:
        body = a_body(gate=tmp_path / "never")
        shared = server.start(body, detached=True, followed=True)
        await until_async(lambda: "acted" in kinds(shared))
        await server.service.drain(0.1)
        await server.shared.settled()
        failure = await failure_of(shared)
        assert (failure["boundary"], failure["code"]) == ("cancelled", "server_stopping")
        kept = await stored(server, shared.rollout_id)
        assert kept.failure is not None and kept.failure["error_id"] == failure["error_id"]
        assert [event["kind"] for event in kept.events] == kinds(shared)
        found = await server.shared.find(shared.rollout_id, ANYONE)
        assert found is not None and await failure_of(found) == failure
        with pytest.raises(Saturated) as caught:
            await server.start(body).result()
        assert caught.value.code == "draining"
        (tmp_path / "never").touch()


async def test_a_drain_still_repeats_what_is_known(server: SharingServer, tmp_path: Path) -> None:
    answer = await answer_of(server.start())
    await server.service.drain(0.0)
    assert await answer_of(server.start()) == answer


async def test_closing_ends_everything(tmp_path: Path) -> None:
    server = SharingServer(sqlite(tmp_path))
    lives = [server.start(a_body(gate=tmp_path / "gate"), f"{number}", detached=True) for number in range(4)]
    for shared in lives[:3]:
        await shared.admitted()
    late = server.start(key="late")
    await server.close()
    for shared in [*lives, late]:
        assert shared.over
        with pytest.raises((RolloutFailed, AssertionError)):
            await answer_of(shared)
    (tmp_path / "gate").touch()


# -- whatever callers do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_callers_do_all_hear_the_same_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    """Joins, cuts, cancels and searches at random, on one server and (odd seeds) on two of one store."""
    rng = random.Random(seed)
    breaks = ["", "", "", "step", "reset", "rubric"]
    bodies = [
        a_body(steps=rng.randint(1, 4), slow=rng.choice([0, 0.002, 0.01]), breaks=rng.choice(breaks), seed=number)
        for number in range(4)
    ]
    answers: dict[str, set[bytes]] = {}

    async def follow(shared: SharedRollout) -> tuple[SharedRollout, list[bytes]]:
        return shared, [line async for lines in shared.event_buffer.follow() for line in lines]

    async def caller(server: SharingServer, followers: list[asyncio.Task[tuple[SharedRollout, list[bytes]]]]) -> None:
        number = rng.randrange(4)
        key = f"key {number}" if rng.random() < 0.8 else None
        shared = server.start(bodies[number], key, detached=rng.random() < 0.3, followed=rng.random() < 0.3)
        subscriber = shared.subscribe(rng.choice([0, 0, 0.01]))
        if rng.random() < 0.5:
            followers.append(asyncio.create_task(follow(shared)))
        try:
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.02)
                if rng.random() < 0.3:
                    shared.cancel()
            else:
                settled = await shared.result()
                if settled.answer is not None:
                    answers.setdefault(settled.rollout_id, set()).add(settled.answer)
        except (RolloutFailed, Saturated):
            pass
        finally:
            subscriber.leave()
        await shared.ended()
        found = await server.shared.find(shared.rollout_id, ANYONE, with_events=True) if shared.rollout_id else None
        if found is not None:
            settled = await found.result()
            if settled.answer is not None:
                answers.setdefault(settled.rollout_id, set()).add(settled.answer)

    one = SharingServer(sqlite(tmp_path) if seed % 2 else None, max_concurrent=12)
    servers = [one, SharingServer(sqlite(tmp_path))] if seed % 2 else [one]
    followers: list[asyncio.Task[tuple[SharedRollout, list[bytes]]]] = []
    callers = []
    for _ in range(50):
        callers.append(asyncio.create_task(caller(rng.choice(servers), followers)))
        await asyncio.sleep(rng.random() * 0.004)
    await asyncio.gather(*callers)
    for shared, lines in await asyncio.gather(*followers):
        assert lines == shared.event_buffer.lines
        assert [json.loads(line)["seq"] for line in lines] == list(range(len(lines)))
    assert all(len(different) == 1 for different in answers.values())
    for server in servers:
        assert server.service.in_flight == 0
        await server.close()

"""Idempotency records in a modal.Dict: the contract of all stores, then what is special where several containers share it.

The client is Modal's own; the Dict is scripted on loopback (`control_more.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

import modal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modal_proto import api_pb2

from taskapp_kit.deploy.modal import idempotency_record
from taskapp_kit.deploy.modal.idempotency import LEASE_SECONDS, ModalIdempotencyStore
from taskapp_kit.deploy.modal.idempotency_record import ModalEntries
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.protocols import Claim, StoredResult
from taskapp_kit.store.idempotency import RECORD_SECONDS
from tests.deploy.control_more import Dicts, WithDicts
from tests.idempotency_contract import *  # noqa: F403
from tests.idempotency_contract import FAILURE, HandClock, record
from tests.waiting import until_async

pytestmark = pytest.mark.server

Use = Callable[..., Awaitable[None]]


@pytest.fixture(scope="module")
def plane() -> Iterator[WithDicts]:
    with WithDicts({}).running() as plane:
        yield plane


@pytest.fixture(scope="module")
def client(plane: WithDicts) -> Iterator[Any]:
    with modal.client.Client(plane.url, api_pb2.CLIENT_TYPE_CLIENT, ("ak-none", "as-none")) as client:
        yield client


@pytest.fixture
def dicts(plane: WithDicts) -> Iterator[Dicts]:
    yield plane.dicts
    plane.dicts.__init__()  # type: ignore[misc]


@pytest.fixture
def run(dicts: Dicts, client: Any) -> Callable[[Use], None]:
    """Runs `use(store, clock)` on an event loop, for the contract."""

    async def main(use: Use) -> None:
        clock = HandClock()
        coordinator = ModalIdempotencyStore(ModalEntries("contract", client=client), clock)
        try:
            await use(coordinator, clock)
        finally:
            await coordinator.close()
            await coordinator.close()

    return lambda use: asyncio.run(main(use))


@pytest.fixture
def run_two(dicts: Dicts, client: Any) -> Callable[[Use], None]:
    return lambda use: with_two(client, use, renew_seconds=3600)


@pytest.fixture
def lease_seconds() -> float:
    return LEASE_SECONDS


def with_two(client: Any, use: Use, **options: Any) -> None:
    """Two containers over one Dict, and the clock that both read."""

    async def run() -> None:
        clock = HandClock()
        one, two = (ModalIdempotencyStore(ModalEntries("two", client=client), clock, **options) for _ in range(2))
        try:
            await use(one, two, clock)
        finally:
            await one.close()
            await two.close()

    asyncio.run(run())


# -- two containers -------------------------------------------------------------------------------------------------


def test_of_claims_at_once_in_two_containers_one_wins_each_key(dicts: Dicts, client: Any) -> None:
    dicts.slow_seconds = 0.002

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        claims = [
            (store, record(f"{name}-{key}-{turn}", f"key-{key}"))
            for key in range(5)
            for turn in range(4)
            for name, store in (("one", one), ("two", two))
        ]
        found = await asyncio.gather(*(store.claim(claim) for store, claim in claims))
        for key in range(5):
            mine = [
                (claim, other) for (_, claim), other in zip(claims, found, strict=True) if claim.key == f"key-{key}"
            ]
            winners = [claim for claim, other in mine if other is None]
            assert len(winners) == 1
            assert {other.record.rollout_id for _, other in mine if other} == {winners[0].rollout_id}

    with_two(client, use)


@pytest.mark.ci
@pytest.mark.parametrize("why", ["lost", "freed", "released", "old"])
def test_of_takeovers_at_once_one_wins(dicts: Dicts, client: Any, why: str) -> None:
    """Five containers want the key of a rollout that gave it up; again and again."""
    dicts.slow_seconds = 0.002

    async def use() -> None:
        clock = HandClock()
        many = [ModalIdempotencyStore(ModalEntries("many", client=client), clock) for _ in range(5)]
        holder, held = many[0], "r-start"
        assert await holder.claim(record(held)) is None
        for turn in range(3):
            if why == "lost":
                await holder.close()
                many[many.index(holder)] = ModalIdempotencyStore(ModalEntries("many", client=client), clock)
            elif why == "freed":
                gone = StoredResult(held, failure=Failure("cancelled", "cancelled", "nobody waited"))
                await holder.settle(gone, free_key=True)
            elif why == "released":
                await holder.release(held)
            else:
                await holder.settle(StoredResult(held, answer=b"{}"))
                clock.at += RECORD_SECONDS
            claims = [record(f"r-{turn}-{number}", at=clock.at) for number in range(5)]
            found = await asyncio.gather(*(store.claim(claim) for store, claim in zip(many, claims, strict=True)))
            (winner,) = [number for number, other in enumerate(found) if other is None]
            assert {other.record.rollout_id for other in found if other} == {claims[winner].rollout_id}
            holder, held = many[winner], claims[winner].rollout_id
        for store in many:
            await store.close()

    asyncio.run(use())


@pytest.mark.ci
def test_an_answer_of_the_dict_that_was_lost_on_the_way_changes_nothing(dicts: Dicts, client: Any) -> None:
    """Modal's client repeats a put whose answer was lost; "it exists" then means our own."""

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        dicts.lose_answers = {b"holder/", b"ticket/", b"key/"}
        assert await one.claim(record("r1")) is None
        assert not dicts.lose_answers, "each of them was put, and put again"
        assert await two.claim(record("r2")) == Claim(record("r1"), "running")
        dicts.lose_answers = {b"ticket/", b"part/"}
        await one.settle(StoredResult("r1", failure=FAILURE, events=b"[]"), free_key=True)
        assert not dicts.lose_answers
        dicts.lose_answers = {b"next/"}
        assert await two.claim(record("r3")) is None
        assert not dicts.lose_answers
        assert await one.claim(record("r4")) == Claim(record("r3"), "running")

    with_two(client, use)


@pytest.mark.ci
def test_a_lease_is_renewed_for_all_that_is_held_and_for_nothing_else(dicts: Dicts, client: Any) -> None:
    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        for number in range(6):
            await one.claim(record(f"r{number}", None))
        for number in range(3, 6):
            await one.settle(StoredResult(f"r{number}", answer=b"{}"))
        for _ in range(3):
            clock.at += LEASE_SECONDS - 1
            before = dicts.calls["DictUpdate"]
            async with asyncio.timeout(10):
                while dicts.calls["DictUpdate"] < before + 2:
                    await asyncio.sleep(0.01)
            states = [(await two.look(f"r{number}") or Claim(record(""), "lost")).state for number in range(6)]
            assert states == ["running"] * 3 + ["settled"] * 3

    with_two(client, use, renew_seconds=0.05)


def test_two_processes_with_one_memory_are_not_the_same_holder(dicts: Dicts, client: Any) -> None:
    """Who holds is named at the first claim: a snapshot of a coordinator that was made holds no name."""

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        assert one.owner == two.owner == ""
        await one.claim(record("r1"))
        await two.claim(record("r2", None))
        assert one.owner and two.owner and one.owner != two.owner

    with_two(client, use)


# -- sizes, and faults ----------------------------------------------------------------------------------------------


def test_a_long_answer_travels_in_parts(dicts: Dicts, client: Any) -> None:
    answer, events = os.urandom(12_000_000), os.urandom(3_000_000)  # does not get smaller; a plane's value has 5 MiB

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        await one.claim(record("r1"))
        await one.settle(StoredResult("r1", answer=answer, events=events))
        found = await two.look("r1")
        assert found is not None and found.settled == StoredResult("r1", answer=answer, events=events)

    with_two(client, use)
    assert max(len(value) for value in dicts.named["two"].values()) < 1_100_000


def test_an_answer_too_long_to_keep_is_told_to_who_asks_later(
    dicts: Dicts, client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_record, "MOST_BYTES", 100_000)

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        await one.claim(record("r1"))
        await one.settle(StoredResult("r1", answer=os.urandom(200_000)))
        for found in (await two.look("r1"), await two.claim(record("r2"))):
            assert found is not None and found.settled is not None and found.settled.failure is not None
            assert found.settled.failure.code == "answer_too_large"
        await one.claim(record("r3", "other"))
        await one.settle(StoredResult("r3", answer=b"{}", events=os.urandom(200_000)))
        found = await two.look("r3")
        assert found is not None and found.settled == StoredResult("r3", answer=b"{}")

    with_two(client, use)
    assert len([line for line in caplog.records if "not stored" in line.message]) == 2


def test_an_answer_with_a_part_missing_is_an_error_and_never_a_shorter_answer(
    dicts: Dicts, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_record, "PART_BYTES", 10_000)

    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        await one.claim(record("r1"))
        await one.settle(StoredResult("r1", answer=os.urandom(50_000)))
        entries = dicts.named["two"]
        (part,) = [key for key in entries if b"part/r1/answer/2" in key]
        del entries[part]
        with pytest.raises(StoreError, match=r"'r1' .*modal\.Dict .*: \w+\."):
            await two.look("r1")
        (name,) = [key for key in entries if b"ticket/r1" in key]
        for nonsense in (b"no JSON", b"7", b'"r1"', b"[]", b"{}"):
            entries[name] = modal._serialization.serialize(nonsense)
            with pytest.raises(StoreError, match=r"'r1' .*modal\.Dict .*: \w+\."):
                await two.claim(record("r2"))
        entries[name] = modal._serialization.serialize({"an": "object"})
        with pytest.raises(StoreError, match=r"ticket/r1.*modal\.Dict 'two'"):
            await two.look("r1")

    with_two(client, use)


def test_a_dict_that_does_not_answer_is_a_sentence_without_its_text(dicts: Dicts, client: Any) -> None:
    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        await one.claim(record("r1"))
        dicts.down = True
        for call in (one.claim(record("r2")), one.look("r1"), two.settle(StoredResult("r1", answer=b"{}"))):
            with pytest.raises(StoreError) as caught:
                await call
            assert "canary" not in str(caught.value)
        with pytest.raises(StoreError, match=r"the modal\.Dict 'two' .*written: ConflictError"):
            await one.settle(StoredResult("r1", answer=b"{}"))
        dicts.down = False
        # What could not be settled is no longer held; with the next renewal everybody knows.
        async with asyncio.timeout(10):
            while (await two.look("r1") or Claim(record(""), "running")).state != "lost":
                await asyncio.sleep(0.02)
        assert await one.claim(record("r2")) is None, "a refused claim holds nothing"

    with_two(client, use, renew_seconds=0.05)


def test_no_call_waits_for_ever(dicts: Dicts, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_record, "CALL_SECONDS", 0.2)
    dicts.slow_seconds = 3.0

    async def use() -> None:
        store = ModalIdempotencyStore(ModalEntries("slow", client=client), HandClock())
        with pytest.raises(StoreError, match="TimeoutError"):
            await store.look("r1")
        await store.close()

    asyncio.run(use())


def test_whatever_the_client_raises_is_a_store_error_and_the_leases_go_on(dicts: Dicts, client: Any) -> None:
    """Modal's client lets errors of its gRPC library out: one of them must not end the renewals."""
    from grpclib.exceptions import StreamTerminatedError

    class Ends(ModalEntries):
        breaks = False
        broken = 0

        async def put(self, key: str, value: bytes) -> None:
            async def ended(_: Any) -> None:
                self.broken += 1
                raise StreamTerminatedError("canary")

            await (self._call("write", ended) if self.breaks else super().put(key, value))

    async def use() -> None:
        clock, entries = HandClock(), Ends("ends", client=client)
        one = ModalIdempotencyStore(entries, clock, renew_seconds=0.05)
        two = ModalIdempotencyStore(ModalEntries("ends", client=client), clock)
        assert await one.claim(record("r1")) is None
        entries.breaks = True
        with pytest.raises(StoreError, match="StreamTerminatedError") as caught:
            await entries.put("x", b"")
        assert "canary" not in str(caught.value)
        await until_async(lambda: entries.broken > 2, what="renewals that fail")
        entries.breaks = False
        clock.at += LEASE_SECONDS + 1
        async with asyncio.timeout(10):
            while await two.look("r1") != Claim(record("r1"), "running"):
                await asyncio.sleep(0.02)
        await one.close()
        await two.close()

    asyncio.run(use())


def test_nothing_that_lies_there_is_a_key_or_a_body(dicts: Dicts, client: Any) -> None:
    async def use(one: ModalIdempotencyStore, two: ModalIdempotencyStore, clock: Any) -> None:
        await one.claim(replace(record("r1"), key="5" * 64, fingerprint="7" * 64))
        await one.settle(StoredResult("r1", answer=b'{"reward":1}'))

    with_two(client, use)
    names = sorted(modal._serialization.deserialize(key, None) for key in dicts.named["two"])
    assert [name.partition("/")[0] for name in names] == ["holder", "key", "part", "ticket"]
    (stored,) = [value for key, value in dicts.named["two"].items() if b"ticket/" in key]
    told = json.loads(modal._serialization.deserialize(stored, None))
    assert set(told["ticket"]) == {"rollout_id", "fingerprint", "created_at", "key", "key_label", "app"}


# -- drawn histories ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "claim", "settle", "free", "release", "close", "wait"]), st.integers(0, 2)),
    max_size=12,
)


class InMemory:
    """The same entries without a network, for many histories."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.entries.get(key)

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        self.entries[key] = value

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        await asyncio.sleep(0)
        return self.entries.setdefault(key, value) is value

    async def remove(self, key: str) -> None:
        await asyncio.sleep(0)
        self.entries.pop(key, None)


class Meanwhile(InMemory):
    """Entries where something happens once, right after a certain one was read and before who read it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.after = ""
        self.happens: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str) -> bytes | None:
        value = await super().get(key)
        if key == self.after and self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return value


@pytest.mark.parametrize("who", ["another container", "the same container"])
@pytest.mark.parametrize("way", ["claim", "look"])
def test_what_is_settled_between_two_looks_is_not_lost(who: str, way: str) -> None:
    """A container that drains settles its rollouts and is gone at once; whoever asks just then must find the answer."""

    async def use() -> None:
        entries, clock = Meanwhile(), HandClock()
        one, two = (ModalIdempotencyStore(entries, clock, renew_seconds=3600) for _ in range(2))
        asks = two if who == "another container" else one
        over = StoredResult("r1", answer=b'{"reward":1}')
        assert await one.claim(record("r0", "other")) is None  # is held to the end, so the holder's entry is removed
        assert await one.claim(record("r1")) is None

        async def happens() -> None:
            await one.settle(over)
            if asks is two:
                await one.close()

        entries.after, entries.happens = "ticket/r1", happens
        found = await (asks.claim(record("r2")) if way == "claim" else asks.look("r1"))
        assert entries.happens is None
        assert found == Claim(record("r1"), "settled", over)
        await one.close()
        await two.close()

    asyncio.run(use())


def test_a_key_that_is_freed_between_two_looks_is_free() -> None:
    async def use() -> None:
        entries, clock = Meanwhile(), HandClock()
        one, two = (ModalIdempotencyStore(entries, clock, renew_seconds=3600) for _ in range(2))
        assert await one.claim(record("r1")) is None

        async def happens() -> None:
            await one.settle(StoredResult("r1", failure=FAILURE), free_key=True)
            await one.close()

        entries.after, entries.happens = "ticket/r1", happens
        await one.claim(record("r0", "other"))
        assert await two.claim(record("r2")) is None
        await two.close()

    asyncio.run(use())


@given(STEPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_a_key_has_one_rollout_that_counts(steps: list[tuple[str, int]]) -> None:
    async def use() -> None:
        entries, clock = InMemory(), HandClock()
        made: list[ModalIdempotencyStore] = [
            ModalIdempotencyStore(entries, clock, renew_seconds=3600) for _ in range(3)
        ]
        holds: dict[int, str] = {}  # container to the rollout that it plays under the key
        settled: str | None = None  # the one whose result the key repeats
        for count, (word, who) in enumerate(steps):
            if word == "claim":
                claims = {number: record(f"r{count}-{number}", at=clock.at) for number in range(3)}
                found = await asyncio.gather(*(made[number].claim(claim) for number, claim in claims.items()))
                winners = [number for number, other in enumerate(found) if other is None]
                alive = list(holds.values())
                if settled is not None:
                    assert winners == []
                    assert {other.record.rollout_id for other in found if other} == {settled}
                elif alive:
                    assert winners == []
                    assert {other.record.rollout_id for other in found if other} == set(alive)
                else:
                    (winner,) = winners
                    holds = {winner: claims[winner].rollout_id}
                    assert {other.record.rollout_id for other in found if other} == {holds[winner]}
            elif word == "wait":
                clock.at += LEASE_SECONDS + 1
                for number in list(holds):
                    made[number] = ModalIdempotencyStore(entries, clock, renew_seconds=3600)  # it was killed
                holds = {}
            elif who in holds:
                rollout = holds.pop(who)
                if word == "settle":
                    await made[who].settle(StoredResult(rollout, answer=b"{}"))
                    settled = rollout
                elif word == "free":
                    await made[who].settle(StoredResult(rollout, failure=FAILURE), free_key=True)
                elif word == "release":
                    await made[who].release(rollout)
                else:
                    await made[who].close()
                    made[who] = ModalIdempotencyStore(entries, clock, renew_seconds=3600)
        for store in made:
            await store.close()

    asyncio.run(use())

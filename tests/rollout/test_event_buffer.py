"""The events of a rollout under way: nothing is missed, nothing doubled, pictures are there before their events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit import Image
from taskapp_kit.records.events import Acted, Called, EpisodeEnded, Event, Observed, Started, encode, encode_one
from taskapp_kit.rollout.event_buffer import EventBuffer

EVENTS: list[Event] = [
    Started("e", "1", "train", 0, {}, "noop"),
    Observed(["one", Image(np.full((2, 2, 3), 1, np.uint8))], ["go"]),
    *(event for turn in range(6) for event in (Called(turn), Acted(turn, "go", {"words": 'ü,\n"]'}))),
    EpisodeEnded("terminated", "goal", {"private": "sentinel"}),
]
LINES = [encode_one(number, event) for number, event in enumerate(EVENTS)]
pytestmark = pytest.mark.anyio


def nothing(_: dict[str, bytes]) -> None:
    """Shows nobody."""


@given(
    st.lists(st.sampled_from(["tell", "take", "read", "wait"]), max_size=40), st.integers(0, len(EVENTS) + 2), st.data()
)
async def test_a_follower_gets_each_event_once_and_in_order(what: list[str], first: int, data: st.DataObject) -> None:
    journal = EventBuffer(nothing)
    found: list[bytes] = []

    async def follow() -> None:
        async for lines in journal.follow(first):
            assert lines
            found.extend(lines)

    following = asyncio.create_task(follow())
    told = 0
    for step in [*what, "tell", "close"]:
        if step == "tell" and told < len(EVENTS):
            journal(EVENTS[told])
            told += 1
        elif step == "take":
            until = data.draw(st.integers(told, len(EVENTS)))
            if until > told:
                journal.take(b",".join(LINES[told:until]), {})
                told = until
        elif step == "read":
            assert journal.lines == LINES[:told]
        elif step == "wait":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    journal.close()
    await following
    assert found == LINES[first:told]
    assert orjson.loads(journal.text()) == [orjson.loads(line) for line in LINES[:told]]


async def test_lines_equal_the_stored_events() -> None:
    journal = EventBuffer(nothing)
    for event in EVENTS:
        journal(event)
    assert journal.text() == encode(EVENTS).text
    assert b"sentinel" not in journal.text()


async def test_a_thread_may_tell_while_others_follow() -> None:
    journal = EventBuffer(nothing)
    count = 3000

    def tell() -> None:
        for turn in range(count):
            journal(Called(turn))
        loop.call_soon_threadsafe(journal.close)

    async def follow(first: int) -> list[bytes]:
        return [line async for lines in journal.follow(first) for line in lines]

    loop = asyncio.get_running_loop()
    thread = threading.Thread(target=tell)
    followers = [asyncio.create_task(follow(first)) for first in (0, 0, 1000)]
    await asyncio.sleep(0)
    thread.start()
    one, two, three = await asyncio.gather(*followers)
    thread.join()
    assert one == two == [encode_one(turn, Called(turn)) for turn in range(count)]
    assert three == one[1000:]


class Busy(Image):
    """A picture during whose second look the rollout goes on, as a thread may at any time."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(np.zeros((1, 1, 3), np.uint8))
        self.meanwhile, self.looks = meanwhile, 0

    @property
    def hash(self) -> str:
        self.looks += 1
        if self.looks == 2:
            self.meanwhile()
        return super().hash


async def test_a_picture_is_shown_before_the_event_that_names_it_is_read() -> None:
    shown: dict[str, bytes] = {}
    journal = EventBuffer(shown.update)
    journal(Observed([Busy(lambda: journal(EVENTS[1]))], []))
    lines = journal.lines
    assert [orjson.loads(line)["seq"] for line in lines] == [0, 1]
    assert all(orjson.loads(line)["observation"][-1]["image"] in shown for line in lines)


async def test_pictures_of_a_worker_come_with_its_events() -> None:
    shown: dict[str, bytes] = {}
    journal = EventBuffer(shown.update)
    journal.take(b",".join(LINES[:2]), {"abc": b"png"})
    journal(EVENTS[2])  # the front adds its events to what a worker told
    journal(EVENTS[1])
    assert journal.lines[:3] == LINES[:3]
    assert orjson.loads(journal.lines[3])["seq"] == 3
    assert shown["abc"] == b"png"


async def test_loaded_events_replace_earlier_events() -> None:
    journal = EventBuffer(nothing)
    journal(EVENTS[0])
    journal.load(LINES)
    journal.close()
    followed = [[line async for lines in journal.follow(first) for line in lines] for first in (0, 5, 99)]
    assert followed == [LINES, LINES[5:], []]


@pytest.mark.parametrize("reads", [0, 1])
async def test_disconnected_follower_leaves_nothing_behind(reads: int) -> None:
    before, journal = asyncio.all_tasks(), EventBuffer(nothing)
    journal(EVENTS[0])
    follower = journal.follow()
    for _ in range(reads):
        await anext(follower)
    waiting = asyncio.create_task(anext(follower, None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await follower.aclose()
    journal(EVENTS[1])
    journal.close()
    assert [line async for lines in journal.follow() for line in lines] == LINES[:2]
    assert asyncio.all_tasks() == before


def test_a_thread_may_tell_after_the_loop_is_gone() -> None:
    async def work() -> EventBuffer:
        journal = EventBuffer(nothing)
        following = asyncio.create_task(anext(journal.follow()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        following.cancel()
        return journal

    journal = asyncio.run(work())
    journal(EVENTS[0])
    assert journal.lines == LINES[:1]

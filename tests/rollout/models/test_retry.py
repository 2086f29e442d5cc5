"""What is asked again, how long is waited, and when it is enough. Time is the test's own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.rollout.models.attempts import (
    KINDS,
    LONGEST_RETRY_AFTER_SECONDS,
    LONGEST_WAIT_SECONDS,
    MOST_ATTEMPTS,
    AttemptFailed,
    persist,
    retry_after,
    wait_seconds,
)
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed


class HeldTime:
    """A clock that goes on only when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    monotonic = now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def run(
    outcomes: Sequence[AttemptFailed | ChatReply], *, seconds: float = 1000.0, took: float = 1.0
) -> tuple[ChatReply, HeldTime, list[float]]:
    """The reply, the clock, and how much time was left at each attempt."""
    time, lefts, pending = HeldTime(), [], list(outcomes)

    async def once(attempt: int, left: float) -> ChatReply:
        assert attempt == len(lefts) + 1
        lefts.append(left)
        time.at += took
        outcome = pending.pop(0)
        if isinstance(outcome, AttemptFailed):
            raise outcome
        return outcome

    reply = asyncio.run(persist(once, place="h", seconds=seconds, rng=random.Random(1), clock=time, sleep=time.sleep))
    return reply, time, lefts


def failing(outcomes: Sequence[AttemptFailed], **more: float) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        run(outcomes, **more)
    return caught.value


def good() -> ChatReply:
    return ChatReply({"role": "assistant", "content": "x"})


def test_the_first_answer_is_taken() -> None:
    reply, time, lefts = run([good()])
    assert (reply.attempts, reply.retries, time.slept, lefts) == (1, [], [], [1000.0])


def test_retries_are_recorded_and_count_towards_the_deadline() -> None:
    reply, time, lefts = run(
        [AttemptFailed("rate_limited", "answered 429", status=429), AttemptFailed("dropped", "dropped"), good()]
    )
    assert reply.attempts == 3
    assert reply.retries == [{"kind": "rate_limited", "status": 429}, {"kind": "dropped"}]
    assert lefts[2] == pytest.approx(1000 - 2 - sum(time.slept))


@pytest.mark.parametrize("kind", [kind for kind, known in KINDS.items() if known.again])
def test_six_attempts_are_enough(kind: str) -> None:
    failed = failing([AttemptFailed(kind, "failed so") for _ in range(9)])
    assert failed.failure.boundary == "policy"
    assert failed.failure.code == KINDS[kind].code
    assert failed.failure.metadata["attempts"].split(", ") == [kind] * MOST_ATTEMPTS
    assert "was called 6 times." in failed.failure.message


@pytest.mark.parametrize("kind", [kind for kind, known in KINDS.items() if not known.again])
def test_other_failures_are_never_retried(kind: str) -> None:
    failed = failing(
        [AttemptFailed(kind, "failed so", status=400, excerpt="because"), AttemptFailed("dropped", "not reached")]
    )
    assert failed.failure.metadata == {"endpoint": "h", "attempts": f"{kind} 400", "status": "400"}
    assert failed.failure.message == "The model at h failed so: because."
    assert failed.failure.hint
    assert failed.overflow is (kind == "overflow")
    assert failed.failure.boundary == ("timeout" if kind == "out_of_time" else "policy")


@given(st.integers(1, 6), st.one_of(st.none(), st.floats(0, 1e9)), st.integers())
def test_the_wait(attempt: int, asked: float | None, seed: int) -> None:
    wait = wait_seconds(AttemptFailed("rate_limited", "", retry_after=asked), attempt, random.Random(seed))
    assert 0 <= wait <= LONGEST_RETRY_AFTER_SECONDS + LONGEST_WAIT_SECONDS / 2
    if asked is None:
        assert wait <= min(LONGEST_WAIT_SECONDS, 0.5 * 2 ** (attempt - 1))
    else:
        assert wait >= min(asked, LONGEST_RETRY_AFTER_SECONDS)


@pytest.mark.parametrize("retry_after", [None, 5.0, 29.0])
def test_no_attempt_is_waited_for_that_the_time_has_no_room_for(retry_after: float | None) -> None:
    limited = AttemptFailed("rate_limited", "answered 429", status=429, retry_after=retry_after)
    failed = failing([limited] * MOST_ATTEMPTS, seconds=4.0, took=0.0)
    assert failed.failure.code == "model_rate_limited"
    assert failed.failure.metadata["attempts"].count("429") < MOST_ATTEMPTS


@pytest.mark.parametrize(("retry_after", "low", "high"), [(None, 0.0, 2.0), (5.0, 5.0, 6.0)])
def test_callers_that_failed_together_do_not_come_back_together(
    retry_after: float | None, low: float, high: float
) -> None:
    failed = AttemptFailed("rate_limited", "", retry_after=retry_after)
    waits = [wait_seconds(failed, 3, random.Random(seed)) for seed in range(200)]
    assert low <= min(waits) < low + 0.1 and high - 0.1 < max(waits) <= high
    assert len(set(waits)) == 200


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 40.0) == seconds


@given(st.text(max_size=40))
def test_no_header_breaks_it(text: str) -> None:
    found = retry_after({"retry-after": text}, 0.0)
    assert found is None or found >= 0


@pytest.mark.anyio
async def test_cancelled_call_is_not_retried() -> None:
    calls = 0

    async def once(attempt: int, left: float) -> ChatReply:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await persist(once, place="h", seconds=5, rng=random.Random(0))
    assert calls == 1

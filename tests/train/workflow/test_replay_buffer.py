"""The laws of the replay buffer, on the class itself."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import BadArgument
from taskapp_kit.services.encoding import decode, encode
from taskapp_kit.train.workflow import Episode, ReplayBuffer

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 6)),
        st.tuples(st.just("sample"), st.integers(0, 8), st.integers(1, 4)),
    ),
    max_size=60,
)


def episode(number: int, version: int | None = 0) -> Episode:
    return Episode([1, 2], [number], float(number), version=version)


def names(batch: list[Episode] | None) -> list[int]:
    return [] if batch is None else [each.response_ids[0] for each in batch]


@given(operations=OPERATIONS, max_uses=st.integers(1, 3), age=st.integers(0, 3), capacity=st.integers(4, 12))
def test_no_episode_is_too_old_or_used_too_often_and_none_is_lost_uncounted(
    operations: list[tuple[object, ...]], max_uses: int, age: int, capacity: int
) -> None:
    buffer = ReplayBuffer(1, max_policy_age=age, max_uses=max_uses, capacity=capacity)
    versions: list[int] = []
    uses: Counter[int] = Counter()
    for kind, *arguments in operations:
        if kind == "add":
            buffer.add(episode(len(versions), arguments[0]))
            versions.append(arguments[0])
            continue
        current, size = arguments
        before = buffer.size()
        batch = buffer.sample(current, size)
        chosen = names(batch)
        if batch is None:
            assert buffer.size() < size, "a batch that could be made is made"
            assert before >= buffer.size()
        else:
            assert len(chosen) == len(set(chosen)) == size
        assert all(versions[each] >= current - age for each in chosen)
        uses.update(chosen)
    counts = buffer.counts()
    assert max(uses.values(), default=0) <= max_uses
    assert counts.added == len(versions) and counts.used == uses.total()
    used_up = sum(count == max_uses for count in uses.values())
    assert counts.added == buffer.size() + counts.too_old + counts.overflow + used_up
    assert buffer.size() <= capacity


@given(operations=OPERATIONS, seed=st.integers(0, 3))
def test_a_saved_buffer_goes_on_as_the_one_that_was_saved(operations: list[tuple[object, ...]], seed: int) -> None:
    one, two = ReplayBuffer(2, seed=seed, max_uses=2), ReplayBuffer(2, seed=seed, max_uses=2)
    for number, (kind, *arguments) in enumerate(operations):
        for buffer in (one, two):
            if kind == "add":
                buffer.add(episode(number, arguments[0]))
        if kind == "sample":
            state = json.loads(json.dumps(two.state_dict()))
            two = ReplayBuffer(2, seed=seed, max_uses=2)
            two.load_state_dict(state)
            assert names(one.sample(*arguments)) == names(two.sample(*arguments))
    assert one.counts() == two.counts()


def test_one_without_a_version_is_of_the_last_version_that_was_asked_for() -> None:
    buffer = ReplayBuffer(1, max_policy_age=1)
    assert buffer.sample(5) is None
    buffer.add(episode(0, None))
    assert buffer.sample(7) is None and buffer.counts().too_old == 1
    buffer.add(episode(1, None))
    assert names(buffer.sample(8)) == [1]


def test_an_undefined_reward_is_counted_and_never_a_zero() -> None:
    buffer = ReplayBuffer(1)
    buffer.add(Episode([1], [2], None))
    assert buffer.sample() is None and buffer.counts().without_reward == 1


def test_the_draw_depends_on_the_seed_alone() -> None:
    def drawn(seed: int) -> list[int]:
        buffer = ReplayBuffer(5, seed=seed)
        for number in range(50):
            buffer.add(episode(number))
        return names(buffer.sample())

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_wrong_value_says_what_was_expected() -> None:
    buffer = ReplayBuffer(1)
    with pytest.raises(BadArgument, match="Expected an Episode"):
        buffer.add({"reward": 1.0})  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="which is 10000"):
        buffer.sample(batch_size=20_000)
    with pytest.raises(BadArgument, match="result of state_dict"):
        buffer.load_state_dict({"episodes": [{}]})
    with pytest.raises(BadArgument, match="at least batch_size"):
        ReplayBuffer(10, capacity=4)


@pytest.mark.parametrize(
    "members",
    [
        {"prompt_ids": []},
        {"response_ids": ["a"]},
        {"reward": float("nan")},
        {"mask": [True, True]},
        {"mask": [False]},
        {"log_probs": [float("-inf")]},
        {"version": -1},
    ],
)
def test_an_episode_that_cannot_be_trained_on_is_refused_where_it_is_made(members: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        Episode(**{"prompt_ids": [1], "response_ids": [2], "reward": 1.0, **members})  # type: ignore[arg-type]


def test_an_episode_travels_as_plain_values() -> None:
    one = Episode([1], (2, 3), 1.0, [True, False], [-0.5, 0.0], 3, "g")
    assert decode(encode(one)) == one

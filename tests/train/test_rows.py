"""Laws of turns and rows: every delivered turn is trained on once, as it was sampled, and nothing else is."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.rendering.llama3 import Llama3
from taskapp_kit.train.rows import RowOptions, TrainingBatch, TrainingEpisode, training_batch
from taskapp_kit.train.turns import NOT_SAMPLED, RecordedTurn, TrainingRow
from tests.train.byte_tokenizer import LLAMA3, QWEN, ByteTokenizer
from tests.train.conversations import CONVERSATIONS, NEW, PARALLEL, TEXTS, TOOLS

DEFAULT = RowOptions()
IDS = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def turn(prompt_ids: tuple[int, ...], token_ids: Sequence[int] = (5,), **members: Any) -> RecordedTurn:
    """A turn of version 0 that was delivered and not cut, all tokens of one log-probability."""
    defaults = {"log_probs": (-1.0,) * len(token_ids), "version": 0, "finish_reason": "stop", "delivered": True}
    return RecordedTurn(prompt_ids=prompt_ids, token_ids=tuple(token_ids), seconds=0.1, **{**defaults, **members})


@st.composite
def attempts(draw: st.DrawFn) -> tuple[RecordedTurn, ...]:
    """Turns that continue any earlier one or begin anew; some cut, undelivered, empty, without a log-probability."""
    turns: list[RecordedTurn] = []
    for index in range(draw(st.integers(0, 6))):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        before = () if parent is None else turns[parent].ids
        sampled = draw(IDS)
        log_probs = tuple(-0.5 - index - place / 10 for place in range(len(sampled)))
        turns.append(
            turn(
                before + draw(IDS),
                sampled,
                log_probs=log_probs[: -1 if sampled and draw(st.integers(0, 5)) == 0 else None],
                version=draw(st.integers(0, 3)),
                finish_reason=draw(st.sampled_from(("stop", "length", "tool_calls"))),
                delivered=draw(st.integers(0, 4)) > 0,
                parent=parent,
            )
        )
    return tuple(turns)


def batch_of(turns: Sequence[RecordedTurn], reward: float | None = 1.0, options: RowOptions = DEFAULT) -> TrainingBatch:
    """The rows of an episode, beside another one in its group with the reward 0 and no turns."""
    episode = TrainingEpisode("r", "g", tuple(turns), reward, (0.0,) * len(turns))
    return training_batch([episode, TrainingEpisode("other", "g", (), 0.0)], options)


def check_that_each_turn_is_trained_on_once(turns: Sequence[RecordedTurn], rows: Sequence[TrainingRow]) -> None:
    """Every token of every turn that can be trained on, in one row, as sampled; and no other token."""
    for turn in turns:
        if turn.exclusion is None:
            start, end = len(turn.prompt_ids), len(turn.ids)
            holding = [row for row in rows if row.ids[:end] == turn.ids and row.log_probs[start:end] == turn.log_probs]
            assert holding, "no row has the turn with its prompt and its log-probabilities"
            assert any(
                all(row.mask[start:end]) and set(row.versions[start:end]) == {turn.version} for row in holding
            ), "the turn is not trained on in these places"
    trained = sum(len(turn.token_ids) for turn in turns if turn.exclusion is None)
    assert sum(row.trained for row in rows) == trained, "more or less is trained on than was sampled"
    for row in rows:
        for place, sampled in enumerate(row.mask):
            assert sampled or (row.log_probs[place], row.versions[place], row.advantages[place]) == (
                0.0,
                NOT_SAMPLED,
                0.0,
            )


@given(turns=attempts(), credit=st.sampled_from(("episode", "turn")))
def test_rows_carry_the_rewards_of_their_turns(turns: tuple[RecordedTurn, ...], credit: Any) -> None:
    """Their spans are the mask, each turn is in one row, and the rewards from the first trained turn on are in them."""
    given_rewards = tuple(float(2**index) for index in range(len(turns)))
    episode = TrainingEpisode("r", "g", turns, 5.0, given_rewards, truncated=True)
    rows = training_batch([episode], RowOptions(credit=credit)).rows
    for row in rows:
        assert row.truncated
        assert [at for turn in row.turns for at in range(turn.start, turn.stop)] == [
            at for at, on in enumerate(row.mask) if on
        ]
    found = sorted((turn for row in rows for turn in row.turns), key=lambda turn: turn.index)
    trained = [index for index, turn in enumerate(turns) if turn.exclusion is None]
    assert [turn.index for turn in found] == trained
    assert [turn.last for turn in found] == [index == trained[-1] for index in trained]
    if trained:
        expected = sum(given_rewards[trained[0] :]) if credit == "turn" else 5.0
        assert sum(turn.reward for turn in found) == expected
        assert credit == "turn" or found[-1].reward == 5.0


@given(turns=attempts())
def test_every_turn_is_trained_on_once_and_nothing_else(turns: tuple[RecordedTurn, ...]) -> None:
    batch = batch_of(turns)
    check_that_each_turn_is_trained_on_once(turns, batch.rows)
    assert batch.excluded == Counter(turn.exclusion for turn in turns if turn.exclusion)
    assert batch.turns == sum(turn.exclusion is None for turn in turns)
    assert batch.truncated == sum(turn.finish_reason == "length" for turn in turns)
    assert batch.detached == 0


@given(turns=attempts())
def test_a_mask_that_is_shifted_by_one_token_breaks_this_law(turns: tuple[RecordedTurn, ...]) -> None:
    """The control: the law above would notice."""
    rows = batch_of(turns).rows
    for index, row in enumerate(rows):
        for shifted in ((*row.mask[1:], False), (False, *row.mask[:-1])):
            if shifted[0] or shifted == row.mask:
                continue
            broken = [*rows[:index], dataclasses.replace(row, mask=shifted), *rows[index + 1 :]]
            with pytest.raises(AssertionError):
                check_that_each_turn_is_trained_on_once(turns, broken)


@given(turns=attempts(), reward=st.floats(0.1, 1))
def test_an_episodes_weight_does_not_grow_with_its_turns_or_forks(
    turns: tuple[RecordedTurn, ...], reward: float
) -> None:
    rows = batch_of(turns, reward).rows
    if rows:
        assert math.isclose(math.fsum(row.weight for row in rows), 1.0)
        means = [row.weight * math.fsum(row.advantages) / row.trained for row in rows]
        assert math.isclose(math.fsum(means), reward / 2), "the mean over rows is the episode's advantage"


@given(turns=attempts())
def test_no_row_is_there_for_nothing(turns: tuple[RecordedTurn, ...]) -> None:
    for row in batch_of(turns).rows:
        assert row.mask[-1], "what follows the last trained token is left out"


@given(turns=attempts())
def test_a_turn_that_was_not_delivered_leaves_no_trace_but_its_count(turns: tuple[RecordedTurn, ...]) -> None:
    """Asked once more at the end, and the answer lost: the rows are the same."""
    lost = turn((1, 2), delivered=False)
    if turns:
        lost = dataclasses.replace(lost, prompt_ids=(*turns[-1].ids, 1), parent=len(turns) - 1)
    assert batch_of((*turns, lost)).rows == batch_of(turns).rows
    assert batch_of((*turns, lost)).excluded["not_delivered"] == batch_of(turns).excluded["not_delivered"] + 1


@given(turns=attempts())
def test_truncated_turns_can_be_left_out(turns: tuple[RecordedTurn, ...]) -> None:
    batch = batch_of(turns, options=RowOptions(mask_truncated=True))
    check_that_each_turn_is_trained_on_once(
        [dataclasses.replace(turn, delivered=turn.delivered and turn.finish_reason != "length") for turn in turns],
        batch.rows,
    )


@given(turns=attempts())
def test_a_failed_episode_has_no_rows_and_no_zero(turns: tuple[RecordedTurn, ...]) -> None:
    batch = batch_of(turns, None)
    assert (batch.rows, batch.failed, batch.episodes) == ([], 1, 1)
    assert batch.excluded == Counter()
    assert batch.without_spread == 1


def test_a_turn_that_does_not_continue_its_parent_is_a_root() -> None:
    first, rewritten = turn((1,), (2, 3)), turn((1, 2, 9), (4,), parent=0)
    batch = batch_of((first, rewritten))
    assert batch.detached == 1
    assert [row.ids for row in batch.rows] == [(1, 2, 3), (1, 2, 9, 4)]
    assert [row.mask for row in batch.rows] == [(False, True, True), (False, False, False, True)]
    check_that_each_turn_is_trained_on_once((first, rewritten), batch.rows)


def test_a_fork_trains_on_the_shared_turn_once() -> None:
    shared, left = turn((1,), (2,)), turn((1, 2, 7), (3, 3), parent=0)
    right = turn((1, 2, 7), (4,), parent=0, version=1)
    batch = batch_of((shared, left, right))
    assert [row.mask for row in batch.rows] == [(False, True, False, True, True), (False, False, False, True)]
    assert [row.weight for row in batch.rows] == [0.75, 0.25]
    assert batch.rows[1].versions == (NOT_SAMPLED, NOT_SAMPLED, NOT_SAMPLED, 1)
    assert batch.forks == 1


def test_credit_per_turn_compares_turns_of_one_index() -> None:
    two = (turn((1,)), turn((1, 5, 1), parent=0))
    episodes = [
        TrainingEpisode("a", "g", two, 1.0, (0.0, 1.0)),
        TrainingEpisode("b", "g", two, 0.0, (0.0, 0.0)),
        TrainingEpisode("c", "g", two[:1], 0.0, (1.0,)),
        TrainingEpisode("d", "g", two[:1], None),
    ]
    batch = training_batch(episodes, RowOptions(credit="turn", discount=0.5))
    advantages = [[value for value in row.advantages if value] for row in batch.rows]
    assert advantages == [[0.5], [-0.5, -0.5], [0.5]]
    assert batch.rows[0].advantages == (0.0, 0.0, 0.0, 0.5), "half of the return of 1 is the mean of the first turns"
    with pytest.raises(ValueError, match="one reward for each turn"):
        training_batch([dataclasses.replace(episodes[0], turn_rewards=())], RowOptions(credit="turn"))


def test_groups_without_spread_are_counted_and_stay_in_the_batch() -> None:
    one = (turn((1,)),)
    episodes = [TrainingEpisode(f"{group}{sample}", group, one, 0.1) for group in "ab" for sample in range(3)]
    episodes.append(TrainingEpisode("b3", "b", one, 0.2))
    batch = training_batch(episodes, RowOptions())
    assert (batch.groups, batch.without_spread, len(batch.rows), batch.episodes) == (2, 1, 7, 7)
    assert not any(any(row.advantages) for row in batch.rows if row.group == "a")


def test_names_of_episodes_are_different() -> None:
    with pytest.raises(ValueError, match="same name"):
        training_batch([TrainingEpisode("a", "g", (), 0.0)] * 2, RowOptions())


def test_an_episode_without_turns_counts_in_the_mean_and_has_no_rows() -> None:
    batch = batch_of(())
    assert (batch.episodes, batch.without_rows, batch.rows) == (2, 2, [])


@pytest.mark.parametrize(
    "renderer", [ChatMl(ByteTokenizer(QWEN)), Llama3(ByteTokenizer(LLAMA3))], ids=["chatml", "llama3"]
)
@given(
    conversation=CONVERSATIONS,
    tools=TOOLS,
    answers=st.lists(st.tuples(st.one_of(TEXTS, st.just(PARALLEL)), st.booleans(), NEW), min_size=1, max_size=4),
)
def test_only_what_the_policy_said_is_trained_on(
    renderer: ChatMl | Llama3, conversation: list[Any], tools: list[Any], answers: list[tuple[str, bool, list[Any]]]
) -> None:
    """Messages, tool results, replies of other models, the newline after an answer, and the end that a cut answer lacks."""
    end = renderer.tokenizer.token(renderer.closing[0])
    assert end is not None
    prompt, turns, said = renderer.prompt(conversation, tools), [], []
    for index, (text, cut, new) in enumerate(answers):
        ids = (*renderer.tokenizer.encode(text), *([] if cut else [end]))
        said += ids
        finish = "length" if cut else "stop"
        turns.append(turn(prompt, ids, finish_reason=finish, parent=index - 1 if index else None))
        prompt = renderer.extend(prompt + ids, new)
    rows = batch_of(turns).rows
    assert len(rows) == (1 if said else 0)
    for row in rows:
        assert [token for token, trained in zip(row.ids, row.mask, strict=True) if trained] == said
        assert prompt[: len(row.ids)] == row.ids, "the next prompt begins with the row"


ROW = TrainingRow(
    ids=(1, 2, 3),
    mask=(False, False, True),
    log_probs=(0.0, 0.0, -1.0),
    versions=(NOT_SAMPLED, NOT_SAMPLED, 7),
    advantages=(0.0, 0.0, 0.5),
    group="g",
    rollout="r",
)


def test_a_turn_says_why_it_is_never_trained_on() -> None:
    whole = turn((1, 2), (3, 4))
    assert whole.exclusion is None
    assert whole.ids == (1, 2, 3, 4)
    wrong = {
        "not_delivered": {"delivered": False},
        "length_mismatch": {"log_probs": (-0.5,)},
        "no_tokens": {"token_ids": (), "log_probs": ()},
        "no_prompt": {"prompt_ids": ()},
        "invalid_log_prob": {"log_probs": (-0.5, math.nan)},
    }
    for reason, changes in wrong.items():
        assert dataclasses.replace(whole, **changes).exclusion == reason


@pytest.mark.parametrize("field", ["ids", "mask", "log_probs", "versions", "advantages"])
def test_a_row_has_one_entry_for_each_token(field: str) -> None:
    with pytest.raises(ValueError, match="3"):
        dataclasses.replace(ROW, **{field: getattr(ROW, field)[1:]})


def test_a_row_never_trains_on_its_first_token() -> None:
    with pytest.raises(ValueError, match="first"):
        dataclasses.replace(ROW, mask=(True, False, True))
    assert ROW.trained == 1

"""Converts the recorded turns of finished episodes into the rows of an update.

The turns of an attempt form a forest: a turn continues another turn or starts a new tree. Each branch becomes a row. A
turn on several branches is trained on only in the first of these branches, so that no turn counts twice.

    turns: A -> B -> C        rows: A B C   trained on A, B, C
             \\-> D                  A D     trained on D
           E                        E       trained on E
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from taskapp_kit.train.advantages import Scale, group_advantages, returns_to_go, turn_advantages
from taskapp_kit.train.turns import NOT_SAMPLED, RecordedTurn, TrainedTurn, TrainingRow


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """A finished attempt.

    Attributes:
        reward: The episode's reward, or None if the episode failed.
        turn_rewards: The reward of each turn. Only used with the credit `turn`.
        truncated: Whether a limit ended the episode, such as the number of steps.
    """

    rollout: str
    group: str
    turns: tuple[RecordedTurn, ...]
    reward: float | None
    turn_rewards: tuple[float, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How episodes become training rows.

    Attributes:
        scale: The divisor of advantages.
        credit: `episode` gives all tokens of an episode the same advantage. `turn` compares a turn's discounted return
            with the returns of the turns at the same index in the group's other episodes.
        discount: The discount per turn, with credit `turn`.
        mask_truncated: Whether turns that `max_tokens` ended are excluded from training.
    """

    scale: Scale = "none"
    credit: Literal["episode", "turn"] = "episode"
    discount: float = 1.0
    mask_truncated: bool = False


@dataclass(slots=True)
class TrainingBatch:
    """The rows of an update, with counts of omitted episodes, groups and turns. Turns of failed episodes are not counted.

    Attributes:
        episodes: Number of episodes with a reward.
        failed: Number of episodes without a reward.
        without_rows: Number of episodes with a reward but without a turn to train on.
        groups: Number of groups.
        without_spread: Number of groups that have no reward, or whose advantages are all 0. Their rows are still in
            `rows`.
        turns: Number of turns that are trained on.
        truncated: Number of turns that `max_tokens` ended, whether or not they are trained on.
        forks: Number of rows beyond the first row of each episode.
        detached: Number of turns whose prompt does not start with the tokens of the turn that they continue. They
            become new roots.
        excluded: Number of turns that are not trained on, by reason (an `Exclusion`, or `truncated`).
    """

    rows: list[TrainingRow] = field(default_factory=list)
    episodes: int = 0
    failed: int = 0
    without_rows: int = 0
    groups: int = 0
    without_spread: int = 0
    turns: int = 0
    truncated: int = 0
    forks: int = 0
    detached: int = 0
    excluded: Counter[str] = field(default_factory=Counter)


def training_batch(episodes: Sequence[TrainingEpisode], options: RowOptions) -> TrainingBatch:
    """Return the rows of the episodes, in the order of the episodes.

    Raises ValueError if two episodes have the same name, if a reward is not finite, or if the credit is `turn` and an
    episode does not have one reward for each turn.
    """
    if len({episode.rollout for episode in episodes}) != len(episodes):
        raise ValueError("two episodes of a batch have the same name. Expected unique names.")
    batch = TrainingBatch()
    grouped: dict[str, list[TrainingEpisode]] = {}
    for episode in episodes:
        grouped.setdefault(episode.group, []).append(episode)
    trained = {episode.rollout: _trained_turns(episode, options, batch) for episode in episodes}
    advantages = _advantages(grouped, trained, options)
    batch.groups = len(grouped)
    batch.without_spread = sum(
        not any(any(advantages.get(episode.rollout, ())) for episode in group) for group in grouped.values()
    )
    for episode in episodes:
        if episode.reward is None:
            batch.failed += 1
            continue
        values = dict(zip(trained[episode.rollout], advantages[episode.rollout], strict=True))
        rows, detached = branch_rows(episode, values, _rewards(episode, trained[episode.rollout], options))
        batch.rows += rows
        batch.episodes += 1
        batch.without_rows += not rows
        batch.turns += len(values)
        batch.forks += max(len(rows) - 1, 0)
        batch.detached += detached
    return batch


def branch_rows(
    episode: TrainingEpisode, advantages: Mapping[int, float], rewards: Mapping[int, float]
) -> tuple[list[TrainingRow], int]:
    """Return a row for each branch that ends in a turn to train on, and the number of detached turns.

    `advantages` maps the index of each turn to train on to its advantage. Other turns are context, and are omitted at
    the end of a branch. `rewards` maps the same indices to rewards. A missing index means 0.0.
    """
    turns = episode.turns
    parents = [_parent(turns, index) for index in range(len(turns))]
    detached = sum(parent is None and turn.parent is not None for parent, turn in zip(parents, turns, strict=True))
    paths = {index: _path(parents, index) for index in advantages}
    inner = {index for path in paths.values() for index in path[:-1]}
    total = sum(len(turns[index].token_ids) for index in advantages)
    rows: list[TrainingRow] = []
    done: set[int] = set()
    for leaf in sorted(advantages.keys() - inner):
        fresh = [index for index in paths[leaf] if index in advantages and index not in done]
        done.update(fresh)
        rows.append(_row(episode, leaf, {index: advantages[index] for index in fresh}, rewards, total, max(advantages)))
    return rows, detached


def _row(
    episode: TrainingEpisode,
    leaf: int,
    advantages: Mapping[int, float],
    rewards: Mapping[int, float],
    total: int,
    last: int,
) -> TrainingRow:
    """Return the row of the branch that ends at the turn `leaf`. `last` is the episode's last turn to train on."""
    ids = episode.turns[leaf].ids
    mask, log_probs = [False] * len(ids), [0.0] * len(ids)
    versions, values = [NOT_SAMPLED] * len(ids), [0.0] * len(ids)
    turns = []
    for index, advantage in advantages.items():
        turn = episode.turns[index]
        count, start = len(turn.token_ids), len(turn.prompt_ids)
        sampled = slice(start, start + count)
        mask[sampled] = [True] * count
        log_probs[sampled] = turn.log_probs
        versions[sampled] = [turn.version] * count
        values[sampled] = [advantage] * count
        turns.append(TrainedTurn(index, start, start + count, rewards.get(index, 0.0), index == last))
    return TrainingRow(
        ids=ids,
        mask=tuple(mask),
        log_probs=tuple(log_probs),
        versions=tuple(versions),
        advantages=tuple(values),
        group=episode.group,
        rollout=episode.rollout,
        weight=sum(mask) / total,
        turns=tuple(turns),
        truncated=episode.truncated,
    )


def _trained_turns(episode: TrainingEpisode, options: RowOptions, batch: TrainingBatch) -> list[int]:
    """Return the indices of the turns to train on, and count the other turns in `batch`."""
    if episode.reward is None:
        return []
    trained = []
    for index, turn in enumerate(episode.turns):
        cut = turn.finish_reason == "length"
        batch.truncated += cut
        reason = turn.exclusion or ("truncated" if cut and options.mask_truncated else None)
        if reason is None:
            trained.append(index)
        else:
            batch.excluded[reason] += 1
    return trained


def _advantages(
    grouped: Mapping[str, Sequence[TrainingEpisode]], trained: Mapping[str, Sequence[int]], options: RowOptions
) -> dict[str, list[float]]:
    """Return, for each episode with a reward, the advantages of its turns to train on."""
    if options.credit == "turn":
        returns = {
            name: [_turn_returns(episode, trained[episode.rollout], options.discount) for episode in group]
            for name, group in grouped.items()
        }
        by_turn = turn_advantages(returns, options.scale)
    else:
        single = group_advantages(
            {name: [each.reward for each in group] for name, group in grouped.items()}, options.scale
        )
        by_turn = {
            name: [
                None if value is None else [value] * len(trained[episode.rollout])
                for episode, value in zip(group, single[name], strict=True)
            ]
            for name, group in grouped.items()
        }
    return {
        episode.rollout: values
        for name, group in grouped.items()
        for episode, values in zip(group, by_turn[name], strict=True)
        if values is not None
    }


def _rewards(episode: TrainingEpisode, trained: Sequence[int], options: RowOptions) -> dict[int, float]:
    """Return the rewards by turn: the episode's reward at the last turn or, with credit `turn`, each turn's own reward.

    The reward of a turn that is not trained on is added to the previous trained turn.
    """
    if options.credit == "episode":
        return {trained[-1]: episode.reward or 0.0} if trained else {}
    rewards: dict[int, float] = {}
    for index, reward in enumerate(episode.turn_rewards):
        if (place := bisect_right(trained, index)) > 0:
            rewards[trained[place - 1]] = rewards.get(trained[place - 1], 0.0) + reward
    return rewards


def _turn_returns(episode: TrainingEpisode, trained: Sequence[int], discount: float) -> list[float] | None:
    if episode.reward is None:
        return None
    if len(episode.turn_rewards) != len(episode.turns):
        raise ValueError(
            f"rollout {episode.rollout!r} has {len(episode.turn_rewards)} rewards for {len(episode.turns)} turns. "
            "Credit per turn requires one reward for each turn."
        )
    returns = returns_to_go(episode.turn_rewards, discount)
    return [returns[index] for index in trained]


def _parent(turns: Sequence[RecordedTurn], index: int) -> int | None:
    """Return the index of the turn whose tokens this turn's prompt starts with, or None for a root."""
    parent = turns[index].parent
    if parent is None or not 0 <= parent < index:
        return None
    before = turns[parent].ids
    return parent if turns[index].prompt_ids[: len(before)] == before else None


def _path(parents: Sequence[int | None], index: int) -> list[int]:
    """Return the indices of the turns from the root to this turn."""
    path: list[int] = []
    at: int | None = index
    while at is not None:
        path.append(at)
        at = parents[at]
    return path[::-1]

"""Episodes -> the rows of an update, by way of the turns that a job would have recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.rows import RowOptions, TrainingBatch, TrainingEpisode, training_batch
from taskapp_kit.train.turns import RecordedTurn
from taskapp_kit.train.workflow.episode import Episode

WITHOUT_GROUP = "batch"


def episode_rows(
    episodes: Sequence[Episode], options: RowOptions, updates_of: Callable[[int | None], int]
) -> tuple[TrainingBatch, set[str]]:
    """Return the rows, and the rollouts of those whose log-probabilities are not known: theirs are 0.0.

    updates_of: how many updates made the weights of an episode's version; raises BadArgument for an unknown one. Episodes
    without a group are compared with each other. Raises BadArgument when no episode can be trained on.
    """
    made = [_training_episode(number, each, updates_of) for number, each in enumerate(episodes)]
    batch = training_batch(made, options)
    if not batch.rows:
        raise BadArgument(
            f"None of the {len(episodes)} episodes can be trained on; expected at least one with a reward."
        )
    unknown = {one.rollout for one, each in zip(made, episodes, strict=True) if each.log_probs is None}
    return batch, unknown


def _training_episode(number: int, episode: Episode, updates_of: Callable[[int | None], int]) -> TrainingEpisode:
    group = WITHOUT_GROUP if episode.group is None else f"group {episode.group}"
    version = updates_of(None if episode.log_probs is None else episode.version)
    return TrainingEpisode(str(number), group, _turns(episode, version), episode.reward)


def _turns(episode: Episode, version: int) -> tuple[RecordedTurn, ...]:
    """A turn for each stretch of sampled tokens, which continues the one before."""
    response = list(episode.response_ids)
    mask = [True] * len(response) if episode.mask is None else episode.mask
    log_probs = [0.0] * len(response) if episode.log_probs is None else episode.log_probs
    turns: list[RecordedTurn] = []
    start = 0
    for sampled, tokens in groupby(mask):
        stop = start + len(list(tokens))
        if sampled:
            turns.append(
                RecordedTurn(
                    prompt_ids=(*episode.prompt_ids, *response[:start]),
                    token_ids=tuple(response[start:stop]),
                    log_probs=tuple(log_probs[start:stop]),
                    version=version,
                    finish_reason="stop",
                    seconds=0.0,
                    delivered=True,
                    parent=len(turns) - 1 if turns else None,
                )
            )
        start = stop
    return tuple(turns)

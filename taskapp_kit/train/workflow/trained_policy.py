"""The trainer's policy with torch. It updates weights, and writes weights and checkpoints to a shared directory."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from taskapp_kit.config import from_environment
from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.train.checkpoints.facts import CheckpointFacts, JobPosition
from taskapp_kit.train.checkpoints.state import (
    load_weights,
    restore_optimizer,
    restore_weights,
    state_parts,
    weights_part,
)
from taskapp_kit.train.checkpoints.stored import StoredCheckpoint, latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import described_by, find_model
from taskapp_kit.train.rows import RowOptions, TrainingBatch, TrainingEpisode, training_batch
from taskapp_kit.train.turns import UpdateMetrics, recorded_turns
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings
from taskapp_kit.train.workflow.episode import Episode
from taskapp_kit.train.workflow.shared_folder import WeightsFolder

WITHOUT_GROUP = "batch"


def episode_rows(
    episodes: Sequence[Episode], options: RowOptions, updates_of: Callable[[int | None], int]
) -> tuple[TrainingBatch, set[str]]:
    """Return the rows of the episodes, and the names of the rollouts whose log-probabilities are unknown and set to 0.0.

    Episodes without a group are compared with each other. `updates_of` returns the number of updates of an episode's
    version, and raises BadArgument for an unknown version. Raises BadArgument if no episode can be trained on.
    """
    made = [_training_episode(number, each, updates_of) for number, each in enumerate(episodes)]
    batch = training_batch(made, options)
    if not batch.rows:
        raise BadArgument(f"None of the {len(episodes)} episodes can be trained on. At least one needs a reward.")
    unknown = {converted.rollout for converted, each in zip(made, episodes, strict=True) if each.log_probs is None}
    return batch, unknown


def _training_episode(number: int, episode: Episode, updates_of: Callable[[int | None], int]) -> TrainingEpisode:
    group = WITHOUT_GROUP if episode.group is None else f"group {episode.group}"
    prompt, response = episode.prompt_ids, episode.response_ids
    turns = recorded_turns(
        [*prompt, *response],
        [*[False] * len(prompt), *([True] * len(response) if episode.mask is None else map(bool, episode.mask))],
        [*[0.0] * len(prompt), *(episode.log_probs or [0.0] * len(response))],
        version=updates_of(None if episode.log_probs is None else episode.version),
    )
    return TrainingEpisode(str(number), group, tuple(turns), episode.reward)


def device() -> str:
    """Return the device for models: a GPU if this process may use one, otherwise the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def use_threads(threads: int | None) -> None:
    """Set torch's number of threads. None uses half of the processors, because policy and trainer run concurrently."""
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // 2))


log = logging.getLogger("taskapp_kit.train")

JOB = "workflow"


class TrainedPolicy:
    """A trained policy, which continues from the state in its directory.

    Raises CheckpointError if another trainer uses the directory.
    """

    def __init__(
        self, model: str, settings: UpdateSettings, options: RowOptions, folder: Path, threads: int | None
    ) -> None:
        use_threads(threads)
        loaded = load_model(find_model(model, from_environment().models))
        policy = loaded.model.to(device())
        self._source = loaded.source
        self._options = options
        self._update = PolicyUpdate(policy, settings, reference=copy.deepcopy(policy) if settings.beta else None)
        self._weights = WeightsFolder(folder)
        self._pushed: list[tuple[int, int]] = []
        """The pushed versions in order, with their numbers of updates."""
        self._warned = False
        self._writer = CheckpointWriter(folder / "checkpoints")
        try:
            self._resume()
        except BaseException:
            self._writer.close()
            raise

    def learn(self, episodes: Sequence[Episode]) -> UpdateMetrics:
        """Make one update. Raises BadArgument if no episode can be trained on, and TrainingError if the update fails."""
        batch, unknown = episode_rows(episodes, self._options, self._updates_of)
        if unknown and not self._warned:
            self._warned = True
            log.warning(
                "episodes have no log-probabilities, so they are trained on as if the current policy had sampled them. "
                "Pass the log_probs and the version of the Response to Episode."
            )
        complete = [row for row in batch.rows if row.rollout not in unknown]
        completed = self._update.with_own_log_probs([row for row in batch.rows if row.rollout in unknown])
        return self._update.train_step([*complete, *completed])

    def push(self, version: int) -> str:
        """Write the weights and return the file's path.

        Raises BadArgument for an invalid version, and TrainingError if the weights cannot be written.
        """
        path = self._weights.path(version)
        if version == 0:
            raise BadArgument(
                "push_weights received the version 0, but a policy's initial weights have this version. Expected at least 1."
            )
        pushed = [*self._pushed, (version, self._update.version)]
        self._weights.write(pushed, weights_part(self._update.model))
        self._pushed = pushed
        return str(path)

    def save(self) -> str:
        """Save a checkpoint and return its path. Raises CheckpointError if it cannot be saved."""
        facts = CheckpointFacts(
            job=JOB,
            position=JobPosition(self._update.version, 0),
            weights_version=self._update.version,
            origin=self._source.origin,
            config={"pushed": [list(each) for each in self._pushed]},
            seeds={},
        )
        parts = {**described_by(self._source), **state_parts(self._update.model, self._update.optimizer)}
        return str(self._writer.save(facts, parts).path)

    def restore(self) -> int:
        """Restore the last complete checkpoint. Return its number of updates. Raises CheckpointError if none exists."""
        checkpoint = latest_checkpoint(self._writer.root)
        if checkpoint is None:
            raise CheckpointError(f"{self._writer.root} contains no checkpoint.", hint="Call trainer.save first.")
        self._take(checkpoint)
        return self._update.version

    def close(self) -> None:
        """Unlock the directory for other trainers."""
        self._writer.close()

    def _resume(self) -> None:
        pushed = self._weights.pushed()
        checkpoint = latest_checkpoint(self._writer.root)
        if checkpoint is not None and (not pushed or checkpoint.facts.weights_version >= pushed[-1][1]):
            self._take(checkpoint)
            log.warning("the trainer continues from the checkpoint %s", checkpoint.path)
        elif pushed:
            version, updates = pushed[-1]
            path = self._weights.existing(version)
            self._update.model.load_state_dict(load_weights(self._update.model, path))
            self._update.version, self._pushed = updates, pushed
            log.warning("the trainer continues from the pushed weights %s, without the optimizer's state", path)

    def _take(self, checkpoint: StoredCheckpoint) -> None:
        restore_weights(self._update.model, checkpoint)
        restore_optimizer(self._update.model, self._update.optimizer, checkpoint)
        self._update.version = checkpoint.facts.weights_version
        self._pushed = [(version, updates) for version, updates in checkpoint.facts.config["pushed"]]

    def _updates_of(self, version: int | None) -> int:
        if version is None:
            return self._update.version
        updates = {0: 0, **dict(self._pushed)}
        if version not in updates:
            raise BadArgument(
                f"An episode was sampled by version {version}, which this trainer has not pushed. Expected 0 or a pushed "
                f"version. Number of pushed versions: {len(self._pushed)}."
            )
        return updates[version]

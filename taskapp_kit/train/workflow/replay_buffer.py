"""`ReplayBuffer`, a service that stores episodes until they are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from taskapp_kit.errors import BadArgument
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.services import Actor, endpoint
from taskapp_kit.train.workflow.episode import Episode


@dataclass(slots=True)
class BufferedEpisode:
    """An episode in the buffer. Its age counts from `version`, and `uses` is the number of batches that contained it."""

    episode: Episode
    version: int
    uses: int = 0


@dataclass(slots=True)
class BufferCounts:
    """Counts of episodes.

    Attributes:
        added: Number of episodes that were stored.
        without_reward: Number of episodes with an undefined reward. They are not stored.
        used: Number of episodes in batches. An episode counts once for each batch.
        too_old: Number of episodes that were removed because of `max_policy_age`.
        overflow: Number of episodes that were removed because of `capacity`.
    """

    added: int = 0
    without_reward: int = 0
    used: int = 0
    too_old: int = 0
    overflow: int = 0


class ReplayBuffer(Actor):
    """A buffer of episodes for training, in one replica: `ReplayBuffer.as_service(batch_size=32)`.

    A restarted replica is empty. `state_dict` and `load_state_dict` save and restore the episodes.

    Args:
        batch_size: The default size of a batch.
        max_policy_age: The largest allowed difference between the current version and an episode's version. Older
            episodes are removed. None removes no episodes.
        max_uses: The maximum number of batches that contain an episode.
        capacity: The maximum number of episodes. When it is exceeded, the oldest episode is removed.
        seed: Determines the random stream of `sample`.

    Raises:
        BadArgument: A number is too small, or `batch_size` exceeds `capacity`.
    """

    def __init__(
        self,
        batch_size: int = 32,
        *,
        max_policy_age: int | None = 1,
        max_uses: int = 1,
        capacity: int = 10_000,
        seed: int | str = 0,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("max_uses", max_uses), ("capacity", capacity)):
            _check_number(name, value, 1)
        if max_policy_age is not None:
            _check_number("max_policy_age", max_policy_age, 0)
        if batch_size > capacity:
            raise BadArgument(
                f"`capacity` is {capacity}, but `batch_size` is {batch_size}. Expected a capacity of at least batch_size."
            )
        self._batch_size = batch_size
        self._max_policy_age = max_policy_age
        self._max_uses = max_uses
        self._capacity = capacity
        self._seed = seed
        self._episodes: list[BufferedEpisode] = []
        self._newest = 0
        self._draws = 0
        self._counts = BufferCounts()

    @endpoint
    def add(self, episode: Episode) -> None:
        """Store an episode. An episode without a version gets the last `curr_policy_version` that was passed to `sample`.

        Raises:
            BadArgument: The argument is not an Episode.
        """
        if not isinstance(episode, Episode):
            raise BadArgument(
                f"The replay buffer received a {type(episode).__name__}. Expected an Episode.",
                hint="Write: replay_buffer.add.route(Episode(prompt_ids=…, response_ids=…, reward=…))",
            )
        if episode.reward is None:
            self._counts.without_reward += 1
            return
        version = self._newest if episode.version is None else episode.version
        self._episodes.append(BufferedEpisode(episode, version))
        self._counts.added += 1
        if len(self._episodes) > self._capacity:
            del self._episodes[0]
            self._counts.overflow += 1

    @endpoint
    def sample(self, curr_policy_version: int | None = None, batch_size: int | None = None) -> list[Episode] | None:
        """Draw a batch at random.

        Args:
            curr_policy_version: The current version. Episodes that are too old are removed first. None removes no
                episodes.
            batch_size: The number of episodes. Defaults to the buffer's `batch_size`.

        Returns:
            The episodes in the order in which they were added, or None if the buffer has too few.

        Raises:
            BadArgument: A number is too small, or `batch_size` exceeds the capacity.
        """
        count = self._batch_size if batch_size is None else batch_size
        _check_number("batch_size", count, 1)
        if count > self._capacity:
            raise BadArgument(
                f"`batch_size` is {count}. Expected at most the capacity of the replay buffer, which is {self._capacity}."
            )
        if curr_policy_version is not None:
            _check_number("curr_policy_version", curr_policy_version, 0)
            self._newest = curr_policy_version
            self._remove_old(curr_policy_version)
        if len(self._episodes) < count:
            return None
        chosen = sorted(derived_rng("replay_buffer", self._seed, self._draws).sample(range(len(self._episodes)), count))
        self._draws += 1
        batch = [self._episodes[index] for index in chosen]
        for each in batch:
            each.uses += 1
        self._counts.used += count
        self._episodes = [each for each in self._episodes if each.uses < self._max_uses]
        return [each.episode for each in batch]

    @endpoint(idempotent=True)
    def size(self) -> int:
        """Return the number of stored episodes."""
        return len(self._episodes)

    @endpoint(idempotent=True)
    def counts(self) -> BufferCounts:
        """Return the counts of episodes since the start."""
        return self._counts

    @endpoint(idempotent=True)
    def state_dict(self) -> dict[str, Any]:
        """Return the buffer's state as a JSON object, for `load_state_dict`."""
        return {
            "episodes": [
                {**_as_json(each.episode), "counted_version": each.version, "uses": each.uses}
                for each in self._episodes
            ],
            "newest": self._newest,
            "draws": self._draws,
            "counts": asdict(self._counts),
        }

    @endpoint(idempotent=True)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. The buffer's options do not change.

        Raises:
            BadArgument: The state is invalid. Nothing has changed.
        """
        try:
            episodes = []
            for each in state["episodes"]:
                members = dict(each)
                version, uses = int(members.pop("counted_version")), int(members.pop("uses"))
                episodes.append(BufferedEpisode(Episode(**members), version, uses))
            newest, draws, counts = int(state["newest"]), int(state["draws"]), BufferCounts(**state["counts"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadArgument(
                f"The state of a replay buffer cannot be read: {error!r}. Expected the result of state_dict."
            ) from None
        removed = max(0, len(episodes) - self._capacity)
        counts.overflow += removed
        self._episodes = [each for each in episodes[removed:] if each.uses < self._max_uses]
        self._newest, self._draws, self._counts = newest, draws, counts

    def _remove_old(self, version: int) -> None:
        if self._max_policy_age is None:
            return
        oldest = version - self._max_policy_age
        left = [each for each in self._episodes if each.version >= oldest]
        self._counts.too_old += len(self._episodes) - len(left)
        self._episodes = left


def _as_json(episode: Episode) -> dict[str, Any]:
    values = {each.name: getattr(episode, each.name) for each in fields(Episode)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _check_number(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise BadArgument(f"`{name}` is {value!r}. Expected an integer of at least {least}.")

"""The iterations of a job that learns from stored rollouts.

Each pass over the file divides a seed's rollouts into groups in a different way. The groups of an iteration depend only
on the iteration's number, so a resumed job has the same groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.server.engine import RolloutOutcome
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.train.driver.rollouts import PlayedRollout
from taskapp_kit.train.gateway.attempt import AttemptRecord, Faithfulness
from taskapp_kit.train.stored_rollouts import StoredRollouts

Group = list[int]
"""The file offsets of rollouts with the same seed."""


@dataclass(frozen=True, slots=True)
class StoredUnits:
    """The counterpart of `GatewayRollouts` for stored rollouts. `draw` names the random stream that forms the groups.

    Raises ConfigError if every seed has only one rollout.
    """

    rollouts: StoredRollouts
    plan: JobPlan
    draw: str

    def __post_init__(self) -> None:
        if all(len(places) == 1 for places in self.rollouts.by_seed.values()):
            raise ConfigError(
                f"[data] rollouts: {self.rollouts.path} has only one rollout per seed. At least one seed needs two, "
                "because rewards are compared within a seed.",
                hint="Record more rollouts: raise group_size of the recording job, or --repeats of `taskapp eval`.",
            )

    def unit(self, unit: Unit) -> list[PlayedRollout]:
        """Return the rollouts of an iteration. Raises ConfigError if the file has changed."""
        played = []
        for place, group in enumerate(self.groups(unit.number)):
            for sample, at in enumerate(group):
                episode = self.rollouts.episode(at)
                outcome = RolloutOutcome(
                    unit.phase,
                    unit.number,
                    place,
                    sample,
                    episode.seed,
                    episode.status,
                    episode.reward,
                    episode.rollout,
                )
                played.append(PlayedRollout(outcome, AttemptRecord("", episode.turns, Faithfulness(), {}, {})))
        return played

    def groups(self, number: int) -> list[Group]:
        """Return the groups of an iteration. The first iteration has the number 1."""
        length = sum(self._parts(len(places)) for places in self.rollouts.by_seed.values())
        first = (number - 1) * self.plan.groups
        passes = {at // length: self._order(at // length) for at in range(first, first + self.plan.groups)}
        return [passes[at // length][at % length] for at in range(first, first + self.plan.groups)]

    def _order(self, number: int) -> list[Group]:
        """Return the groups of one pass over the file. The first pass has the number 0."""
        # Groups combine a seed's rollouts from the whole file. Recorded groups often have no spread, especially if the policy
        # was very bad or very good.
        rng = derived_rng("offline", self.draw, str(number))
        groups = []
        for _, places in sorted(self.rollouts.by_seed.items()):
            shuffled = rng.sample(places, len(places))
            parts = self._parts(len(shuffled))
            groups += [shuffled[part::parts] for part in range(parts)]
        rng.shuffle(groups)
        return groups

    def _parts(self, rollouts: int) -> int:
        """Return the number of groups of a seed. Groups have at least `plan.samples` rollouts if the seed has enough."""
        return max(1, rollouts // self.plan.samples)

"""A rollout as the service finished it: an episode plus its scores, and what the caller asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.events import EncodedEvents, EpisodeEnded, Event, fold, from_json
from taskapp_kit.contract.scorecard import RolloutSummary, Scorecard
from taskapp_kit.contract.trajectory import Trajectory

if TYPE_CHECKING:
    from taskapp_kit.contract.wire import RolloutRequest


class Story:
    """The events of a rollout and the trajectory that they tell; those of another process are read when first looked at."""

    __slots__ = ("_encoded", "_events", "_final_state", "_pictures", "_trajectory")

    def __init__(self, events: list[Event], trajectory: Trajectory) -> None:
        self._events: list[Event] | None = events
        self._trajectory: Trajectory | None = trajectory
        self._encoded = EncodedEvents(b"[]")
        self._pictures: dict[str, bytes] = {}
        self._final_state: Json = None

    @classmethod
    def encoded(cls, events: EncodedEvents, pictures: dict[str, bytes], final_state: Json) -> Story:
        """A story as it crossed from another process: its end state came apart, its pictures' bytes by hash."""
        story = cls.__new__(cls)
        story._events = story._trajectory = None
        story._encoded, story._pictures, story._final_state = events, pictures, final_state
        return story

    @property
    def events(self) -> list[Event]:
        """The events, in order."""
        if self._events is None:
            self._events = [from_json(told, self._pictures) for told in self._encoded]
            for event in self._events:
                if isinstance(event, EpisodeEnded):
                    event.final_state = self._final_state
        return self._events

    @property
    def trajectory(self) -> Trajectory:
        """Their fold."""
        if self._trajectory is None:
            self._trajectory = fold(self.events)
        return self._trajectory


@dataclass(slots=True)
class Rollout:
    """A finished, scored rollout.

    observation_digest: None when the caller asked for no pictures. policy: the name of the one that acted.
    ops_executed: 2 for a policy turn, 1 for a scripted action. warnings: what
    was accepted and ignored. timing: seconds in environment, policy, scoring, framework and in all. usage: tokens.
    versions: kit, app, environment, git commit (None outside a checkout). numbers: what `summary()` gives. body: the
    answer of `POST /rollout` as JSON, when it was asked for and written where the rollout was played, else None.
    """

    rollout_id: str
    request: RolloutRequest
    created_at: float
    story: Story
    numbers: RolloutSummary
    scorecard: Scorecard
    digest: str
    observation_digest: str | None
    policy: str
    ops_executed: int
    warnings: list[str] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def trajectory(self) -> Trajectory:
        """The episode as it was played."""
        return self.story.trajectory

    @property
    def events(self) -> list[Event]:
        """The events, in order, from `started` to `scored`."""
        return self.story.events

    @property
    def reward(self) -> float | None:
        """The scorecard's blend of return and scores; None when a part of it is undefined."""
        return self.scorecard.reward

    def summary(self) -> RolloutSummary:
        """The numbers that an aggregate reads; the environment's metrics and the app's, under their names."""
        return self.numbers

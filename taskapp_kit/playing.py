"""One rollout in one thread: play, fold, score. No waiting, no network, no store: criteria are the author's code too."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from taskapp_kit.contract.content import images
from taskapp_kit.contract.events import Event, Failed, Scored, Started, fold
from taskapp_kit.contract.ports import Clock
from taskapp_kit.contract.scorecard import Scorecard
from taskapp_kit.contract.trajectory import Trajectory
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.planning import Planned
from taskapp_kit.run.episode import Episode, drive
from taskapp_kit.run.plan import Control
from taskapp_kit.score.scoring import ScoringFailed, score


@dataclass(slots=True)
class Played:
    """A rollout, played; scored unless it failed.

    digest: None when the episode failed (one whose scoring failed has a digest: it can be scored later). cause: the
    exception behind a failure, for the log. ops: operations done. seconds: in environment, policy and scoring.
    """

    events: list[Event]
    trajectory: Trajectory
    scorecard: Scorecard | None = None
    digest: str | None = None
    failure: Failure | None = None
    cause: BaseException | None = None
    ops: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def pictures(self) -> dict[str, bytes]:
        """The pictures that were seen, PNG bytes by SHA-256 (hex); encodes those that are not yet."""
        found = list(images(self.trajectory.initial))
        for step in self.trajectory.steps:
            if type(step.observation) is list:
                found.extend(images(step.observation))
        return {picture.hash: picture.png for picture in found}


def play(
    spec: AppSpec, planned: Planned, clock: Clock, control: Control, events: list[Event],
    tell: Callable[[Event], None] | None = None,
) -> Played:  # fmt: skip
    """Plays the plan to its end and scores it. Never raises for what author's code does; RequestError for env.config.

    events: is filled as they happen, so that another thread may keep what was told when this one is stuck. tell: is
    given each event too; it must not raise.
    """
    episode = Episode(planned.plan, clock, control)

    def told(event: Event) -> None:
        events.append(event)
        if tell is not None:
            tell(event)

    drive(episode, planned.policy, events.append if tell is None else told)
    trajectory = fold(events)
    played = Played(events, trajectory, ops=episode.ops, cause=control.cause)
    control.cause = None  # its traceback's frames hold `control`: a ring that only the collector would break
    played.seconds = {"environment": episode.environment_seconds, "policy": episode.policy_seconds, "scoring": 0.0}
    failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
    if failed is not None:
        played.failure = Failure(failed.boundary, failed.code, failed.message, failed.hint, failed.error_id)
        return played
    played.digest = trajectory.digest()
    began = clock.monotonic()
    try:
        card = score(spec, trajectory, task=planned.plan.task, config=planned.plan.arguments, blend=planned.blend)
    except ScoringFailed as error:
        played.failure, played.cause = error.failure, error.__cause__
        return played
    played.seconds["scoring"] = clock.monotonic() - began
    played.scorecard = card
    (events.append if tell is None else told)(Scored(card.to_json()))
    return played


def given_up(planned: Planned, events: list[Event], failure: Failure) -> Played:
    """What is known of a rollout whose thread or process did not come back: the events until then, and the failure."""
    plan = planned.plan
    if not events:
        spec = plan.environment
        events.append(Started(spec.name, spec.version, plan.split, plan.seed, plan.config, plan.policy))
    failure.error_id = failure.error_id or uuid.uuid4().hex[:12]
    events.append(Failed(failure.boundary, failure.code, failure.message, failure.error_id, failure.hint))
    trajectory = fold(events)
    trajectory.status, trajectory.stop_reason = "failed", failure.code
    return Played(events, trajectory, failure=failure)

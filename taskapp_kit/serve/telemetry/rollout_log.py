"""One log line for each rollout that is over: what it was, what it came to, who asked."""

from __future__ import annotations

import logging

from taskapp_kit.logs import LogMessage
from taskapp_kit.rollout.in_flight import Finished, InFlightRollout

log = logging.getLogger("taskapp_kit.serve")


def log_ended(course: InFlightRollout, finished: Finished) -> None:
    """A RolloutObserver. INFO when it was scored; WARNING when it was cancelled or ran out of time, ERROR when it broke.

    reward is `None` when it is undefined; seconds: from admission to its end; key: the key's label, never the key.
    """
    outcome = finished.outcome
    failure = outcome.failure
    level = logging.INFO
    if failure is not None:
        level = logging.WARNING if failure.boundary in ("timeout", "cancelled") else logging.ERROR
    if not log.isEnabledFor(level):
        return
    scored = {} if failure is not None else {"reward": outcome.scorecard.reward if outcome.scorecard else None}
    told = LogMessage(
        "rollout" if failure is None else "rollout failed",
        rollout_id=course.rollout_id,
        environment=outcome.environment,
        seed=outcome.seed,
        steps=outcome.length,
        status=outcome.status,
        **scored,
        policy=course.planned.plan.policy,
        key=course.caller.key_label,
        seconds=round(finished.timing.get("total", 0.0), 4),
    )
    if failure is not None:
        told.fields.update(boundary=failure.boundary, code=failure.code, error_id=failure.error_id)
    log.log(level, told)

"""One log line for each ended rollout: its request, its result and its caller."""

from __future__ import annotations

import logging

from taskapp_kit.contract.result import Rollout
from taskapp_kit.logs import LogMessage
from taskapp_kit.rollout.in_flight import InFlightRollout

log = logging.getLogger("taskapp_kit.serve")


def log_ended(rollout: InFlightRollout, result: Rollout) -> None:
    """A RolloutObserver. INFO when it was scored, WARNING when it was cancelled or timed out, ERROR when it failed.

    reward is `None` when it is undefined; seconds: from admission to its end; key: the key's label, never the key.
    """
    failure = result.failure
    level = logging.INFO
    if failure is not None:
        level = logging.WARNING if failure.boundary in ("timeout", "cancelled") else logging.ERROR
    if not log.isEnabledFor(level):
        return
    scored = {} if failure is not None else {"reward": result.reward}
    message = LogMessage(
        "rollout" if failure is None else "rollout failed",
        rollout_id=rollout.rollout_id,
        environment=result.environment,
        seed=result.seed,
        steps=result.length,
        status=result.status,
        **scored,
        policy=rollout.plan.policy,
        key=rollout.caller.key_label,
        seconds=round(result.timing.get("total", 0.0), 4),
    )
    if failure is not None:
        message.fields.update(boundary=failure.boundary, code=failure.code, error_id=failure.error_id)
    log.log(level, message)

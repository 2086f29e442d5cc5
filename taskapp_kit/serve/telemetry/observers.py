"""Connects a server's telemetry to its service: log lines, metrics, traces, and the watchdog of its event loop."""

from __future__ import annotations

import asyncio
import logging

from taskapp_kit.config import Settings
from taskapp_kit.logs import LogMessage
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.in_flight import InFlightRollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.event_loop_watchdog import Watchdog
from taskapp_kit.serve.telemetry.metrics import Metrics
from taskapp_kit.serve.telemetry.tracing import tracing_of

log = logging.getLogger("taskapp_kit.serve")


class Observers:
    """Observes `service`. Call `start` on the event loop before the first request, and `close` after the last rollout.

    metrics: those of `/metrics`. tracing: None unless traces are configured.
    """

    def __init__(self, service: Service, settings: Settings) -> None:
        self.metrics = Metrics(service.spec.environments, service.health)
        self.tracing = tracing_of(settings, service.spec.name)
        self.watchdog = Watchdog()
        self.metrics.loop = self.watchdog
        service.watchers += [log_ended, self.metrics.ended]
        if self.tracing is not None:
            service.watchers.append(self.tracing)

    def start(self) -> None:
        """Starts the watchdog of the running event loop."""
        self.watchdog.start()

    async def close(self) -> None:
        """Stops the watchdog and sends the remaining traces."""
        self.watchdog.stop()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


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

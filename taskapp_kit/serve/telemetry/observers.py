"""Connects a server's telemetry to its service: log lines, metrics, traces, and the watchdog of its event loop."""

from __future__ import annotations

import asyncio

from taskapp_kit.config import Settings
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.event_loop_watchdog import Watchdog
from taskapp_kit.serve.telemetry.metrics import Metrics
from taskapp_kit.serve.telemetry.rollout_log import log_ended
from taskapp_kit.serve.telemetry.tracing import tracing_of


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

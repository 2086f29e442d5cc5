"""Checks a deployed app: waits until it is healthy, and plays one rollout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taskapp_kit.client.checks import trial_rollout
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.deploy.modal.account import ModalRefused
from taskapp_kit.errors import TaskAppError, TaskAppUnreachable
from taskapp_kit.net.retry import Attempts, Backoff

EVEN = Backoff(first_seconds=2.0, growth=1.0)


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """The result of a short rollout.

    Attributes:
        reward: The reward, or None if it is undefined.
        seconds: Wall time, including the start of the container.
    """

    policy: str
    reward: float | None
    steps: int
    seconds: float


async def healthy(url: str, key: str | None, *, seconds: float, report: Callable[[str], None]) -> bool:
    """Wait until the app responds to `/health`, and return whether the app accepts the key.

    While a container starts, Modal redirects the request, and the client follows the redirects.

    Raises:
        ModalRefused: The app is not healthy, or did not respond within `seconds`.
    """
    attempts = Attempts(EVEN, seconds=seconds)
    async with TaskAppClient(url, key, retries=0) as client:
        while True:
            try:
                await client.health()
            except TaskAppUnreachable as error:
                last = error.message
            except TaskAppError as error:
                if error.status in (401, 403):
                    return False
                last = error.message
                if error.status in (500, 503) and error.code:
                    raise ModalRefused(
                        f"The app is running but is not healthy: {error.message}",
                        hint=error.hint or "For the cause, run: modal app logs APP_NAME",
                    ) from None
            else:
                return True
            pause = attempts.pause()
            if pause is None:
                raise ModalRefused(
                    f"The app did not respond within {seconds:.0f} s. Last error: {last.rstrip('.')}.",
                    hint="To see why the container does not start, run: modal app logs APP_NAME",
                )
            report(f"waiting: {last}")
            await asyncio.sleep(pause)


async def smoke(
    url: str, key: str, policy: Mapping[str, str], *, environment: str, seed: int, seconds: float
) -> SmokeResult:
    """Play one rollout of at most five turns. Raises ModalRefused if the rollout fails."""
    start = time.monotonic()
    async with TaskAppClient(url, key, timeout_seconds=seconds) as client:
        try:
            answer = await trial_rollout(client, policy, environment=environment, seed=seed)
        except TaskAppError as error:
            raise ModalRefused(
                f"The app is healthy, but the first rollout failed: {error.message}",
                hint=error.hint or "For details, run: modal app logs APP_NAME",
            ) from None
    metrics = answer.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    reward = answer.get("reward")
    steps = metrics.get("num_steps")
    return SmokeResult(
        policy=str(policy.get("policy", "")),
        reward=float(reward) if isinstance(reward, int | float) else None,
        steps=steps if isinstance(steps, int) else 0,
        seconds=time.monotonic() - start,
    )

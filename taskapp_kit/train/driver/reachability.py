"""Plays one turn before a job starts, to check whether the task app can reach the gateway."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from taskapp_kit.errors import JobError, TaskAppUnreachable
from taskapp_kit.jobs.client.config.value_types import AGENT_WORDS
from taskapp_kit.jobs.server.engine import Event, RolloutOutcome
from taskapp_kit.jobs.server.job_check import playable_policies
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.jobs.server.rollout_requests import UNREACHABLE, RolloutRequester, environment_info, seed_ranges
from taskapp_kit.net.addresses import ALLOW
from taskapp_kit.net.proxies import is_loopback
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.rollouts import without_token
from taskapp_kit.train.driver.sources import played_plan
from taskapp_kit.train.gateway.gateway_options import LISTEN, TUNNEL, URL, GatewayOptions
from taskapp_kit.train.gateway.gateway_server import Gateway

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

FIRST_TURN = Unit("train", 0, 1)
"""The unit of the test turn. Its number is 0, so that the turn does not belong to the first iteration's groups."""
LOOK_SECONDS = 0.05
END_SECONDS = 5.0
"""Seconds that the rollout may take to end after its first model call has been answered."""
TUNNEL_TRIES = 10
TUNNEL_PAUSE_SECONDS = 3.0
"""Seconds between tries. A tunnel's new host name does not resolve everywhere immediately."""


async def check_reachability(
    job_id: str,
    plan: JobPlan,
    task_app: OpenedTaskApp,
    gateway: Gateway,
    settings: DriverSettings,
    options: GatewayOptions,
    *,
    end_seconds: float = END_SECONDS,
    tunnel_pause_seconds: float = TUNNEL_PAUSE_SECONDS,
) -> Event:
    """Play one rollout of one turn, and return an event for the ledger. The turn itself is not stored.

    Call this function before each `JobDriver.run`, including the run of a resumed job.

    Raises:
        JobError: The task app does not call the gateway. The hint explains how to fix this.
        TaskAppUnreachable: The task app does not respond.
        TaskAppError: The task app does not return its description.
    """
    began = time.monotonic()
    policies = playable_policies(await environment_info(plan, task_app))
    label = None if plan.policy_name in policies else plan.policy_name
    ranges = await seed_ranges(plan, task_app)
    one_turn = replace(played_plan(plan, label), ops=_first_turn(plan.ops))
    requester = RolloutRequester(job_id, one_turn, task_app, ranges, trial=True)
    tries = TUNNEL_TRIES if options.tunnel else 1
    for number in range(1, tries + 1):
        outcome, reached = await _played(requester, gateway, settings, number, end_seconds)
        if reached:
            break
        if number < tries:
            await asyncio.sleep(tunnel_pause_seconds)
    else:
        unreachable = outcome is not None and outcome.code == UNREACHABLE
        raise (TaskAppUnreachable if unreachable else JobError)(
            f"The task app did not call the gateway at {gateway.url} in a test turn: {_reason(outcome)}",
            hint=_fix(outcome, task_app.url, gateway.url, options),
        )
    return Event(
        "rl.gateway.reached",
        f"The task app can reach the gateway at {gateway.url}.",
        data={"gateway_url": gateway.url, "seconds": round(time.monotonic() - began, 3)},
    )


async def _played(
    requester: RolloutRequester, gateway: Gateway, settings: DriverSettings, number: int, end_seconds: float
) -> tuple[RolloutOutcome | None, bool]:
    """Play one rollout. Return its result, or None if it does not end in time, and whether it called the gateway."""
    target = requester.asked(Unit("train", 1, 1))[0]
    key = (
        f"{requester.job_id}.{settings.incarnation}.first_turn.{number}.{secrets.token_hex(4)}"  # unique in each check
    )
    async with gateway.attempt(key, draw=f"{requester.job_id}/first_turn", settings=settings.generation) as attempt:
        playing = asyncio.ensure_future(
            requester.play(
                FIRST_TURN,
                target,
                key=key,
                inference_url=attempt.url,
                timeout_seconds=settings.rollout_seconds,
            )
        )
        try:
            while not playing.done() and not attempt.record().turns:
                await asyncio.wait((playing,), timeout=LOOK_SECONDS)
            await asyncio.wait((playing,), timeout=end_seconds)
            outcome = without_token(playing.result(), attempt.token) if playing.done() else None
        finally:
            playing.cancel()
            await asyncio.wait((playing,))
    return outcome, attempt.record().faithfulness.calls > 0


def _first_turn(ops: Any) -> list[Any]:
    """Return the part of `ops` that precedes the policy's second turn."""
    words = [op if isinstance(op, str) else str(op.get("type", "")) for op in ops]
    agents = [at for at, word in enumerate(words) if word.lower() in AGENT_WORDS]
    return list(ops[: agents[1]] if len(agents) > 1 else ops)


def _reason(outcome: RolloutOutcome | None) -> str:
    if outcome is None:  # only possible after a call of the gateway
        return "the task app did not respond."
    if not outcome.failed:
        return "the task app scored the rollout without calling the model."
    return outcome.message or f"{outcome.code}."


def _fix(outcome: RolloutOutcome | None, task_app_url: str, gateway_url: str, options: GatewayOptions) -> str:
    """Return a hint for fixing the gateway's address, or "" if another problem caused the failure."""
    if outcome is None:
        return ""
    if not outcome.failed:
        return (
            "The policy must call the model at policy.config.inference_url. The task app may have used another policy, or a "
            "model from its own settings."
        )
    host = urlsplit(gateway_url).hostname or ""
    near = is_loopback(urlsplit(task_app_url).hostname or "")
    refused = outcome.code == "address_refused"
    if refused and (near or not is_loopback(host)):
        return f"Start the task app with {ALLOW}={host}. If the variable is already set, append {host} after a comma."
    if refused or outcome.boundary == "policy":
        port = urlsplit(gateway_url).port
        if options.tunnel or not is_loopback(host):
            return (
                f"Check that {gateway_url} forwards requests to {options.host}:{options.port or port} on this machine."
            )
        return (
            f"A task app on another machine or in a container cannot use {host}. Start with {TUNNEL}, or with {URL} "
            f"http://ADDRESS_OF_THIS_MACHINE:{port} {LISTEN} 0.0.0.0:{port}."
        )
    return ""

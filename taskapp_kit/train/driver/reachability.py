"""Plays one turn before a job starts, to check whether the task app reaches the gateway."""

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
"""The unit of the first turn. Number 0 keeps it out of the first iteration's groups."""
LOOK_SECONDS = 0.05
END_SECONDS = 5.0
"""The time that the rollout has to end after its call was answered."""
TUNNEL_TRIES = 10
TUNNEL_PAUSE_SECONDS = 3.0
"""A tunnel's new name takes some time to resolve everywhere."""


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

    Call it before each `JobDriver.run`, also of a resumed job. Raises JobError with a fix if the task app does not call the
    gateway, TaskAppUnreachable if it does not answer, TaskAppError if it does not describe itself.
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
        f"The task app reaches the gateway at {gateway.url}.",
        data={"gateway_url": gateway.url, "seconds": round(time.monotonic() - began, 3)},
    )


async def _played(
    requester: RolloutRequester, gateway: Gateway, settings: DriverSettings, number: int, end_seconds: float
) -> tuple[RolloutOutcome | None, bool]:
    """Return the result of one rollout (None if it continues after its call), and whether it called the gateway."""
    target = requester.asked(Unit("train", 1, 1))[0]
    key = f"{requester.job_id}.{settings.incarnation}.first_turn.{number}.{secrets.token_hex(4)}"  # unique if repeated
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
    """Return the ops before the policy's second turn."""
    words = [op if isinstance(op, str) else str(op.get("type", "")) for op in ops]
    agents = [at for at, word in enumerate(words) if word.lower() in AGENT_WORDS]
    return list(ops[: agents[1]] if len(agents) > 1 else ops)


def _reason(outcome: RolloutOutcome | None) -> str:
    if outcome is None:  # not without a call
        return "it did not answer."
    if not outcome.failed:
        return "it scored the rollout without a call of the model."
    return outcome.message or f"{outcome.code}."


def _fix(outcome: RolloutOutcome | None, task_app_url: str, gateway_url: str, options: GatewayOptions) -> str:
    """Return the hint that fixes the gateway's address, "" if another problem caused the failure."""
    if outcome is None:
        return ""
    if not outcome.failed:
        return (
            "Let its policy call the model at policy.config.inference_url. It may have used another policy, or a model from "
            "its own settings."
        )
    host = urlsplit(gateway_url).hostname or ""
    near = is_loopback(urlsplit(task_app_url).hostname or "")
    refused = outcome.code == "address_refused"
    if refused and (near or not is_loopback(host)):
        return f"Start the task app with {ALLOW}={host} (a comma-separated list; keep existing entries)."
    if refused or outcome.boundary == "policy":
        if options.tunnel or not is_loopback(host):
            return (
                f"Check that {gateway_url} leads to {options.host}:{options.port or urlsplit(gateway_url).port} here."
            )
        port = urlsplit(gateway_url).port
        return (
            f"On another machine or in a container, {host} is not this machine. Start with {TUNNEL}, or with {URL} "
            f"http://ADDRESS_OF_THIS_MACHINE:{port} {LISTEN} 0.0.0.0:{port}."
        )
    return ""

"""Plays the rollouts of a job with the model at the gateway. Rollouts of a unit may start before earlier units have ended.

The idempotency key of a rollout request consists of job, incarnation, unit, place in the unit, sample and attempt. The
name of the rollout's random streams consists only of job, unit, place and sample. Another attempt, or another
incarnation with the same weights, therefore samples the same tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.server.engine import RolloutOutcome
from taskapp_kit.jobs.server.rollout_plan import Unit
from taskapp_kit.jobs.server.rollout_requests import UNREACHABLE, UNREADABLE, blank_outcome
from taskapp_kit.net.redact import without_key
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.sources import AskedRollout
from taskapp_kit.train.gateway.answers import MODEL
from taskapp_kit.train.gateway.attempt import AttemptRecord, AttemptSettings
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.loops.loop_settings import Level
from taskapp_kit.train.loops.turn_rewards import NoTurnRewards, turn_rewards

CHECKS = 10
"""Number of consecutive checks without a change that mean a stall. They are spread over the time limit. Checks are counted
instead of time, so that a job does not end because the machine was suspended."""

Result = TypeVar("Result")


async def watched(
    work: Coroutine[Any, Any, Result],
    progress: Callable[[], object],
    seconds: float,
    explain: Callable[[], str],
) -> Result:
    """Return the result of `work`. If `progress` does not change for `seconds`, cancel the work and raise JobError.

    `explain` returns additional sentences for the error message.
    """
    task = asyncio.create_task(work)
    seen, idle = progress(), 0
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=seconds / CHECKS)
            now = progress()
            idle = idle + 1 if now == seen else 0
            seen = now
            if idle >= CHECKS and not task.done():
                raise JobError(f"The job has made no progress for {seconds:g} s. {explain()}")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait((task,))


log = logging.getLogger("taskapp_kit.train")

NO_MODEL_CALLS = "no_model_calls"
"""The code of a rollout that was scored although it did not call the model, because another policy played."""
STRAGGLER = "straggler"
"""The code of a rollout for which the iteration did not wait."""
FINAL = (NO_MODEL_CALLS, UNREADABLE)
"""Codes of failures outside an episode that are not retried, because another attempt would fail in the same way."""


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """A rollout that has ended or timed out.

    Attributes:
        outcome: The status, the reward and the failure, if any.
        record: The gateway's record of the last attempt, or None for a straggler.
        turn_rewards: The reward of each turn if `[training] credit` is "turn", otherwise ().
        no_credit: Why the rewards of the turns are unknown, or "" if they are known or not needed.
        environment: The environment's name in a job with several environments.
        level: The curriculum's level, or None in a job without a curriculum.
    """

    outcome: RolloutOutcome
    record: AttemptRecord | None
    turn_rewards: tuple[float, ...] = ()
    no_credit: str = ""
    environment: str = ""
    level: Level | None = None


def without_token(outcome: RolloutOutcome, token: str) -> RolloutOutcome:
    """Return the outcome without an attempt's secret token or parts of it. Task apps may include it in messages."""
    return replace(
        outcome,
        message=without_key(outcome.message, token),
        code=without_key(outcome.code, token),
        rollout_id=without_key(outcome.rollout_id, token),
    )


class GatewayRollouts:
    """Plays the rollouts of one job. Rollouts wait while the gateway's limit of open attempts is reached.

    Rollouts that end before `play` is called for their unit are buffered. Call `aclose` when the job ends.
    """

    def __init__(self, job_id: str, gateway: Gateway, settings: DriverSettings) -> None:
        self._job_id, self._gateway, self._settings = job_id, gateway, settings
        self._units: dict[Unit, list[asyncio.Task[PlayedRollout]]] = {}
        self._tasks: set[asyncio.Task[PlayedRollout]] = set()
        self._late: list[RolloutOutcome] = []
        self._ended = 0

    def start(self, unit: Unit, asked: Sequence[AskedRollout]) -> None:
        """Start the rollouts of a unit. They begin after the rollouts of units that were started earlier."""
        self._units[unit] = [asyncio.create_task(self._followed(unit, each)) for each in asked]

    def started(self, unit: Unit) -> bool:
        """Return whether the unit was started and `play` has not been called for it."""
        return unit in self._units

    def waiting(self) -> int:
        """Return the number of buffered rollouts."""
        return sum(task.done() for tasks in self._units.values() for task in tasks)

    async def play(self, unit: Unit, ended: Callable[[PlayedRollout], Awaitable[PlayedRollout]]) -> list[PlayedRollout]:
        """Wait for the rollouts of a started unit, and pass each to `ended`. Return the results of `ended`, sorted by place.

        Raises JobError if no rollout makes progress. Exceptions of `ended` are raised here.
        """
        tasks = self._units.pop(unit)
        return await watched(
            self._play(tasks, ended),
            lambda: (self._ended, self._gateway.activity()),
            self._settings.stall_seconds,
            lambda: self._stalled(tasks),
        )

    def take_late(self) -> list[RolloutOutcome]:
        """Return the stragglers that have ended since this method was last called."""
        late, self._late = self._late, []
        return late

    async def aclose(self) -> None:
        """Cancel all running rollouts."""
        tasks = [*self._tasks, *(task for unit in self._units.values() for task in unit)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(
        self,
        tasks: Sequence[asyncio.Task[PlayedRollout]],
        ended: Callable[[PlayedRollout], Awaitable[PlayedRollout]],
    ) -> list[PlayedRollout]:
        async def taken(task: asyncio.Task[PlayedRollout]) -> PlayedRollout:
            return await ended(await task)

        takers = [asyncio.create_task(taken(task)) for task in tasks]
        try:
            return await asyncio.gather(*takers)
        finally:
            for task in (*takers, *tasks):
                task.cancel()
            await asyncio.gather(*takers, *tasks, return_exceptions=True)

    async def _followed(self, unit: Unit, asked: AskedRollout) -> PlayedRollout:
        """Wait until a rollout ends or times out. A straggler continues, so that its reward can be counted later."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._rollout(unit, asked, opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((task,), timeout=self._settings.straggler_seconds if unit.phase == "train" else None)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            played = task.result()
        else:
            task.add_done_callback(self._count_late)
            seconds = self._settings.straggler_seconds
            message = f"The rollout did not end within {seconds:g} s, and the iteration continued without it."
            outcome = replace(blank_outcome(unit, asked.target), code=STRAGGLER, message=message, seconds=seconds)
            played = PlayedRollout(outcome, None)
        self._ended += 1
        return replace(played, environment=asked.of.source.name, level=asked.level)

    def _count_late(self, task: asyncio.Task[PlayedRollout]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._late.append(task.result().outcome)
        else:
            log.error("a straggler ended with an error, so its reward is not counted", exc_info=error)

    async def _rollout(self, unit: Unit, asked: AskedRollout, opened: asyncio.Future[None]) -> PlayedRollout:
        attempt = counted = 0
        submit = False
        while True:
            attempt += 1
            played = await self._attempt(unit, asked, attempt, opened, submit=submit)
            outcome = played.outcome
            if not outcome.failed or outcome.boundary is not None or outcome.code in FINAL:
                return played
            # If a POST were repeated, a restarted task app would play a second episode at the same address with other draws. An
            # interrupted rollout therefore becomes a new attempt, which draws the same tokens. An outage does not count as a
            # failure, but a broken connection to a task app that responds does.
            if outcome.code != UNREACHABLE or not await asked.of.source.outage.waited():
                counted += 1
                submit = outcome.code == UNREACHABLE  # only the connection broke, so avoid long requests
            if counted >= self._settings.attempts:
                return played

    async def _attempt(
        self, unit: Unit, asked: AskedRollout, attempt: int, opened: asyncio.Future[None], *, submit: bool
    ) -> PlayedRollout:
        settings, job = self._settings, self._job_id
        target, requester = asked.target, asked.of.requester
        place = f"{unit.phase}.{unit.number}.{target.place}"
        key = f"{job}.{settings.incarnation}.{place}.{target.sample}.{attempt}"
        draw = f"{job}/{place}/{target.sample}"
        answers: list[Mapping[str, Any]] = []
        per_turn = unit.phase == "train" and settings.rows.credit == "turn"
        async with self._gateway.attempt(
            key,
            draw=draw,
            settings=self._generation(unit),
            model=requester.plan.policy_config.get("model", MODEL),
        ) as address:
            if not opened.done():
                opened.set_result(None)
            outcome = await requester.play(
                unit,
                target,
                key=key,
                inference_url=address.url,
                timeout_seconds=settings.rollout_seconds,
                once=True,  # the turns of a second episode at the same address would also be trained on
                submit=submit,
                read=answers.append if per_turn else None,
            )
        outcome, record = without_token(outcome, address.token), address.record()
        if not outcome.failed and not record.faithfulness.calls:
            outcome = replace(
                outcome,
                status="failed",
                reward=None,
                code=NO_MODEL_CALLS,
                message="The task app scored a rollout without calling the model at policy.config.inference_url. It may have "
                "used another policy, or it cannot reach the address.",
            )
        played = PlayedRollout(outcome, record)
        if not answers or outcome.reward is None:
            return played
        blend = requester.plan.blend
        try:
            found = turn_rewards(answers[-1], record.turns, outcome.reward, None if blend is None else blend.env)
        except NoTurnRewards as reason:
            return replace(played, no_credit=str(reason))
        return replace(played, turn_rewards=found)

    def _generation(self, unit: Unit) -> AttemptSettings:
        settings = self._settings
        if unit.phase == "train" or settings.evaluation_temperature is None:
            return settings.generation
        return replace(settings.generation, temperature=settings.evaluation_temperature)

    def _stalled(self, tasks: Sequence[asyncio.Task[PlayedRollout]]) -> str:
        running, ended = self._gateway.activity().running, sum(task.done() for task in tasks)
        return (
            f"{ended} of {len(tasks)} rollouts have ended, {self._gateway.open_attempts} attempts are open, and {running} "
            f"generations are running. {'The sampler' if running else 'The task app'} does not respond."
        )

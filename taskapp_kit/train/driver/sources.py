"""The environments that a job plays. Each environment has a plan, a task app and a share of each unit's rollouts.

While an environment's task app restarts or has no network, the job waits. Interrupted rollouts are played again and do
not count as failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.errors import JobError, TaskAppError, TaskAppUnreachable
from taskapp_kit.jobs.server.job_check import playable_policies
from taskapp_kit.jobs.server.rollout_plan import JobPlan, SeedRange, Unit, draw
from taskapp_kit.jobs.server.rollout_requests import RolloutRequester, RolloutTarget, environment_info, seed_ranges
from taskapp_kit.jobs.server.task_app_access import is_starting
from taskapp_kit.net.retry import Attempts, Backoff
from taskapp_kit.train.gateway.answers import MODEL
from taskapp_kit.train.loops.loop_settings import EnvironmentShare, Level, divided

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

log = logging.getLogger("taskapp_kit.train")

OUTAGE_SECONDS = 300.0
"""How many seconds a task app may be unreachable."""
EVEN = Backoff(first_seconds=1.0, growth=1.0)

Result = TypeVar("Result")


class Outage:
    """Waits for an unreachable task app. One probe serves all waiting callers. Call `aclose` at the end."""

    def __init__(self, task_app: OpenedTaskApp, *, seconds: float = OUTAGE_SECONDS) -> None:
        self._task_app, self._seconds = task_app, seconds
        self._looking: asyncio.Task[bool] | None = None

    async def waited(self) -> bool:
        """Wait at most `seconds` until the task app responds. Return whether it was unreachable and has recovered."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def outlasted(self, request: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `request`, which is repeated after outages. Raises TaskAppUnreachable if an outage lasts."""
        while True:
            try:
                return await request()
            except TaskAppUnreachable:
                if not await self.waited():
                    raise

    async def aclose(self) -> None:
        """Stop probing."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    async def _look(self) -> bool:
        began, attempts, away = time.monotonic(), Attempts(EVEN, seconds=self._seconds), False
        while not await self._answers():
            if not away:
                log.warning("the task app is unreachable, waiting up to %g s url=%s", self._seconds, self._task_app.url)
            away = True
            pause = attempts.pause()
            if pause is None:
                return False
            await asyncio.sleep(pause)
        if away:
            log.info(
                "the task app is reachable again url=%s seconds=%.1f", self._task_app.url, time.monotonic() - began
            )
        return away

    async def _answers(self) -> bool:
        try:
            await self._task_app.health()
        except TaskAppError as error:
            return not is_starting(error)
        return True


DIFFICULTY = "difficulty"
SEEDS_AT_ONCE = 500
MOST_ROWS = 20_000
"""Maximum number of rows of a split that are grouped by difficulty at the start of a job."""


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """One environment of a job. `name` is "" in a job with one environment."""

    name: str
    weight: int
    plan: JobPlan
    task_app: OpenedTaskApp
    outage: Outage

    async def described(self, levels: Sequence[Level]) -> tuple[dict[str, Any], list[str]]:
        """Query the task app. Return the description for `SourceRollouts.of`, and policy names that requests must omit.

        `levels` are the levels of the curriculum, or [] in a job without a curriculum. Raises TaskAppError if the query
        fails, and JobError if no task has one of the levels.
        """
        ranges = await self.outage.outlasted(lambda: seed_ranges(self.plan, self.task_app))
        info = await self.outage.outlasted(lambda: environment_info(self.plan, self.task_app))
        playable = playable_policies(info)
        unsent = [self.plan.policy_name] if self.plan.policy_name in playable else []
        if (policy := self.plan.policy_config.get("policy")) is not None:
            unsent.append(policy)
        by_level = await self._rows_by_level(info, ranges, levels) if levels else None
        description = {
            "ranges": None if ranges is None else [asdict(each) for each in ranges],
            "label": None if self.plan.policy_name in playable else self.plan.policy_name,
            "levels": by_level,
        }
        return description, [str(name) for name in unsent]

    async def _rows_by_level(
        self, info: Any, ranges: tuple[SeedRange, SeedRange] | None, levels: Sequence[Level]
    ) -> list[list[int]] | None:
        """Return the training seeds of each level, or None if the environment accepts the difficulty as an argument."""
        described = info if isinstance(info, Mapping) else {}
        schema = described.get("config_schema")
        members = schema.get("properties") if isinstance(schema, Mapping) else None
        tasks = described.get("taskset") or described.get("dataset")
        if not isinstance(members, Mapping) or DIFFICULTY in members:
            return None
        if not isinstance(tasks, Mapping) or tasks.get("kind") != "rows":
            raise JobError(
                f"The environment {self.plan.env_name or 'of the task app'} has no setting for the difficulty. [curriculum] "
                "requires rows with a field `difficulty`, or an environment with an argument `difficulty`."
            )
        split = self.plan.env_config.get("split") or (ranges[0].split if ranges else None)
        rows = list(self.plan.seeds if self.plan.seeds is not None else ranges[0].seeds if ranges else ())[:MOST_ROWS]
        by_level: list[list[int]] = [[] for _ in levels]
        for start in range(0, len(rows), SEEDS_AT_ONCE):
            seeds = rows[start : start + SEEDS_AT_ONCE]
            for seed, level in zip(seeds, await self._difficulties(seeds, split), strict=False):
                if level in levels:
                    by_level[levels.index(level)].append(seed)
        if empty := [str(level) for level, seeds in zip(levels, by_level, strict=True) if not seeds]:
            raise JobError(f"No training task has the difficulty {', '.join(empty)}, which [curriculum] levels lists.")
        return by_level

    async def _difficulties(self, seeds: Sequence[int], split: str | None) -> list[Any]:
        query = {"environment": self.plan.env_name, "split": split}
        named = {name: value for name, value in query.items() if value}
        infos = await self.outage.outlasted(lambda: self.task_app.task_info(seeds, **named))
        return [_difficulty(info) for info in (infos if isinstance(infos, list) else [infos])]


@dataclass(frozen=True, slots=True)
class SourceRollouts:
    """Requests the rollouts of one environment. If tasks are rows, `levels` lists the training seeds of each level."""

    source: EnvironmentSource
    requester: RolloutRequester
    levels: Sequence[Sequence[int]] | None = None

    @classmethod
    def of(cls, source: EnvironmentSource, job_id: str, description: Mapping[str, Any]) -> SourceRollouts:
        """Create the object for an environment, given the description that `EnvironmentSource.described` returned."""
        stored = description["ranges"]
        ranges = None if stored is None else (SeedRange(**stored[0]), SeedRange(**stored[1]))
        plan = played_plan(source.plan, description["label"])
        return cls(source, RolloutRequester(job_id, plan, source.task_app, ranges), description.get("levels"))

    def asked(
        self, unit: Unit, places: Sequence[int], before: int, level: Level | None, levels: Sequence[Level]
    ) -> list[RolloutTarget]:
        """Return the rollouts to request at these places of the unit.

        `before` is the number of groups in earlier iterations. A `level` of None selects tasks of every level.
        """
        targets = self.requester.asked(unit, places, before)
        if level is None or unit.phase == "eval":
            return targets
        if self.levels is None:
            return [replace(target, config={DIFFICULTY: level}) for target in targets]
        seeds = self.levels[levels.index(level)]
        drawn = draw(range(len(seeds)), len(places), self.requester.job_id, unit.number, str(level))
        chosen = {place: seeds[index] for place, index in zip(places, drawn, strict=True)}
        return [replace(target, seed=chosen[target.place]) for target in targets]


@dataclass(frozen=True, slots=True)
class AskedRollout:
    """One rollout to play. `level` is the curriculum's level, or None in a job without a curriculum."""

    of: SourceRollouts
    target: RolloutTarget
    level: Level | None = None


def asked_rollouts(
    sources: Sequence[SourceRollouts], plan: JobPlan, unit: Unit, level: Level | None, levels: Sequence[Level]
) -> list[AskedRollout]:
    """Return all rollouts of the unit, sorted by place and sample."""
    train = unit.phase == "train"
    first, count = ((unit.number - 1) * plan.groups, plan.groups) if train else (0, plan.eval_instances)
    shares = divided([each.source.weight for each in sources], first, count)
    found = [
        AskedRollout(each, target, level if train else None)
        for each, (before, places) in zip(sources, shares, strict=True)
        for target in each.asked(unit, places, before, level, levels)
    ]
    return sorted(found, key=lambda asked: (asked.target.place, asked.target.sample))


@asynccontextmanager
async def task_sources(
    plan: JobPlan, task_app: OpenedTaskApp, shares: Sequence[EnvironmentShare]
) -> AsyncIterator[list[EnvironmentSource]]:
    """Yield the environments of a job. Raises ConfigError if the address of a task app is not allowed."""
    async with AsyncExitStack() as opened:
        outages = {task_app.url: await opened.enter_async_context(aclosing(Outage(task_app)))}
        apps = {task_app.url: task_app}
        found = []
        for share in shares or (EnvironmentShare("", 1),):
            url = share.task_url or task_app.url
            if url not in apps:
                apps[url] = task_app.elsewhere(url)
                opened.push_async_callback(apps[url].aclose)
                outages[url] = await opened.enter_async_context(aclosing(Outage(apps[url])))
            found.append(EnvironmentSource(share.name, share.weight, share.plan(plan), apps[url], outages[url]))
        yield found


def played_plan(plan: JobPlan, label: str | None) -> JobPlan:
    """Return the plan without `policy_config["policy"]`, so that the model plays. `label` replaces `policy_name`."""
    config = {name: value for name, value in plan.policy_config.items() if name != "policy"}
    return replace(plan, policy_name=label, policy_config={"model": MODEL, **config})


def _difficulty(info: Any) -> Any:
    """Return the difficulty in a row's entry in the response to `GET /task_info`, or None if the row has none."""
    metadata = info.get("task_metadata") if isinstance(info, Mapping) else None
    row = metadata.get("row") if isinstance(metadata, Mapping) else None
    return row.get(DIFFICULTY) if isinstance(row, Mapping) else None

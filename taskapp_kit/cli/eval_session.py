"""One run of `taskapp eval`: opens the app and the directory, plays what is missing, summarises, closes."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.eval_progress import EvalDisplay
from taskapp_kit.cli.local_app import only_authors_log, open_app
from taskapp_kit.cli.options import AUTO, is_url
from taskapp_kit.cli.terminal import clean, echo, one_line
from taskapp_kit.contract.inference_url import stored_url
from taskapp_kit.contract.words import counted
from taskapp_kit.declare.discovery import find_app, reference_of
from taskapp_kit.errors import DiscoveryError, EvaluationLimitReached
from taskapp_kit.evaluate.concurrency import MOST_AT_ONCE, AutoConcurrency, FixedConcurrency
from taskapp_kit.evaluate.continued import NOT_STORED, policies_to_store
from taskapp_kit.evaluate.directory import DATABASE, Directory, new_path
from taskapp_kit.evaluate.limits import EvalLimits
from taskapp_kit.evaluate.own_directories import remember
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.report import write_report
from taskapp_kit.evaluate.run import configuration, evaluate, summarise
from taskapp_kit.evaluate.runners import LocalRunner, RemoteRunner
from taskapp_kit.evaluate.seed_selection import check_groups, select_seeds
from taskapp_kit.evaluate.seeds import Seeds
from taskapp_kit.evaluate.summary import SummaryOptions
from taskapp_kit.rollout.models.registry import ModelNames
from taskapp_kit.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from taskapp_kit.config import Settings
    from taskapp_kit.contract.protocols import Store
    from taskapp_kit.contract.statistics import IntervalMethod
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.evaluate.runners import EvaluatedApp


SILENCE_SECONDS = 3.0


@dataclass(frozen=True)
class EvalOptions:
    """The command line. app: or the address of one. local: the app beside an address.

    policies: `policy.config` by name. models: for a policy by name, the model of models.toml that it is. plan: of a stored
    evaluation that goes on; the options that make a plan are then not used.
    """

    app: str
    local: str | None
    policies: Mapping[str, Mapping[str, Any]] = field(repr=False)
    models: Mapping[str, str]
    key: str | None = field(repr=False)
    plan: EvalPlan | None = None
    environment: str | None = None
    seeds: str | None = None
    split: str | None = None
    difficulty: Sequence[str] = ()
    tags: Sequence[str] = ()
    repeats: int = 1
    only: Sequence[tuple[int, int]] = ()
    output_mode: str = "tool_calls"
    env_config: dict[str, Any] | None = None
    ops: int | None = None
    max_time_seconds: float = 3600.0
    max_refusals: int | None = None
    max_rollout_tokens: int | None = None
    judges: str = "ask"
    concurrency: int | str = AUTO
    max_consecutive_failures: int = 0
    max_failures: int | None = None
    max_cost: float | None = None
    max_total_tokens: int | None = None
    workers: int | None = None
    out: Path | None = None
    resume: bool = False
    retry_failed: bool = False
    by: tuple[str, ...] = ()
    pass_at: float = 1.0
    interval: IntervalMethod = "bootstrap"
    as_json: bool = False

    @property
    def summary(self) -> SummaryOptions:
        """How the results are summarised."""
        return SummaryOptions(self.by, self.pass_at, self.interval)


STORED_OPTIONS = (
    "concurrency", "max_consecutive_failures", "max_failures", "max_cost", "max_total_tokens", "workers", "by", "pass_at",
    "interval",
)  # fmt: skip
"""Options that `config.json` has beside the plan, for the command that goes on without flags."""
ELSEWHERE = "elsewhere"
"""Stands in `config.json` for a store whose address may have a password."""


@dataclass(frozen=True)
class DirectoryCounts:
    """Rollouts in the directory when an evaluation ended: done, failed among them, unscored among these, asked for."""

    done: int
    failed: int
    unscored: int
    asked: int


class Session:
    """One run of the command: opens the app and the directory, plays, summarises, closes.

    warnings: sentences about the app that `run` adds, one for each environment. stopped: the limit that ended it early.
    """

    def __init__(self, asked: EvalOptions, settings: Settings, note: str) -> None:
        self.display = EvalDisplay(quiet=asked.as_json)
        self.path: Path | None = asked.out
        self.stopped: EvaluationLimitReached | None = None
        self._asked = asked
        self._settings = settings
        self._note = note
        self._counts: DirectoryCounts | None = None
        self._app_reference: str | None = None
        self._goes_on_alone = True
        self.warnings: list[str] = []
        self.without_app = is_url(asked.app) and asked.local is None

    def run(self) -> dict[str, Any]:
        """The summary, of what was played when a limit ended it early. Raises KitError."""
        return asyncio.run(self._run())

    async def _run(self) -> dict[str, Any]:
        player = self._player()
        try:
            return await self._evaluate(player)
        finally:
            self.display.close()
            self.warnings += player.warnings.values()
            await player.close()

    def _player(self) -> LocalRunner | RemoteRunner:
        asked = self._asked
        seconds = asked.max_time_seconds if asked.plan is None else asked.plan.max_time_seconds
        if is_url(asked.app):
            only_authors_log()
            spec = None if asked.local is None else self._named(find_app(asked.local)).freeze()
            names = ModelNames.of(self._settings)
            return RemoteRunner(asked.app, asked.key, max_time_seconds=seconds, spec=spec, model_names=names)
        found = self._named(open_app(asked.app, self._settings))
        found.freeze()
        if self.path is None:
            self.path = new_path(found.name, tuple(asked.policies))
        return LocalRunner(
            found,
            self._settings,
            store=self._store(self.path),
            concurrency=asked.concurrency if isinstance(asked.concurrency, int) else MOST_AT_ONCE,
            workers=asked.workers or 0,
            max_time_seconds=seconds,
            skip_judges=asked.judges == "skip",
        )

    def _named(self, app: TaskApp) -> TaskApp:
        """The app; its import reference is stored in the configuration."""
        with suppress(DiscoveryError):  # an app that no module's global holds
            self._app_reference = reference_of(app)
        return app

    def _store(self, path: Path) -> Callable[[], Store] | None:
        url = self._settings.store
        if url == "none":
            return None

        def opened() -> Store:
            return open_store(str(path / "rollouts.db") if url is None else url)

        return opened

    async def _evaluate(self, player: LocalRunner | RemoteRunner) -> dict[str, Any]:
        asked = self._asked
        about = await self._waited_for(
            player.about(asked.environment if asked.plan is None else asked.plan.environment)
        )
        plan = await self._plan(player, about)
        await player.check(plan)
        self.path = self.path or new_path(about.app, plan.names)
        directory = Directory(self.path, plan)
        try:
            whole = configuration(plan, about, app_reference=self._app_reference, options=self._stored_options())
            config = directory.begin(whole, resume=asked.resume)
            self._remember(whole)
            self._begin(plan, about, directory, config)
            if next(directory.missing(retry_failed=asked.retry_failed), None) is not None:
                await player.open()
                try:
                    await self._play(plan, player, directory, config["eval_id"])
                except EvaluationLimitReached as reached:
                    self.stopped = reached
                finally:
                    self._counts = DirectoryCounts(directory.done, directory.failed, directory.unscored, len(plan))
            self.display.close()
            rows = await self._rows(player, plan, directory)
            summary = summarise(plan, directory, about, player.spec, self._asked.summary, rows=rows)
            write_report(plan, directory, summary, asked.summary, created_at=config["created_at"])
            return summary
        finally:
            directory.close()

    def _remember(self, config: dict[str, Any]) -> None:
        """Record that the directory is this user's own. Without the record it is as one from elsewhere, which is said."""
        assert self.path is not None
        try:
            remember(self.path, config)
        except OSError as error:
            self.warnings.append(
                f"The state directory cannot be written ({error.strerror}), so later commands need --app for {self.path}."
            )

    async def _play(
        self, plan: EvalPlan, player: LocalRunner | RemoteRunner, directory: Directory, eval_id: str
    ) -> None:
        asked = self._asked
        number = asked.concurrency
        await evaluate(
            plan,
            player,
            directory,
            eval_id=eval_id,
            concurrency=FixedConcurrency(number) if isinstance(number, int) else AutoConcurrency(),
            retry_failed=asked.retry_failed,
            max_consecutive_failures=asked.max_consecutive_failures,
            limits=EvalLimits(asked.max_failures, asked.max_cost, asked.max_total_tokens),
            watch=self.display,
        )

    async def _rows(self, player: LocalRunner | RemoteRunner, plan: EvalPlan, directory: Directory) -> dict[int, Any]:
        """Fields of the rows of lines without any (of an earlier release), where results are grouped by them."""
        if all(by == "seed" for by in self._asked.by):
            return {}
        seeds = sorted({result.seed for result in directory.results() if not result.row})
        return dict(zip(seeds, await player.rows(plan.environment, plan.split, seeds), strict=True))

    async def _waited_for(self, asked: Coroutine[Any, Any, EvaluatedApp]) -> EvaluatedApp:
        """The answer; reports a server that is slow to give it (a cold container, or one that hangs)."""
        task = asyncio.create_task(asked)
        try:
            if not (await asyncio.wait([task], timeout=SILENCE_SECONDS))[0]:
                self.display.say(clean(f"{self._asked.app} takes its time to answer; Ctrl-C stops waiting."))
            return await task
        finally:
            task.cancel()

    async def _plan(self, player: LocalRunner | RemoteRunner, about: EvaluatedApp) -> EvalPlan:
        asked, plan = self._asked, self._asked.plan
        if plan is None:
            seeds = await select_seeds(
                player,
                about,
                environment=asked.environment,
                split=asked.split,
                given=None if asked.seeds is None else Seeds.read(asked.seeds),
                difficulty=asked.difficulty,
                tags=asked.tags,
            )
            plan = EvalPlan(
                seeds=seeds,
                policies=tuple(asked.policies.values()),
                names=tuple(asked.policies),
                environment=asked.environment,
                split=asked.split,
                repeats=asked.repeats,
                output_mode=asked.output_mode,
                config=asked.env_config or {},
                ops=asked.ops or 0,
                max_time_seconds=asked.max_time_seconds,
                skip_judges=asked.judges == "skip",
                max_refusals=asked.max_refusals,
                max_rollout_tokens=asked.max_rollout_tokens,
                difficulty=tuple(asked.difficulty),
                tags=tuple(asked.tags),
                only=tuple(asked.only),
            )
        await check_groups(player, asked.by, plan.seeds, environment=plan.environment, split=plan.split)
        return plan

    def _stored_options(self) -> dict[str, Any]:
        """What the command that goes on without flags needs; no key."""
        asked, settings = self._asked, self._settings
        stored = {name: getattr(asked, name) for name in STORED_OPTIONS}
        stored |= policies_to_store(asked.policies, asked.models)
        stored["environment"] = asked.environment  # as it is sent, absent where the app chose
        if is_url(asked.app):
            stored["url"] = stored_url(asked.app)
        if settings.store is not None:
            stored["store"] = _store_to_store(settings.store)
        if settings.cache is not None:
            stored["cache"] = str(settings.cache.absolute())
        self._goes_on_alone = NOT_STORED not in stored and stored.get("store") != ELSEWHERE
        return {name: value for name, value in stored.items() if value not in (None, ())}

    def _begin(self, plan: EvalPlan, about: EvaluatedApp, directory: Directory, config: dict[str, Any]) -> None:
        """Print what will be played and what was there before."""
        name = " ".join(filter(None, (about.app, about.version)))
        note = f" ({self._note})" if self._note else ""
        seeds = one_line(str(plan.seeds), 60)
        self.display.several = len(plan.names) > 1
        count = counted(len(plan), "rollout")
        who = "policy" if len(plan.names) == 1 else "policies"
        self.display.say(
            clean(
                f"{name}, {who} {', '.join(plan.names)}{note}, seeds {seeds}: {count}; results go to {directory.path}"
            )
        )
        if not directory.done:
            return
        for result in directory.results():
            if not (result.failed and self._asked.retry_failed):
                self.display.counts.see(result)
        failed = f", {directory.failed} of them failed" if directory.failed else ""
        self.display.say(f"{directory.done} are there already{failed}.")
        if config["git"] != about.git:
            self.display.say("Warning: the app's checkout is at another commit than when this evaluation began.")

    def command_to_go_on(self, *, retry_failed: bool = False) -> str:
        """The command that plays what is left, in words; retry_failed: and what failed."""
        again = " --retry-failed" if retry_failed else ""
        if self._goes_on_alone:
            return f"`taskapp eval {shlex.quote(clean(str(self.path)))}{again}`"
        return f"the same command with --out {clean(str(self.path))} --resume{again}"

    def how_to_score(self, unscored: int) -> str:
        """The sentence about rollouts that only lack their scores; empty without any, or where they are not stored."""
        if not unscored or self.path is None or not (self.path / DATABASE).is_file():
            return ""
        line = shlex.join(["taskapp", "rescore", str(self.path)])
        return f"`{clean(line)}` scores the {unscored} that were played and not scored; no policy is called. "

    def how_to_go_on(self, *, retry_failed: bool = False) -> None:
        """Print, after an interruption, what is stored and how to resume. retry_failed: failures ended the evaluation."""
        if self._counts is None or not self._counts.done:
            return
        counts = self._counts
        failed = f" ({counts.failed} of them failed)" if counts.failed else ""
        score = self.how_to_score(counts.unscored)
        commands = []
        if counts.done < counts.asked and (score or not retry_failed):
            commands.append(f"{self.command_to_go_on()} goes on")
        if retry_failed:
            commands.append(f"{self.command_to_go_on(retry_failed=True)} goes on and plays the failed ones again")
        if commands:
            words = "; ".join(commands)
            echo(
                f"{counts.done} of {counts.asked} rollouts are stored{failed}. {score}{words[:1].upper()}{words[1:]}.",
                err=True,
            )


def _store_to_store(url: str) -> str:
    if url == "none" or url.startswith("sqlite:"):
        return url
    return ELSEWHERE if "://" in url else str(Path(url).absolute())

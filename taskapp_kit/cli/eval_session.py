"""One run of `taskapp eval`: opens the app and the directory, plays what is missing, summarises, closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.eval_progress import EvalDisplay
from taskapp_kit.cli.options import is_url
from taskapp_kit.cli.terminal import clean, counted, one_line
from taskapp_kit.errors import DiscoveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from taskapp_kit.config import Settings
    from taskapp_kit.contract.protocols import Store
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.evaluate.directory import Directory
    from taskapp_kit.evaluate.plan import EvalPlan
    from taskapp_kit.evaluate.runners import EvaluatedApp, LocalRunner, RemoteRunner
    from taskapp_kit.evaluate.seeds import Seeds

FIRST_SEEDS = 10
SILENCE_SECONDS = 3.0


@dataclass(frozen=True)
class EvalOptions:
    """The command line. app: or the address of one. local: the app beside an address. policy: its `policy.config`."""

    app: str
    local: str | None
    policy: dict[str, Any] = field(repr=False)
    key: str | None = field(repr=False)
    environment: str | None
    seeds: str | None
    split: str | None
    repeats: int
    output_mode: str
    env_config: dict[str, Any] | None
    ops: int | None
    max_time_seconds: float
    max_refusals: int | None
    max_rollout_tokens: int | None
    concurrency: int
    max_consecutive_failures: int
    workers: int | None
    out: Path | None
    resume: bool
    retry_failed: bool
    judges: str
    as_json: bool


@dataclass(frozen=True)
class DirectoryCounts:
    """Rollouts in the directory when an evaluation ended: done, failed among them, asked for."""

    done: int
    failed: int
    asked: int


class Session:
    """One run of the command: opens the app and the directory, plays, summarises, closes.

    warnings: sentences about the app that `run` adds, one for each environment.
    """

    def __init__(self, asked: EvalOptions, settings: Settings, note: str) -> None:
        self.display = EvalDisplay(quiet=asked.as_json)
        self.path: Path | None = asked.out
        self._asked = asked
        self._settings = settings
        self._note = note
        self._counts: DirectoryCounts | None = None
        self._app_reference: str | None = None
        self.warnings: list[str] = []
        self.without_app = is_url(asked.app) and asked.local is None

    async def run(self) -> dict[str, Any]:
        """The summary. Raises TaskappError."""
        player = self._player()
        try:
            return await self._evaluate(player)
        finally:
            self.display.close()
            self.warnings += player.warnings.values()
            await player.close()

    def _player(self) -> LocalRunner | RemoteRunner:
        from taskapp_kit.cli.local_app import only_authors_log, open_app
        from taskapp_kit.declare.discovery import find_app
        from taskapp_kit.evaluate.directory import new_path
        from taskapp_kit.evaluate.runners import LocalRunner, RemoteRunner

        asked = self._asked
        if is_url(asked.app):
            only_authors_log()
            spec = None if asked.local is None else self._named(find_app(asked.local)).freeze()
            return RemoteRunner(asked.app, asked.key, max_time_seconds=asked.max_time_seconds, spec=spec)
        found = self._named(open_app(asked.app, self._settings))
        found.freeze()
        if self.path is None:
            self.path = new_path(found.name, asked.policy)
        return LocalRunner(
            found,
            self._settings,
            store=self._store(self.path),
            concurrency=asked.concurrency,
            workers=asked.workers or 0,
            max_time_seconds=asked.max_time_seconds,
            skip_judges=asked.judges == "skip",
        )

    def _named(self, app: TaskApp) -> TaskApp:
        """The app; its import reference is stored in the configuration."""
        from taskapp_kit.declare.discovery import reference_of

        with suppress(DiscoveryError):  # an app that no module's global holds
            self._app_reference = reference_of(app)
        return app

    def _store(self, path: Path) -> Callable[[], Store] | None:
        url = self._settings.store
        if url == "none":
            return None

        def opened() -> Store:
            from taskapp_kit.store import open_store

            return open_store(str(path / "rollouts.db") if url is None else url)

        return opened

    async def _evaluate(self, player: LocalRunner | RemoteRunner) -> dict[str, Any]:
        from taskapp_kit.evaluate.directory import Directory, new_path
        from taskapp_kit.evaluate.run import configuration, evaluate, summarise

        asked = self._asked
        about = await self._waited_for(player.about(asked.environment))
        plan = self._plan(about)
        await player.check(plan)
        self.path = self.path or new_path(about.app, asked.policy)
        directory = Directory(self.path, plan)
        try:
            whole = configuration(plan, about, app_reference=self._app_reference)
            config = directory.begin(whole, resume=asked.resume)
            self._begin(plan, about, directory, config)
            if next(directory.missing(retry_failed=asked.retry_failed), None) is not None:
                await player.open()
                try:
                    await evaluate(
                        plan,
                        player,
                        directory,
                        eval_id=config["eval_id"],
                        concurrency=asked.concurrency,
                        retry_failed=asked.retry_failed,
                        max_consecutive_failures=asked.max_consecutive_failures,
                        watch=self.display,
                    )
                finally:
                    self._counts = DirectoryCounts(directory.done, directory.failed, len(plan))
            self.display.close()
            return summarise(plan, directory, about, player.spec)
        finally:
            directory.close()

    async def _waited_for(self, asked: Coroutine[Any, Any, EvaluatedApp]) -> EvaluatedApp:
        """The answer; reports a server that is slow to give it (a cold container, or one that hangs)."""
        task = asyncio.create_task(asked)
        try:
            if not (await asyncio.wait([task], timeout=SILENCE_SECONDS))[0]:
                self.display.say(clean(f"{self._asked.app} takes its time to answer; Ctrl-C stops waiting."))
            return await task
        finally:
            task.cancel()

    def _plan(self, about: EvaluatedApp) -> EvalPlan:
        from taskapp_kit.evaluate.plan import EvalPlan
        from taskapp_kit.evaluate.seeds import Seeds

        asked = self._asked
        return EvalPlan(
            seeds=_first_seeds(about, asked.split) if asked.seeds is None else Seeds.read(asked.seeds),
            policy=asked.policy,
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
        )

    def _begin(self, plan: EvalPlan, about: EvaluatedApp, directory: Directory, config: dict[str, Any]) -> None:
        """Print what will be played and what was there before."""
        name = " ".join(filter(None, (about.app, about.version)))
        note = f" ({self._note})" if self._note else ""
        seeds = one_line(str(plan.seeds), 60)
        count = counted(len(plan), "rollout")
        self.display.say(
            clean(f"{name}, policy {plan.policy_name}{note}, seeds {seeds}: {count}; results go to {directory.path}")
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

    def how_to_go_on(self, *, retry_failed: bool = False) -> None:
        """Print, after an interruption, what is stored and how to resume. retry_failed: play failed rollouts again."""
        if self._counts is None or not self._counts.done:
            return
        counts, flags = self._counts, "--resume --retry-failed" if retry_failed else "--resume"
        failed = f" ({counts.failed} of them failed)" if counts.failed else ""
        if retry_failed or counts.done < counts.asked:
            click.echo(
                clean(
                    f"{counts.done} of {counts.asked} rollouts are stored{failed}. The same command with --out {self.path} "
                    f"{flags} goes on{' and plays the failed ones again' if retry_failed else ''}."
                ),
                err=True,
            )


def _first_seeds(about: EvaluatedApp, split: str | None) -> Seeds:
    """The first of the split, when none were named. Raises UsageError."""
    from taskapp_kit.evaluate.seeds import Seeds

    seeds = about.splits.get(split) if split is not None else next(iter(about.splits.values()), None)
    if not seeds:
        raise click.UsageError("Which seeds? Give --seeds 0-99.")
    return Seeds(range(seed, seed + 1) for seed in seeds[:FIRST_SEEDS])

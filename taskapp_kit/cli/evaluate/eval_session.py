"""One run of `taskapp eval`: open the app and the directory, play the remaining rollouts, and summarize them."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.evaluate.eval_options import (
    ELSEWHERE,
    OF_THE_LIMITS,
    OF_THE_LISTED,
    OF_THE_POLICIES,
    STORED_OPTIONS,
    EvalOptions,
)
from taskapp_kit.cli.local_app import only_authors_log, open_app
from taskapp_kit.cli.options import command_with, is_url, typed
from taskapp_kit.cli.output.eval_progress import EvalDisplay
from taskapp_kit.cli.output.terminal import clean, echo, one_line
from taskapp_kit.cli.policy_options import chosen_model
from taskapp_kit.cli.rollout_selection import Selection, selection
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app, reference_of
from taskapp_kit.errors import ConfigError, DiscoveryError, EvaluationLimitReached
from taskapp_kit.evaluate.continued import NAMES_IN_FILE, NOT_STORED, policies_again, policies_to_store
from taskapp_kit.evaluate.directory import DATABASE, Directory, new_path
from taskapp_kit.evaluate.limits import EvalLimits
from taskapp_kit.evaluate.own_directories import check_own, policy_flags, remember
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.report import write_report
from taskapp_kit.evaluate.run import MOST_AT_ONCE, AutoConcurrency, configuration, evaluate, summarise
from taskapp_kit.evaluate.runners import LocalRunner, RemoteRunner
from taskapp_kit.evaluate.seed_selection import check_groups, select_seeds, unplayed
from taskapp_kit.evaluate.source import DirectorySource
from taskapp_kit.evaluate.summary import SummaryOptions
from taskapp_kit.records.formatting import counted
from taskapp_kit.rollout.models.model_settings import ModelNames
from taskapp_kit.store import open_store
from taskapp_kit.wire.inference_url import stored_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from taskapp_kit.config import Settings
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.evaluate.runners import EvaluatedApp
    from taskapp_kit.records.protocols import Store


SILENCE_SECONDS = 3.0


@dataclass(frozen=True)
class DirectoryCounts:
    """Numbers of rollouts in a directory. `done` includes `failed` and `unscored`. `total` is the planned number."""

    done: int
    failed: int
    unscored: int
    total: int


class Session:
    """One run of `taskapp eval`.

    Attributes:
        warnings: Warnings about the app, at most one per environment.
        stopped: The limit that ended the evaluation early, if any.
    """

    def __init__(self, evaluation: EvalOptions, settings: Settings, note: str) -> None:
        self.display = EvalDisplay(quiet=evaluation.as_json)
        self.path: Path | None = evaluation.out
        self.stopped: EvaluationLimitReached | None = None
        self._evaluation = evaluation
        self._settings = settings
        self._note = note
        self._counts: DirectoryCounts | None = None
        self._app_reference: str | None = None
        self._goes_on_alone = True
        self.warnings: list[str] = []
        self._how = SummaryOptions(evaluation.by, evaluation.pass_at, evaluation.interval)
        self.without_app = is_url(evaluation.app) and evaluation.local is None

    def run(self) -> dict[str, Any]:
        """Play the rollouts and return the summary.

        If a limit ends the run early, the summary covers the rollouts that were played.
        """
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
        evaluation, plan = self._evaluation, self._evaluation.plan
        seconds = plan["max_time_seconds"]
        if is_url(evaluation.app):
            only_authors_log()
            spec = None if evaluation.local is None else self._named(find_app(evaluation.local)).freeze()
            names = ModelNames.of(self._settings)
            return RemoteRunner(evaluation.app, evaluation.key, max_time_seconds=seconds, spec=spec, model_names=names)
        app = self._named(open_app(evaluation.app, self._settings))
        app.freeze()
        if self.path is None:
            self.path = new_path(app.name, plan["names"])
        return LocalRunner(
            app,
            self._settings,
            store=self._store(self.path),
            concurrency=evaluation.concurrency if isinstance(evaluation.concurrency, int) else MOST_AT_ONCE,
            workers=evaluation.workers or 0,
            max_time_seconds=seconds,
            skip_judges=plan["skip_judges"],
        )

    def _named(self, app: TaskApp) -> TaskApp:
        """Remember the app's import reference, which the directory's configuration will contain, and return the app."""
        with suppress(DiscoveryError):  # the app is not a global variable of a module
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
        evaluation = self._evaluation
        about = await self._waited_for(player.about(evaluation.plan["environment"]))
        plan = await self._plan(player, about)
        await player.check(plan)
        self.path = self.path or new_path(about.app, plan.names)
        directory = Directory(self.path, plan)
        try:
            whole = configuration(plan, about, app_reference=self._app_reference, options=self._stored_options())
            config = directory.begin(whole, resume=evaluation.resume)
            self._remember(whole)
            self._begin(plan, about, directory, config)
            if next(directory.missing(retry_failed=evaluation.retry_failed), None) is not None:
                await player.open()
                try:
                    await self._play(plan, player, directory, config["eval_id"])
                except EvaluationLimitReached as reached:
                    self.stopped = reached
                finally:
                    self._counts = DirectoryCounts(directory.done, directory.failed, directory.unscored, len(plan))
            self.display.close()
            rows = await self._rows(player, plan, directory)
            how = replace(self._how, ranges=about.ranges)
            summary = summarise(plan, directory, about, player.spec, how, rows=rows)
            write_report(plan, directory, summary, how, created_at=config["created_at"])
            return summary
        finally:
            directory.close()

    def _remember(self, config: dict[str, Any]) -> None:
        """Record that the directory belongs to this user. If that fails, warn that later commands need --app."""
        assert self.path is not None
        try:
            remember(self.path, config)
        except OSError as error:
            self.warnings.append(
                f"The state directory is not writable ({error.strerror}), so later commands need --app for {self.path}."
            )

    async def _play(
        self, plan: EvalPlan, player: LocalRunner | RemoteRunner, directory: Directory, eval_id: str
    ) -> None:
        evaluation = self._evaluation
        number = evaluation.concurrency
        await evaluate(
            plan,
            player,
            directory,
            eval_id=eval_id,
            concurrency=number if isinstance(number, int) else AutoConcurrency(),
            retry_failed=evaluation.retry_failed,
            max_consecutive_failures=evaluation.max_consecutive_failures,
            limits=EvalLimits(evaluation.max_failures, evaluation.max_cost, evaluation.max_total_tokens),
            watch=self.display,
        )

    async def _rows(self, player: LocalRunner | RemoteRunner, plan: EvalPlan, directory: Directory) -> dict[int, Any]:
        """Return fields of rows by seed, for results that were stored by earlier releases and lack these fields.

        The result is empty if the summary does not group results by a field of the row.
        """
        if all(by == "seed" for by in self._evaluation.by):
            return {}
        seeds = sorted({result.seed for result in directory.results() if not result.row})
        return dict(zip(seeds, await player.rows(plan.environment, plan.split, seeds), strict=True))

    async def _waited_for(self, answer: Coroutine[Any, Any, EvaluatedApp]) -> EvaluatedApp:
        """Wait for a server's response, and print a note if it is slow, for example because a container is starting."""
        task = asyncio.create_task(answer)
        try:
            if not (await asyncio.wait([task], timeout=SILENCE_SECONDS))[0]:
                self.display.say(clean(f"Waiting for a response from {self._evaluation.app}. Ctrl-C stops waiting."))
            return await task
        finally:
            task.cancel()

    async def _plan(self, player: LocalRunner | RemoteRunner, about: EvaluatedApp) -> EvalPlan:
        evaluation, seeds = self._evaluation, self._evaluation.seeds
        if seeds is None or not evaluation.selected:
            names = ("environment", "split", "difficulty", "tags")
            seeds = await select_seeds(player, about, given=seeds, **{name: evaluation.plan[name] for name in names})
        plan = EvalPlan(seeds=seeds, **evaluation.plan)
        await check_groups(player, evaluation.by, plan.seeds, environment=plan.environment, split=plan.split)
        return plan

    def _stored_options(self) -> dict[str, Any]:
        """Return the options, except API keys, that `taskapp eval DIR` needs to continue without flags."""
        evaluation, plan, settings = self._evaluation, self._evaluation.plan, self._settings
        stored = {name: getattr(evaluation, name) for name in STORED_OPTIONS}
        stored |= policies_to_store(dict(zip(plan["names"], plan["policies"], strict=True)), evaluation.models)
        stored["environment"] = plan["environment"]  # as sent in requests; absent if the app chooses the environment
        if is_url(evaluation.app):
            stored["url"] = stored_url(evaluation.app)
        if settings.store is not None:
            stored["store"] = _store_to_store(settings.store)
        if settings.cache is not None:
            stored["cache"] = str(settings.cache.absolute())
        self._goes_on_alone = NOT_STORED not in stored and stored.get("store") != ELSEWHERE
        return {name: value for name, value in stored.items() if value not in (None, ())}

    def _begin(self, plan: EvalPlan, about: EvaluatedApp, directory: Directory, config: dict[str, Any]) -> None:
        """Print which rollouts will be played, and how many were played before."""
        name = " ".join(filter(None, (about.app, about.version)))
        left_out = unplayed(about, plan.split, plan.seeds) if self._evaluation.seeds is None else ""
        note = f" ({self._note})" if self._note else ""
        seeds = one_line(str(plan.seeds), 60)
        self.display.several = len(plan.names) > 1
        count = counted(len(plan), "rollout")
        who = "policy" if len(plan.names) == 1 else "policies"
        self.display.say(
            clean(
                f"{name}, {who} {', '.join(plan.names)}{note}, seeds {seeds}{left_out}: {count}; results go to {directory.path}"
            )
        )
        if not directory.done:
            return
        for result in directory.results():
            if not (result.failed and self._evaluation.retry_failed):
                self.display.counts.see(result)
        failed = f"; {directory.failed} of them failed" if directory.failed else ""
        self.display.say(f"{directory.done} rollouts were played before{failed}.")
        if config["git"] != about.git:
            self.display.say("Warning: the app's git commit has changed since this evaluation started.")

    def command_to_go_on(self, *, retry_failed: bool = False) -> str:
        """Return text that names the command to continue with. retry_failed: also play the failed rollouts again."""
        again = " --retry-failed" if retry_failed else ""
        if self._goes_on_alone:
            return f"`taskapp eval {shlex.quote(clean(str(self.path)))}{again}`"
        return f"the same command with --out {clean(str(self.path))} --resume{again}"

    def how_to_score(self, unscored: int) -> str:
        """Return a sentence on how to score the unscored rollouts, or an empty string if nothing can be scored."""
        if not unscored or self.path is None or not (self.path / DATABASE).is_file():
            return ""
        line = shlex.join(["taskapp", "rescore", str(self.path)])
        return f"`{clean(line)}` scores the {unscored} that were played but not scored, without calling the policy. "

    def how_to_go_on(self, *, retry_failed: bool = False) -> None:
        """After an interruption, print how many rollouts are stored and how to continue.

        retry_failed: Whether to suggest playing the failed rollouts again.
        """
        if self._counts is None or not self._counts.done:
            return
        counts = self._counts
        failed = f" ({counts.failed} of them failed)" if counts.failed else ""
        score = self.how_to_score(counts.unscored)
        commands = []
        if counts.done < counts.total and (score or not retry_failed):
            commands.append(f"{self.command_to_go_on()} continues")
        if retry_failed:
            commands.append(f"{self.command_to_go_on(retry_failed=True)} continues and plays the failed rollouts again")
        if commands:
            words = "; ".join(commands)
            echo(
                f"{counts.done} of {counts.total} rollouts are stored{failed}. {score}{words[:1].upper()}{words[1:]}.",
                err=True,
            )


def _store_to_store(url: str) -> str:
    if url == "none" or url.startswith("sqlite:"):
        return url
    return ELSEWHERE if "://" in url else str(Path(url).absolute())


@dataclass(frozen=True)
class PlayedAgain:
    """The rollouts that another evaluation plays again.

    Attributes:
        app: The reference or URL of the evaluation's app, or None if the evaluation does not name it.
        seeds: The seeds, in the format of --seeds.
        only: The (seed, sample) pairs to play. If it is empty, sample 0 of each seed is played.
        policies: Each `policy.config` by name, with the model's API key, or None if the command line chooses the
            policies.
        models: Names of models in models.toml, by the policy's name.
        options: The evaluation's values of other options, by option name. Options on the command line are omitted.
    """

    app: str | None
    environment: str | None
    split: str | None
    env_config: dict[str, Any]
    seeds: str
    only: tuple[tuple[int, int], ...]
    policies: dict[str, dict[str, Any]] | None
    models: dict[str, str]
    options: dict[str, Any]


def played_again(ctx: click.Context, path: Path, settings: Settings, *, failed: bool, worst: int | None) -> PlayedAgain:
    """Return the rollouts that `show PATH --failed` or `show PATH --worst N` lists. Each (seed, sample) pair occurs once.

    Raises UsageError for a wrong combination of options, StoreError if the store cannot be read, and ConfigError if no
    rollout is selected or the policy was not stored completely.
    """
    if not failed and worst is None:
        raise click.UsageError("--seeds-from needs --failed or --worst N.")
    flags = typed(ctx)
    for name, flag in flags.items():
        if name in OF_THE_LISTED:
            raise click.UsageError(f"{flag} is determined by the rollouts in {path}. Omit it.")
    source = DirectorySource(path)
    pairs = asyncio.run(_listed(source, selection(failed=failed, worst=worst)))
    if not pairs:
        raise ConfigError(f"No rollout in {path} {'failed' if failed else 'has a reward'}.")
    config, asked = source.config, source.config["asked"]
    stored = config.get("options", {})
    policies = None
    names_policy, names_app = flags.keys() & OF_THE_POLICIES, flags.keys() & {"app", "app_id"}
    if not (names_policy and names_app):
        app = [] if names_app else ["--app", str(stored.get("url") or config.get("app_reference") or "APP")]
        check_own(path, config, command_with([*app, *([] if names_policy else policy_flags(config))]))
    if not names_policy:
        policies = policies_again(dict(config), lambda name: chosen_model(settings, name, None))
        if len(policies) > 1:
            raise click.UsageError(f"{path} contains several policies ({', '.join(policies)}). Pass --policy NAME.")
    return PlayedAgain(
        app=stored.get("url") or config.get("app_reference"),
        environment=asked.get("environment"),
        split=asked.get("split"),
        env_config=dict(asked.get("config") or {}),
        seeds=",".join(str(seed) for seed in dict.fromkeys(seed for seed, _ in pairs)),
        only=tuple(pairs) if any(sample for _, sample in pairs) else (),
        policies=policies,
        models=stored.get(NAMES_IN_FILE, {}),
        options={
            name: asked[name]
            for name in (*OF_THE_LIMITS, *(() if policies is None else ("output_mode",)))
            if asked.get(name) and name not in flags
        },
    )


async def _listed(source: DirectorySource, chosen: Selection) -> list[tuple[int, int]]:
    try:
        return sorted({(row.seed, row.sample or 0) for row in await chosen.rows(source)})
    finally:
        await source.close()

"""`taskapp judge`: how good an app's judges are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.terminal import clean, console, example, number, print_json, table
from taskapp_kit.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from taskapp_kit.config import Settings
    from taskapp_kit.contract.protocols import Store
    from taskapp_kit.contract.trajectory import Trajectory
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.declare.specs import AppSpec, JudgeSpec
    from taskapp_kit.rollout.score.calibration import Case, CaseResult

KNOWN = {
    "judge",
    "environment",
    "split",
    "seed",
    "config",
    "answer",
    "answers",
    "rollout_id",
    "rollout_ids",
    "label",
    "labels",
}
DEADLINE_SECONDS = 24 * 3600.0
ROWS = (
    ("labels", "labels"),
    ("accuracy", "accuracy"),
    ("kappa", "Cohen's κ"),
    ("spearman", "Spearman"),
    ("pairs", "pairs in order"),
    ("mean_difference", "score − label, mean"),
    ("length_bias", "length bias"),
    ("position_bias", "position bias"),
    ("repeat_spread", "spread between repeats"),
    ("calls", "calls"),
    ("unusable_answers", "unusable answers"),
    ("tokens", "tokens"),
    ("cost", "cost, US dollars"),
    ("seconds", "seconds of calls"),
)


@click.group(epilog=example("taskapp judge calibrate explain.py --labels labels.jsonl"))
def command() -> None:
    """Hold an app's judges against people's labels."""


@command.command(
    epilog=example(
        "taskapp judge calibrate explain.py --labels labels.jsonl",
        "taskapp judge calibrate explain.py --labels labels.jsonl --repeats 3 --json",
        "taskapp judge calibrate game.py --labels labels.jsonl --store sqlite:///rollouts.db",
    )
)
@click.argument("app", metavar="APP")
@click.option(
    "--labels", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="F",
    help="JSON Lines, one labelled answer each.",
)  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, 100), default=1, metavar="N", help="Ask about each answer so often.")
@click.option(
    "--threshold", type=float, metavar="X",
    help="From here on a score counts as good, for accuracy and κ.  [default: the middle of the scale]",
)  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 256), default=8, metavar="N", help="Answers judged at once.")
@click.option("--store", metavar="URL", help="Where the rollouts are that labels name by rollout_id.")
@click.option("--env-file", "env_files", multiple=True, metavar="F", help="Read settings from this file; may repeat.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, each answer's score included.")
def calibrate(
    app: str, labels: Path, repeats: int, threshold: float | None, concurrency: int, store: str | None,
    env_files: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Ask the judges of APP about labelled answers, and tell how far they agree.

    A line of the file is {"seed": 0, "answer": "…", "label": 0.5}: the words (or the action) that are played at that
    seed, and a number in the judge's scale or one of its choices. {"rollout_id": "…", "label": …} names a stored rollout
    instead. For a judge of groups: "answers" or "rollout_ids", and "labels". "judge" names one where the app has several;
    "environment", "split" and "config" are as in a request.
    """
    import asyncio

    from taskapp_kit.cli.failure_output import only_authors_log
    from taskapp_kit.config import export, load
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.rollout.score.calibration import report

    settings = load({"store": store}, env_files=env_files)
    export(settings)
    only_authors_log()
    found = find_app(app)
    spec = found.freeze()
    if not spec.judges:
        raise ConfigError(f"The app {spec.name!r} declares no judge.", hint="Declare one with @app.judge.")
    results = asyncio.run(_ask(found, spec, labels.name, labels.read_bytes(), settings, repeats, concurrency))
    by_judge: dict[str, list[CaseResult]] = {}
    for result in results:
        by_judge.setdefault(result.case.judge.name, []).append(result)
    reports = [report(of_one, threshold=threshold) for of_one in by_judge.values()]
    if as_json:
        cases = [
            {"place": item.case.place, "judge": item.case.judge.name, "scores": item.scores,
             "labels": list(item.case.labels), "error": item.error}
            for item in results
        ]  # fmt: skip
        print_json({"judges": reports, "cases": cases})
    else:
        _print(reports)
    if any(item["failed"] for item in reports):
        raise click.exceptions.Exit(1)


def _print(reports: list[dict[str, Any]]) -> None:
    shown = table("", *(item["judge"] for item in reports), right=tuple(item["judge"] for item in reports))
    for name, words in ROWS:
        shown.add_row(words, *(number(item[name]) for item in reports))
    console().print(shown)
    for item in reports:
        if item["threshold"] is not None:
            console().print(f"{item['judge']}: good from {item['threshold']:g} on, for accuracy and κ.")
        for failed in item["failed"]:
            click.echo(f"{item['judge']}, {failed['place']}: {clean(failed['error'])}", err=True)


async def _ask(
    app: TaskApp, spec: AppSpec, name: str, text: bytes, settings: Settings, repeats: int, concurrency: int
) -> list[CaseResult]:
    """Every case asked, in the file's order. Raises ConfigError for a bad line, Unavailable without a model."""
    import asyncio

    from taskapp_kit.contract.chat import role_variable
    from taskapp_kit.contract.protocols import SystemClock
    from taskapp_kit.rollout.models.access import ThreadPort, model_access
    from taskapp_kit.rollout.score.calibration import ask_about

    store: Store | None = None
    if settings.store not in (None, "none"):
        from taskapp_kit.store import open_store

        store = open_store(str(settings.store))
    access = model_access(settings, "local", SystemClock())
    places = asyncio.Semaphore(concurrency)

    async def one(case: Case) -> CaseResult:
        async with places:
            port = ThreadPort(access.of_rollout(None, DEADLINE_SECONDS))
            return await asyncio.to_thread(ask_about, spec, case, port, repeats=repeats)

    try:
        cases = await _LabelReader(app, spec, store).read(name, text)
        for role in sorted({role for case in cases for role in case.judge.models}):
            if not access.configured(role):
                raise Unavailable(f"no model has the role {role!r}.", hint=f"Set {role_variable(role)}.")
        return await asyncio.gather(*map(one, cases))
    finally:
        await access.close()
        if store is not None:
            await store.close()


class _LabelReader:
    """Reads labels: plays each answer, or takes the rollout that is named from the store. No judge is asked meanwhile."""

    def __init__(self, app: TaskApp, spec: AppSpec, store: Store | None) -> None:
        from dataclasses import replace

        from taskapp_kit.rollout.request import RequestPlanner

        self._spec = spec
        self._unscored = replace(spec, criteria=(), judges=(), metrics=(), aggregates=(), reward=None)
        self._planner = RequestPlanner(spec, app.file.parent)
        self._store = store
        self._place = ""

    async def read(self, name: str, text: bytes) -> list[Case]:
        """The cases of a file with this text. Raises ConfigError naming the line."""
        import orjson

        cases = []
        for at, line in enumerate(text.splitlines(), start=1):
            self._place = f"{name}:{at}"
            if not line.strip():
                continue
            try:
                told = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise self._wrong(f"is not JSON ({error})") from None
            if not isinstance(told, dict):
                raise self._wrong("is no JSON object")
            cases.append(await self._case(told))
        if not cases:
            raise ConfigError(f"{name} has no labels.", hint='A line is {"seed": 0, "answer": "…", "label": 0.5}.')
        return cases

    async def _case(self, told: dict[str, Any]) -> Case:
        from taskapp_kit.rollout.score.calibration import Case

        unknown = sorted(set(told) - KNOWN)
        if unknown:
            raise self._wrong(f"has {unknown[0]!r}, which nothing reads; known are {', '.join(sorted(KNOWN))}")
        judge = self._judge(told.get("judge"))
        many = "s" if judge.group else ""
        sources = [name for name in (f"answer{many}", f"rollout_id{many}") if name in told]
        label = told.get(f"label{many}")
        if len(sources) != 1 or label is None:
            raise self._wrong(
                f"of judge {judge.name!r} needs label{many}, and one of answer{many} and rollout_id{many}"
            )
        given, labels = (told[sources[0]], label) if judge.group else ([told[sources[0]]], [label])
        if not isinstance(given, list) or not isinstance(labels, list) or len(given) != len(labels) or not given:
            raise self._wrong("needs as many labels as answers")
        if judge.group and len(given) < 2:
            raise self._wrong("needs at least two answers to compare")
        read = self._stored if sources[0].startswith("rollout") else self._played
        trajectories = [await read(item, told) for item in given]
        first = trajectories[0]
        if not judge.applies_to(first.environment):
            raise self._wrong(f"is of environment {first.environment!r}, which judge {judge.name!r} is not for")
        if any(
            (one.environment, one.split, one.seed) != (first.environment, first.split, first.seed)
            for one in trajectories
        ):
            raise self._wrong("has rollouts of different seeds")
        task = self._planner.instance(first.environment, first.split, first.seed).task
        values = tuple(self._label(judge, value) for value in labels)
        return Case(judge, tuple(trajectories), values, task, first.config, self._place)

    def _judge(self, name: Any) -> JudgeSpec:
        judges = [judge for judge in self._spec.judges if name is None or judge.name == name]
        if len(judges) != 1:
            known = ", ".join(judge.name for judge in self._spec.judges)
            said = "names no judge, and the app has several" if name is None else f"has judge {str(name)[:80]!r}"
            raise self._wrong(f"{said}; judges are {known}")
        return judges[0]

    def _label(self, judge: JudgeSpec, value: Any) -> float:
        lowest, highest = judge.scale
        if judge.choices and value in judge.choices:
            return lowest + (highest - lowest) * judge.choices.index(value) / (len(judge.choices) - 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            words = f"one of {', '.join(judge.choices)}, or a number" if judge.choices else "a number"
            raise self._wrong(f"has label {str(value)[:80]!r}; expected {words} from {lowest:g} to {highest:g}")
        return float(value)

    async def _played(self, answer: Any, told: dict[str, Any]) -> Trajectory:
        import asyncio

        from taskapp_kit.contract.protocols import SystemClock
        from taskapp_kit.contract.wire import RolloutRequest
        from taskapp_kit.rollout.episode.plan import Control
        from taskapp_kit.rollout.play_and_score import play

        config = {**told.get("config", {}), **({"split": told["split"]} if "split" in told else {})}
        body = {
            "run_id": "calibrate",
            "mode": "eval",
            "ops": [],
            "env": {"env_name": told.get("environment"), "seed": told.get("seed", 0), "config": config},
            "policy": {"policy_name": "constant", "config": {"action": answer}},
        }
        plan = self._planner.plan(RolloutRequest.model_validate(body))
        played = await asyncio.to_thread(play, self._unscored, plan, SystemClock(), Control(), [])
        if played.failure is not None:
            raise self._wrong(f"could not be played: {played.failure.message}")
        return played.trajectory

    async def _stored(self, rollout_id: Any, _: dict[str, Any]) -> Trajectory:
        from taskapp_kit.rollout.groups import load_trajectory

        if self._store is None:
            raise self._wrong("names a rollout_id, and there is no store (--store URL)")
        stored = await self._store.load(str(rollout_id))
        if stored is None:
            raise self._wrong(f"names rollout {str(rollout_id)[:80]!r}, which is not in the store")
        return await load_trajectory(self._store, stored)

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._place} {what}.")

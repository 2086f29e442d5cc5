"""Reads answers that people labeled, plays an episode with each answer, and has an app's judges score the answers.

A line of the file is `{"seed": 0, "answer": "…", "label": 0.5}`; `taskapp judge calibrate --help` describes the fields.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson

from taskapp_kit.config import Settings
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.specs import AppSpec, JudgeSpec
from taskapp_kit.errors import ConfigError, Unavailable
from taskapp_kit.records.protocols import QueryableStore, Store, SystemClock
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.models.access import ThreadPort, model_access
from taskapp_kit.rollout.play_and_score import RolloutPlayer
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.score.calibration import Case, CaseResult, ask_about
from taskapp_kit.rollout.source import load_trajectory
from taskapp_kit.wire.chat.conversation import role_variable
from taskapp_kit.wire.rollout import RolloutRequest

KNOWN_MEMBERS = frozenset(
    """judge environment split seed config answer answers rollout_id rollout_ids label labels""".split()
)
DEADLINE_SECONDS = 24 * 3600.0
"""The deadline for all judge calls of one case, in seconds."""


async def judge_labels(
    app: TaskApp, name: str, text: bytes, settings: Settings, store: Store | None, *, repeats: int, concurrency: int
) -> list[CaseResult]:
    """Have the judges score every labeled answer in a file. Results are in the order of the lines.

    Args:
        app: The app with the judges.
        name: The file's name, for messages.
        text: The file's content.
        settings: The settings, with the judges' models.
        store: Contains the rollouts whose ids are in the file. The store is not closed.
        repeats: The number of judge calls per answer.
        concurrency: How many answers are judged concurrently.

    Raises:
        ConfigError: A line is invalid.
        Unavailable: A judge has no model.
    """
    spec = app.freeze()
    access = model_access(settings, "local", SystemClock())
    limiter = asyncio.Semaphore(concurrency)

    async def one(case: Case) -> CaseResult:
        async with limiter:
            port = ThreadPort(access.of_rollout(None, DEADLINE_SECONDS))
            return await asyncio.to_thread(ask_about, spec, case, port, repeats=repeats)

    try:
        cases = await _LabelReader(app, spec, store).read(name, text)
        for role in sorted({role for case in cases for role in case.judge.models}):
            if not access.configured(role):
                raise Unavailable(f"The role {role!r} has no model.", hint=f"Set {role_variable(role)}.")
        return await asyncio.gather(*map(one, cases))
    finally:
        await access.close()


async def annotated_labels(app: TaskApp, store: Store) -> bytes:
    """Return people's annotations for an app's judges in a store, in the format of a label file.

    Raises Unavailable if the store does not support annotations, StoreError if it fails, and ConfigError if no
    annotation is for a judge of this app.
    """
    if not isinstance(store, QueryableStore):
        raise Unavailable("This store does not support annotations.", hint="Use a store of taskapp-kit.")
    judges = {judge.name for judge in app.freeze().judges if not judge.group}
    found = [item for item in await store.annotations(app=app.name) if item.criterion in judges]
    if not found:
        raise ConfigError(
            f"The store has no annotations for a judge of {app.name!r}.",
            hint="Score rollouts in the viewer: open /ui/annotate, or run taskapp view.",
        )
    lines = ({"judge": item.criterion, "rollout_id": item.rollout_id, "label": item.score} for item in found)
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


class _LabelReader:
    """Reads labels. Plays an episode with each answer, or loads the labeled rollout. Calls no judge."""

    def __init__(self, app: TaskApp, spec: AppSpec, store: Store | None) -> None:

        self._spec = spec
        self._unscored = replace(spec, criteria=(), judges=(), metrics=(), aggregates=(), reward=None)
        self._planner = RequestPlanner(spec, app.file.parent)
        self._store = store
        self._place = ""

    async def read(self, name: str, text: bytes) -> list[Case]:
        """Return the cases in a file. Raises ConfigError if a line is invalid. The message names the line."""

        cases = []
        for at, line in enumerate(text.splitlines(), start=1):
            self._place = f"{name}:{at}"
            if not line.strip():
                continue
            try:
                members = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise self._wrong(f"is not JSON ({error})") from None
            if not isinstance(members, dict):
                raise self._wrong("is not a JSON object")
            cases.append(await self._case(members))
        if not cases:
            raise ConfigError(
                f"{name} has no labels.", hint='Write lines like {"seed": 0, "answer": "…", "label": 0.5}.'
            )
        return cases

    async def _case(self, members: dict[str, Any]) -> Case:

        unknown = sorted(set(members) - KNOWN_MEMBERS)
        if unknown:
            raise self._wrong(f"has the unknown field {unknown[0]!r}; expected {', '.join(sorted(KNOWN_MEMBERS))}")
        judge = self._judge(members.get("judge"))
        many = "s" if judge.group else ""
        sources = [name for name in (f"answer{many}", f"rollout_id{many}") if name in members]
        label = members.get(f"label{many}")
        if len(sources) != 1 or label is None:
            raise self._wrong(
                f"is for judge {judge.name!r}, so it must have `label{many}`, and either `answer{many}` or `rollout_id{many}`"
            )
        given, labels = (members[sources[0]], label) if judge.group else ([members[sources[0]]], [label])
        if not isinstance(given, list) or not isinstance(labels, list) or len(given) != len(labels) or not given:
            raise self._wrong("must have one label for each answer or rollout_id")
        if judge.group and len(given) < 2:
            raise self._wrong("must have at least two answers to compare")
        read = self._stored if sources[0].startswith("rollout") else self._played
        trajectories = [await read(item, members) for item in given]
        first = trajectories[0]
        if not judge.applies_to(first.environment):
            raise self._wrong(f"is for environment {first.environment!r}, to which judge {judge.name!r} does not apply")
        if any(
            (one.environment, one.split, one.seed) != (first.environment, first.split, first.seed)
            for one in trajectories
        ):
            raise self._wrong("has rollouts of different tasks; their environment, split and seed must be equal")
        task = self._planner.instance(first.environment, first.split, first.seed).task
        values = tuple(self._label(judge, value) for value in labels)
        return Case(judge, tuple(trajectories), values, task, first.config, self._place)

    def _judge(self, name: Any) -> JudgeSpec:
        judges = [judge for judge in self._spec.judges if name is None or judge.name == name]
        if len(judges) != 1:
            known = ", ".join(judge.name for judge in self._spec.judges)
            found = "names no judge, but the app has several" if name is None else f"has judge {str(name)[:80]!r}"
            raise self._wrong(f"{found}; the judges are {known}")
        return judges[0]

    def _label(self, judge: JudgeSpec, value: Any) -> float:
        lowest, highest = judge.scale
        if judge.choices and value in judge.choices:
            return lowest + (highest - lowest) * judge.choices.index(value) / (len(judge.choices) - 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            words = f"one of {', '.join(judge.choices)}, or a number" if judge.choices else "a number"
            raise self._wrong(f"has label {str(value)[:80]!r}; expected {words} from {lowest:g} to {highest:g}")
        return float(value)

    async def _played(self, answer: Any, members: dict[str, Any]) -> Trajectory:

        config = {**members.get("config", {}), **({"split": members["split"]} if "split" in members else {})}
        body = {
            "run_id": "calibrate",
            "mode": "eval",
            "ops": [],
            "env": {"env_name": members.get("environment"), "seed": members.get("seed", 0), "config": config},
            "policy": {"policy_name": "constant", "config": {"action": answer}},
        }
        plan = self._planner.plan(RolloutRequest.model_validate(body))
        played = await asyncio.to_thread(RolloutPlayer(self._unscored, plan, SystemClock()).play)
        if played.failure is not None:
            raise self._wrong(f"could not be played: {played.failure.message}")
        return played.trajectory

    async def _stored(self, rollout_id: Any, _: dict[str, Any]) -> Trajectory:

        if self._store is None:
            raise self._wrong("has a rollout_id, but no store is set (--store URL)")
        stored = await self._store.load(str(rollout_id))
        if stored is None:
            raise self._wrong(f"names rollout {str(rollout_id)[:80]!r}, which is not in the store")
        return await load_trajectory(self._store, stored)

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._place} {what}.")

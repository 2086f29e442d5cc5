"""Freeze: every declaration is checked, every problem is reported at once, and the frozen AppSpec comes out."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.contract.identity import SEED_LIMIT, overlap
from taskapp_kit.contract.ports import Tool
from taskapp_kit.contract.scorecard import Blend
from taskapp_kit.contract.trajectory import Step
from taskapp_kit.declare.marks import ATTRIBUTE, ActionMark, action, actions_of
from taskapp_kit.declare.rubric_file import Aggregation, Criterion, read_rubric_file
from taskapp_kit.declare.signature import (
    Arguments,
    SignatureProblem,
    is_object,
    names_of,
    needed_names,
    parameters_of,
)
from taskapp_kit.declare.specs import (
    ActionSpec,
    AggregateSpec,
    AppSpec,
    CriterionSpec,
    EnvironmentSpec,
    JudgeSpec,
    MetricSpec,
    PolicySpec,
)
from taskapp_kit.declare.taskapp import Declared, TaskApp, shown_path
from taskapp_kit.declare.tasks import TaskSource, private_fields
from taskapp_kit.errors import DeclarationError, Problem

if TYPE_CHECKING:
    from types import CodeType

T = TypeVar("T")
RESET_NAMES = ("seed", "task", "split", "context")
OUTCOME_NAMES = ("trajectory", "task", "config", "answer_text")
EVENT_NAMES = ("step", "trajectory", "task", "config")
RESERVED_CONFIG = ("split", "index")
KIT_METHODS = ("reset", "close", "final_state", "actions", "setup_worker")


def freeze(app: TaskApp) -> AppSpec:
    """The checked spec of an app. Raises DeclarationError with all problems, sorted by place."""
    return _Freezer(app).run()


class _Freezer:
    def __init__(self, app: TaskApp) -> None:
        self.app = app
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.environments: dict[str, EnvironmentSpec] = {}
        self.aggregation: Aggregation = "weighted_sum"

    def run(self) -> AppSpec:
        app = self.app
        self._duplicates()
        for declared in self._all("environment", "tasks"):
            spec = self._questions(declared) if declared.kind == "tasks" else self._environment(declared)
            if spec is not None:
                self.environments.setdefault(spec.name, spec)
        if not self._all("environment", "tasks"):
            self._problem(app.place, "the app declares no environment", "one environment or one set of tasks",
                          "add @app.environment(\"name\") to a class, or app.tasks(...)")  # fmt: skip
        criteria = _made(map(self._criterion, self._all("rubric")))
        judges = _made(map(self._judge, self._all("judge")))
        for declared in self._all("rubric_file"):
            criteria, more = self._rubric_file(declared, criteria)
            judges.extend(more)
        policies = _made(map(self._policy, self._all("policy")))
        metrics = _made(map(self._metric, self._all("metric")))
        aggregates = _made(map(self._aggregate, self._all("aggregate")))
        for declared in self._all("rollout"):
            if not inspect.iscoroutinefunction(declared.target):
                self._problem(_line(declared.target, declared.place), "@app.rollout needs an async function",
                              "async def play(env, model, task)", "write `async def`")  # fmt: skip
        reward = self._blend()
        if self.problems:
            raise DeclarationError(app.name, sorted(self.problems, key=lambda item: _in_order(item.place)))
        rollout = next((d.target for d in self._all("rollout")), None)
        return AppSpec(
            name=app.name,
            version=app.version,
            description=app.description or inspect.cleandoc(app.docstring) or app.name,
            environments=self.environments,
            criteria=tuple(criteria),
            judges=tuple(judges),
            policies=tuple(policies),
            metrics=tuple(metrics),
            aggregates=tuple(aggregates),
            reward=reward,
            aggregation=self.aggregation,
            system_prompt=app.system_prompt,
            rollout_function=rollout,
            warnings=tuple(self.warnings),
        )

    # -- environments ---------------------------------------------------------------------------------------------

    def _environment(self, declared: Declared) -> EnvironmentSpec | None:
        cls, options = declared.target, declared.options
        place = _line(cls, declared.place)
        before = len(self.problems)
        if not isinstance(cls, type):
            self._problem(place, f"environment {declared.name!r} is declared on {cls!r}", "a class",
                          "put @app.environment(...) above a class")  # fmt: skip
            return None
        self._name(declared)
        config = self._config(cls, place)
        tasks = self.app.task_source(declared) if options["tasks"] is not None else None
        reset_parameters = self._reset(cls, place, rows=tasks is not None)
        actions = self._actions(cls, place)
        splits = self._splits(declared, place)
        if tasks is not None:
            if options["splits"] is not None:
                self._problem(place, f"environment {declared.name!r} has both splits= and tasks=", "one of them",
                              "with rows the splits are the keys of tasks=")  # fmt: skip
            self.problems.extend(tasks.check())
        self._limits(declared, place)
        self._hooks(cls)
        if len(self.problems) > before or config is None:
            return None
        return EnvironmentSpec(
            name=declared.name,
            cls=cls,
            description=inspect.cleandoc(cls.__doc__ or ""),
            version=str(options["version"]),
            place=place,
            config=config,
            actions=actions,
            reset_parameters=reset_parameters,
            splits=splits,
            tasks=tasks,
            max_steps=options["max_steps"],
            max_turns=options["max_turns"],
            step_timeout_seconds=options["step_timeout_seconds"],
            isolation=options["isolation"],
            reward_range=options["reward_range"],
            baselines=dict(options["baselines"] or {}),
            tags=options["tags"],
            system_prompt=options["prompt"],
            has_final_state=callable(getattr(cls, "final_state", None)),
            has_actions=callable(getattr(cls, "actions", None)),
            has_close=callable(getattr(cls, "close", None)),
            has_setup_worker=callable(getattr(cls, "setup_worker", None)),
        )

    def _questions(self, declared: Declared) -> EnvironmentSpec | None:
        """`app.tasks(...)`: a class is made for it, so that everything else sees one kind of environment."""
        options, place = declared.options, declared.place
        before = len(self.problems)
        self._name(declared)
        source = self.app.task_source(declared)
        if not options["tasks"]:
            self._problem(place, f"tasks {declared.name!r} has no split", "at least one, e.g. train=[…]",
                          "add train=[...] or train=\"train.jsonl\"")  # fmt: skip
        self.problems.extend(source.check())
        prompt = options["prompt"]
        if isinstance(prompt, str):
            self._prompt_fields(declared, source, prompt)
        elif not callable(prompt):
            self._problem(
                place, f"tasks {declared.name!r} have prompt={prompt!r}", "a str or fn(row) -> str", "mend it"
            )
        if len(self.problems) > before:
            return None
        cls = question_class(declared.name, source, prompt)
        return EnvironmentSpec(
            name=declared.name,
            cls=cls,
            description=self.app.description or f"Answer one question of {declared.name}.",
            version=str(options["version"]),
            place=place,
            config=Arguments(f"{declared.name}_config", ()),
            actions={name: replace(spec, place=place) for name, spec in self._actions(cls, place).items()},
            reset_parameters=("task",),
            splits={},
            tasks=source,
            max_turns=None,
            tags=options["tags"],
        )

    def _prompt_fields(self, declared: Declared, source: TaskSource, prompt: str) -> None:
        try:
            names = {
                name.split(".")[0].split("[")[0]
                for _, name, _, _ in string.Formatter().parse(prompt)
                if name is not None
            }
        except ValueError as error:
            self._problem(declared.place, f"the prompt of {declared.name!r} is no format string: {error}",
                          "{name} for a field of the row, {{ and }} for braces", "double the braces that are text")  # fmt: skip
            return
        before = len(self.problems)
        hidden = names & private_fields(source.row)
        if hidden:
            self._problem(declared.place, f"the prompt of {declared.name!r} shows private field {min(hidden)!r}",
                          "public fields only", "take it out of the prompt, or make the field public")  # fmt: skip
        known = set(getattr(source.row, "model_fields", {}) or getattr(source.row, "__dataclass_fields__", {}))
        for name in sorted(names - known) if known else ():
            self._problem(declared.place, f"the prompt of {declared.name!r} names {name!r}, which rows do not have",
                          f"one of {', '.join(sorted(known))}", _did_you_mean(name, known))  # fmt: skip
        for split in source.splits if len(self.problems) == before else ():
            try:
                prompt.format(**source.public(next(iter(source.rows(split)))))
            except (DeclarationError, StopIteration):
                return  # the rows are wrong, and reported as such
            except Exception as error:
                self._problem(declared.place, f"the prompt of {declared.name!r} does not fit row 0 of split {split!r}: "
                              f"{type(error).__name__}: {error}", "names of the row's public fields; members as {field[name]}",
                              "mend the prompt or the row")  # fmt: skip
                return

    def _config(self, cls: type, place: str) -> Arguments | None:
        init = cls.__dict__.get("__init__") or next(
            (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object), None
        )
        if init is None:
            return Arguments(f"{cls.__name__}_config", ())
        try:
            parameters = parameters_of(init, skip_first=True)
            arguments = Arguments(f"{cls.__name__}_config", tuple(parameters))
            arguments.schema  # noqa: B018  builds it now, so that a problem shows here
        except SignatureProblem as error:
            self._problem(_line(init, place), str(error), "annotated parameters with defaults that JSON can carry",
                          "annotate each parameter of __init__: they are env.config")  # fmt: skip
            return None
        for item in parameters:
            if item.name in RESERVED_CONFIG:
                self._problem(_line(init, place), f"__init__ takes {item.name!r}", "another name",
                              "`split` and `index` in env.config select the task and never reach it")  # fmt: skip
            if item.default is inspect.Parameter.empty:
                self._problem(_line(init, place), f"__init__ has no default for {item.name!r}",
                              "a default for each parameter, so that a request without env.config can be played",
                              f"give {item.name!r} a default")  # fmt: skip
        return arguments

    def _reset(self, cls: type, place: str, *, rows: bool) -> tuple[str, ...]:
        reset = getattr(cls, "reset", None)
        if not callable(reset):
            self._problem(place, f"{cls.__name__} has no reset", "def reset(self, seed: int) -> observation",
                          "add reset; it takes by name any of seed, task, split, context")  # fmt: skip
            return ()
        names = self._names(reset, place, f"{cls.__name__}.reset")
        for name in names:
            if name not in RESET_NAMES:
                self._problem(_line(reset, place), f"{cls.__name__}.reset takes {name!r}, which nothing gives",
                              f"any of {', '.join(RESET_NAMES)}", _did_you_mean(name, RESET_NAMES))  # fmt: skip
        if "task" in names and not rows:
            self._problem(_line(reset, place), f"{cls.__name__}.reset takes 'task' but the environment has no rows",
                          "tasks= on @app.environment", "add tasks={...}, or take 'seed'")  # fmt: skip
        return names

    def _actions(self, cls: type, place: str) -> dict[str, ActionSpec]:
        specs: dict[str, ActionSpec] = {}
        marks = actions_of(cls)
        seen: dict[str, str] = {}
        for name, mark, method in marks:
            where = _line(getattr(cls, method), place)
            if method in KIT_METHODS:
                self._problem(where, f"action {name!r} is the method {method!r}, which the kit calls by itself",
                              "a method of another name", f"rename the method, and mark it @action(name={name!r})")  # fmt: skip
            elif name in seen:
                self._problem(where, f"action {name!r} is declared a second time; the first is at {seen[name]}",
                              "one declaration for each name", "rename or remove one")  # fmt: skip
            else:
                seen[name] = where
                spec = self._action(name, method, cls, mark, place)
                if spec is not None:
                    specs[name] = spec
        if not marks and callable(getattr(cls, "step", None)):
            spec = self._action("step", "step", cls, ActionMark(), place)
            if spec is not None:
                specs["step"] = spec
        elif not marks:
            self._problem(place, f"{cls.__name__} has no action", "methods marked @action, or step(self, action: T)",
                          "mark at least one method with @action")  # fmt: skip
        words = [name for name, spec in specs.items() if spec.tool.text]
        if len(words) > 1:
            self._problem(place, f"{cls.__name__} has {len(words)} actions with text=True ({', '.join(words)})",
                          "at most one", "plain words can go to one action only")  # fmt: skip
        return specs

    def _action(self, name: str, method: str, cls: type, mark: ActionMark, place: str) -> ActionSpec | None:
        function = getattr(cls, method)
        where = _line(function, place)
        text = mark.text
        noop: Any = mark.noop
        sample: Any = mark.sample
        description = inspect.getdoc(function) or ""
        if not description:
            self._problem(where, f"action {name!r} has no docstring", "a sentence: it is the tool's description",
                          "write a docstring under the def")  # fmt: skip
        if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
            self._problem(where, f"action {name!r} has a name that models' tool calls refuse",
                          "letters, digits, _ and -, at most 64", "give @action(name=...)")  # fmt: skip
        try:
            bound = isinstance(inspect.getattr_static(cls, method), (staticmethod, classmethod))
            parameters = parameters_of(function, skip_first=not bound)
            whole = method == "step" and len(parameters) == 1 and is_object(parameters[0].annotation)
            arguments = Arguments(name, tuple(parameters), whole)
            schema = arguments.schema
        except SignatureProblem as error:
            self._problem(where, str(error), "annotated parameters that JSON can carry",
                          "annotate each parameter (int, str, Literal[...], a pydantic model, ...)")  # fmt: skip
            return None
        if text and (len(parameters) != 1 or parameters[0].annotation is not str):
            self._problem(where, f"action {name!r} has text=True", "exactly one parameter, a str",
                          "def answer(self, text: str)")  # fmt: skip
        if noop is not None:
            try:
                arguments.read(dict(noop))
            except (ValueError, TypeError) as error:
                self._problem(where, f"noop={noop!r} of action {name!r} does not fit it: {error}",
                              "arguments that the action takes", "mend noop=")  # fmt: skip
        if sample is not None and not callable(sample):
            self._problem(where, f"sample={sample!r} of action {name!r} is not callable", "fn(rng) -> dict",
                          "give a function")  # fmt: skip
        tool = Tool(name, description, schema, text=text, noop=noop, sample=sample)
        return ActionSpec(tool, method, arguments, where)

    def _hooks(self, cls: type) -> None:
        """The optional methods: each is called without arguments."""
        for name in KIT_METHODS[1:]:
            hook = getattr(cls, name, None)
            if hook is None or getattr(hook, ATTRIBUTE, None) is not None or not callable(hook):
                continue
            place = _line(hook, "")
            of_class = isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod))
            if name == "setup_worker" and not of_class:
                self._problem(place, f"{cls.__name__}.setup_worker is not a classmethod",
                              "it runs once per process, before there is an instance", "put @classmethod above it")  # fmt: skip
                continue
            needed = needed_names(hook) if place else ()
            if needed:
                self._problem(place, f"{cls.__name__}.{name} takes {needed[0]!r}, which nothing gives", "no parameters",
                              f"def {name}({'cls' if of_class else 'self'})")  # fmt: skip

    def _names(self, function: Any, place: str, what: str) -> tuple[str, ...]:
        """Parameter names; a callable that Python cannot look into is a problem."""
        try:
            return names_of(function)
        except (TypeError, ValueError) as error:
            self._problem(place, f"{what} has no signature to read: {error}", "a plain function", "write a def")
            return ()

    def _splits(self, declared: Declared, place: str) -> dict[str, range]:
        given: Any = declared.options["splits"]
        if declared.options["tasks"] is not None:
            return {}
        if given is None:
            return {"default": range(SEED_LIMIT)}
        if not callable(getattr(given, "items", None)):
            self._problem(place, f"splits={given!r}", "a mapping from split to range of seeds",
                          "e.g. splits={\"train\": range(0, 100)}")  # fmt: skip
            return {}
        result: dict[str, range] = {}
        for name, seeds in given.items():
            ends = (seeds[0], seeds[-1]) if isinstance(seeds, range) and seeds else (-1, -1)
            if min(ends) < 0 or max(ends) >= SEED_LIMIT:
                self._problem(place, f"split {name!r} is {seeds!r}", "a range of seeds from 0 that is not empty",
                              "e.g. splits={\"train\": range(0, 100)}")  # fmt: skip
            else:
                result[str(name)] = seeds
        if not given:
            self._problem(place, "splits={} is empty", "at least one split", "add one, or leave splits= out")
        shared = overlap(result)
        if shared is not None:
            one, two, seed = shared
            self._problem(place, f"splits {one!r} and {two!r} overlap: both hold seed {seed}", "disjoint ranges",
                          "the seed says which split an episode is of; move one range")  # fmt: skip
        return result

    def _limits(self, declared: Declared, place: str) -> None:
        options = declared.options
        for name in ("max_steps", "max_turns"):
            value = options[name]
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                self._problem(place, f"{name}={value!r}", "a whole number ≥ 1, or None", f"mend {name}")
        seconds = options["step_timeout_seconds"]
        if seconds is not None and not (_is_number(seconds) and seconds > 0):
            self._problem(place, f"step_timeout_seconds={seconds!r}", "seconds > 0, or None", "mend it")
        if options["isolation"] not in ("thread", "process"):
            self._problem(place, f"isolation={options['isolation']!r}", '"thread" or "process"',
                          _did_you_mean(str(options["isolation"]), ("thread", "process")))  # fmt: skip
        bounds = options["reward_range"]
        if bounds is not None and not (
            isinstance(bounds, (tuple, list))
            and len(bounds) == 2
            and all(map(_is_number, bounds))
            and bounds[0] <= bounds[1]
        ):
            self._problem(place, f"reward_range={bounds!r}", "(lowest, highest), finite", "mend reward_range")
        baselines = options["baselines"]
        if baselines is not None and not (isinstance(baselines, Mapping) and all(map(_is_number, baselines.values()))):
            self._problem(place, f"baselines={baselines!r}", "a mapping from policy to its highest acceptable mean reward",
                          'e.g. baselines={"random": 0.2}')  # fmt: skip

    # -- scoring --------------------------------------------------------------------------------------------------

    def _criterion(self, declared: Declared) -> CriterionSpec | None:
        function, options = declared.target, declared.options
        place = _line(function, declared.place)
        allowed = EVENT_NAMES if options["of"] == "events" else OUTCOME_NAMES
        before = len(self.problems)
        if options["of"] not in ("outcome", "events"):
            self._problem(place, f"rubric {declared.name!r} has of={options['of']!r}", '"outcome" or "events"',
                          _did_you_mean(str(options["of"]), ("outcome", "events")))  # fmt: skip
        parameters = self._parameters(declared, place, allowed)
        self._weight(declared, place)
        if options["required"] and options["weight"] == 0:
            self._problem(place, f"rubric {declared.name!r} is required and has weight 0", "a weight > 0: 0 only measures",
                          "give it a weight, or drop required=True")  # fmt: skip
        scale = self._scale(declared, place)
        environments = self._environments(declared, place)
        if len(self.problems) > before:
            return None
        return CriterionSpec(
            declared.name, options["of"], _doc(function, declared.name), float(options["weight"]),
            bool(options["required"]), environments, function, parameters, place, (float(scale[0]), float(scale[1])),
        )  # fmt: skip

    def _judge(self, declared: Declared) -> JudgeSpec | None:
        function, options = declared.target, declared.options
        place = _line(function, declared.place)
        before = len(self.problems)
        parameters = self._parameters(declared, place, OUTCOME_NAMES)
        self._weight(declared, place)
        environments = self._environments(declared, place)
        scale = self._scale(declared, place)
        if type(options["samples"]) is not int or options["samples"] < 1:
            self._problem(place, f"judge {declared.name!r} has samples={options['samples']!r}", "a whole number ≥ 1",
                          "mend samples")  # fmt: skip
        if not _own_doc(function):
            self._problem(place, f"judge {declared.name!r} has no docstring", "the question that the model is asked",
                          "write the question as the docstring")  # fmt: skip
        if len(self.problems) > before:
            return None
        return JudgeSpec(
            declared.name, _doc(function, declared.name), float(options["weight"]),
            (float(scale[0]), float(scale[1])), options["samples"], bool(options["group"]), environments, function,
            parameters, place,
        )  # fmt: skip

    def _rubric_file(
        self, declared: Declared, criteria: list[CriterionSpec]
    ) -> tuple[list[CriterionSpec], list[JudgeSpec]]:
        entries: tuple[Criterion, ...] = ()
        try:
            file = read_rubric_file(declared.target, self.app.name)
            entries, self.aggregation = file.criteria, file.aggregation
        except DeclarationError as error:
            self.problems.extend(error.problems)
        environments = self._environments(declared, declared.place)
        judges = []
        for entry in entries:
            own = [
                at for at, spec in enumerate(criteria)
                if spec.name == entry.id and _meet(spec.environments, environments)
            ]  # fmt: skip
            for at in own:
                criteria[at] = replace(
                    criteria[at], description=entry.description or criteria[at].description, weight=entry.weight,
                    required=entry.required, accumulate=entry.accumulate,
                )  # fmt: skip
            if not own and not entry.description:
                self._problem(entry.place, f"criterion {entry.id!r} has no description, and no @app.rubric has its name",
                              "the question that a judge is asked", "give it a description, or declare the rubric")  # fmt: skip
            elif not own:
                judges.append(
                    JudgeSpec(
                        entry.id,
                        entry.description,
                        entry.weight,
                        (0.0, 1.0),
                        1,
                        False,
                        environments,
                        None,
                        (),
                        entry.place,
                    )
                )
        return criteria, judges

    def _weight(self, declared: Declared, place: str) -> None:
        weight = declared.options["weight"]
        if not _is_number(weight) or weight < 0:
            self._problem(place, f"{declared.kind} {declared.name!r} has weight={weight!r}", "a finite number ≥ 0",
                          "0 only measures; a penalty is a criterion that scores low")  # fmt: skip

    def _scale(self, declared: Declared, place: str) -> Sequence[float]:
        scale = declared.options["scale"]
        if not (
            isinstance(scale, (tuple, list)) and len(scale) == 2 and all(map(_is_number, scale)) and scale[0] < scale[1]
        ):
            self._problem(place, f"{declared.kind} {declared.name!r} has scale={scale!r}", "(lowest, highest), finite",
                          "mend scale")  # fmt: skip
            return (0.0, 1.0)
        return scale

    def _blend(self) -> Blend | None:
        blend = self.app.reward
        if blend is None:
            return None
        parts = (blend.env, blend.event, blend.outcome)
        if not all(_is_number(part) and part >= 0 for part in parts) or not any(parts):
            self._problem(self.app.place, f"reward={blend!r}", "weights that are finite, ≥ 0 and not all 0",
                          "e.g. Blend(env=1.0)")  # fmt: skip
        return blend

    # -- the rest -------------------------------------------------------------------------------------------------

    def _policy(self, declared: Declared) -> PolicySpec | None:
        place = _line(declared.target, declared.place)
        before = len(self.problems)
        allowed = ("observation", "rng", "task") if declared.name == "gold" else ("observation", "rng")
        parameters = self._parameters(declared, place, allowed)
        environments = self._environments(declared, place)
        if len(self.problems) > before:
            return None
        return PolicySpec(
            declared.name, _doc(declared.target, declared.name), environments, declared.target, parameters, place
        )

    def _metric(self, declared: Declared) -> MetricSpec | None:
        place = _line(declared.target, declared.place)
        before = len(self.problems)
        parameters = self._parameters(declared, place, OUTCOME_NAMES)
        environments = self._environments(declared, place)
        if len(self.problems) > before:
            return None
        return MetricSpec(
            declared.name, _doc(declared.target, declared.name), environments, declared.target, parameters, place
        )

    def _aggregate(self, declared: Declared) -> AggregateSpec | None:
        place = _line(declared.target, declared.place)
        before = len(self.problems)
        names = self._names(declared.target, place, f"aggregate {declared.name!r}")
        if len(names) != 1:
            self._problem(place, f"aggregate {declared.name!r} takes {', '.join(names) or 'nothing'}",
                          "one parameter: the rollouts' summaries", "def score(rollouts)")  # fmt: skip
        environments = self._environments(declared, place)
        if len(self.problems) > before:
            return None
        return AggregateSpec(declared.name, _doc(declared.target, declared.name), environments, declared.target, place)

    def _parameters(self, declared: Declared, place: str, allowed: Sequence[str]) -> tuple[str, ...]:
        if not callable(declared.target):
            self._problem(place, f"{declared.kind} {declared.name!r} is {declared.target!r}", "a function", "mend it")
            return ()
        names = self._names(declared.target, place, f"{declared.kind} {declared.name!r}")
        needed = needed_names(declared.target) if names else ()
        names = tuple(name for name in names if name in allowed or name in needed)  # its own defaults stay its own
        for name in names:
            if name not in allowed:
                self._problem(place, f"{declared.kind} {declared.name!r} takes {name!r}, which nothing gives",
                              f"any of {', '.join(allowed)}", _did_you_mean(name, allowed))  # fmt: skip
        return names

    def _environments(self, declared: Declared, place: str) -> tuple[str, ...] | None:
        given = declared.environments
        if given is None:
            return None
        names = (given,) if isinstance(given, str) else tuple(given)
        known = [d.name for d in self._all("environment", "tasks")]
        for name in names:
            if name not in known:
                self._problem(place, f"{declared.kind} {declared.name!r} is for environment {name!r}, which is not declared",
                              f"one of {', '.join(known) or '(none is declared)'}", _did_you_mean(name, known))  # fmt: skip
        return names

    def _name(self, declared: Declared) -> None:
        name = declared.name
        if not name or not isinstance(name, str) or len(name) > 128 or not name.isprintable() or "/" in name:
            self._problem(declared.place, f"{declared.kind} has the name {name!r}",
                          "1 to 128 printable characters without /", "rename it")  # fmt: skip

    def _duplicates(self) -> None:
        groups = (("environment", "tasks"), ("rubric", "judge"), ("policy",), ("metric",), ("aggregate",), ("rollout",))
        for kinds in groups:
            seen: dict[str, list[Declared]] = {}
            for declared in self._all(*kinds):
                others = seen.setdefault("@app.rollout" if kinds == ("rollout",) else declared.name, [])
                first = next((o for o in others if _meet(_tuple(o.environments), _tuple(declared.environments))), None)
                others.append(declared)
                if first is not None:
                    self._problem(_line(declared.target, declared.place),
                                  f"{declared.kind} {declared.name!r} is declared a second time; the first is at "
                                  f"{_line(first.target, first.place)}",
                                  "one declaration for each name", "rename or remove one")  # fmt: skip

    def _all(self, *kinds: str) -> list[Declared]:
        return [declared for declared in self.app.declared if declared.kind in kinds]

    def _problem(self, place: str, found: str, expected: str, fix: str) -> None:
        self.problems.append(Problem(place, found, expected, fix))


def question_class(name: str, source: TaskSource, prompt: str | Callable[[Any], str]) -> type:
    """The environment that `app.tasks` stands for: shows a row's prompt, takes the answer, ends."""

    class Questions:
        def reset(self, task: Any) -> str:
            return prompt.format(**source.public(task)) if isinstance(prompt, str) else prompt(task)

        @action(text=True)
        def answer(self, text: str) -> Step:
            """Give the answer."""
            return Step(observation=None, terminated=True, info={"characters": len(text)})

    Questions.__name__ = Questions.__qualname__ = f"Questions_{name}"
    return Questions


def _made(specs: Iterable[T | None]) -> list[T]:
    """Those that came out of the checks."""
    return [spec for spec in specs if spec is not None]


def _tuple(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)


def _meet(one: tuple[str, ...] | None, two: tuple[str, ...] | None) -> bool:
    """True when two declarations are for a common environment; None is for all."""
    return one is None or two is None or not set(one).isdisjoint(two)


def _in_order(place: str) -> list[tuple[str, int]]:
    """`app.py:9` before `app.py:10`."""
    return [(words, int(digits or 0)) for words, digits in re.findall(r"(\D*)(\d*)", place)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _own_doc(function: Any) -> str:
    """The docstring that the author wrote; a callable object's class is not asked for one."""
    return inspect.cleandoc(getattr(function, "__doc__", None) or "") if hasattr(function, "__code__") else ""


def _doc(function: Any, name: str) -> str:
    return _own_doc(function) or name.replace("_", " ")


def _line(target: Any, fallback: str) -> str:
    """`file:line` of a function or class; `fallback` when Python does not know."""
    code: CodeType | None = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
    if code is not None and not code.co_filename.startswith("<"):  # a dataclass's own __init__ has no file
        return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
    return fallback


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else "rename it, or declare it"

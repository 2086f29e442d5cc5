"""Freeze: every declaration is checked, every problem is reported at once, and the frozen AppSpec comes out."""

from __future__ import annotations

import difflib
import inspect
import math
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.contract.identity import SEED_LIMIT, overlap
from taskapp_kit.contract.ports import Tool
from taskapp_kit.contract.scorecard import Blend
from taskapp_kit.contract.trajectory import Step
from taskapp_kit.declare.marks import action, actions_of
from taskapp_kit.declare.rubric_file import Aggregation, Criterion, read_rubric_file
from taskapp_kit.declare.signature import (
    Arguments,
    Parameter,
    SignatureProblem,
    is_object,
    names_of,
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
            raise DeclarationError(app.name, sorted(self.problems, key=lambda item: item.place))
        rollout = next((d.target for d in self._all("rollout")), None)
        return AppSpec(
            name=app.name,
            version=app.version,
            description=app.description or inspect.getdoc(inspect.getmodule(_first_target(app))) or app.name,
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
        if options["isolation"] == "process":
            self.warnings.append(
                f"{place}: environment {declared.name!r} asks for isolation='process'; this version plays it in a "
                "thread, so a hang or a crash in it is not contained"
            )
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
        names = {
            name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(prompt) if name is not None
        }
        hidden = names & private_fields(source.row)
        if hidden:
            self._problem(declared.place, f"the prompt of {declared.name!r} shows private field {min(hidden)!r}",
                          "public fields only", "take it out of the prompt, or make the field public")  # fmt: skip
        known = set(getattr(source.row, "model_fields", {}) or getattr(source.row, "__dataclass_fields__", {}))
        for name in sorted(names - known) if known else ():
            self._problem(declared.place, f"the prompt of {declared.name!r} names {name!r}, which rows do not have",
                          f"one of {', '.join(sorted(known))}", _did_you_mean(name, known))  # fmt: skip

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
        names = names_of(reset)
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
        for name, (mark, method) in marks.items():
            function = getattr(cls, method)
            spec = self._action(name, method, function, mark.text, mark.noop, mark.sample, place)
            if spec is not None:
                specs[name] = spec
        if not marks and callable(getattr(cls, "step", None)):
            spec = self._action("step", "step", cls.step, False, None, None, place)  # type: ignore[attr-defined]
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

    def _action(
        self, name: str, method: str, function: Any, text: bool, noop: Any, sample: Any, place: str
    ) -> ActionSpec | None:
        where = _line(function, place)
        description = inspect.getdoc(function) or ""
        if not description:
            self._problem(where, f"action {name!r} has no docstring", "a sentence: it is the tool's description",
                          "write a docstring under the def")  # fmt: skip
        if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
            self._problem(where, f"action {name!r} has a name that models' tool calls refuse",
                          "letters, digits, _ and -, at most 64", "give @action(name=...)")  # fmt: skip
        try:
            parameters = parameters_of(function, skip_first=True)
            wrapped = None
            if method == "step" and len(parameters) == 1 and is_object(parameters[0].annotation):
                wrapped = parameters[0]
                parameters = _members(parameters[0])
            arguments = Arguments(name, tuple(parameters))
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
            except ValueError as error:
                self._problem(where, f"noop={noop!r} of action {name!r} does not fit it: {error}",
                              "arguments that the action takes", "mend noop=")  # fmt: skip
        if sample is not None and not callable(sample):
            self._problem(where, f"sample={sample!r} of action {name!r} is not callable", "fn(rng) -> dict",
                          "give a function")  # fmt: skip
        tool = Tool(name, description, schema, text=text, noop=noop, sample=sample)
        return ActionSpec(tool, method, arguments, where, wrapped.name if wrapped else None,
                          wrapped.annotation if wrapped else None)  # fmt: skip

    def _splits(self, declared: Declared, place: str) -> dict[str, range]:
        given = declared.options["splits"]
        if declared.options["tasks"] is not None:
            return {}
        if given is None:
            return {"default": range(0, SEED_LIMIT)}
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
        if not isinstance(options["samples"], int) or options["samples"] < 1:
            self._problem(place, f"judge {declared.name!r} has samples={options['samples']!r}", "a whole number ≥ 1",
                          "mend samples")  # fmt: skip
        if not inspect.getdoc(function):
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
        by_name = {spec.name: index for index, spec in enumerate(criteria)}
        for entry in entries:
            if entry.id in by_name:
                old = criteria[by_name[entry.id]]
                criteria[by_name[entry.id]] = CriterionSpec(
                    old.name, old.of, entry.description or old.description, entry.weight, entry.required,
                    old.environments, old.function, old.parameters, old.place, old.scale, entry.accumulate,
                )  # fmt: skip
            else:
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
                    )  # fmt: skip
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
        if len(inspect.signature(declared.target).parameters) != 1:
            self._problem(place, f"aggregate {declared.name!r} takes {names_of(declared.target)}",
                          "one parameter: the rollouts' summaries", "def score(rollouts)")  # fmt: skip
        environments = self._environments(declared, place)
        if len(self.problems) > before:
            return None
        return AggregateSpec(declared.name, _doc(declared.target, declared.name), environments, declared.target, place)

    def _parameters(self, declared: Declared, place: str, allowed: Sequence[str]) -> tuple[str, ...]:
        if not callable(declared.target):
            self._problem(place, f"{declared.kind} {declared.name!r} is {declared.target!r}", "a function", "mend it")
            return ()
        names = names_of(declared.target)
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
            seen: dict[str, Declared] = {}
            for declared in self._all(*kinds):
                name = "@app.rollout" if kinds == ("rollout",) else declared.name
                first = seen.setdefault(name, declared)
                if first is not declared:
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


def _members(parameter: Parameter) -> list[Parameter]:
    """The members of `step(self, action: Model)` become the tool's own arguments."""
    fields = getattr(parameter.annotation, "model_fields", None)
    if fields is None:
        return [parameter]
    empty = inspect.Parameter.empty
    return [
        Parameter(
            name,
            info.annotation if not info.metadata else _annotated(info),
            empty if info.is_required() else info.get_default(call_default_factory=True),
        )
        for name, info in fields.items()
    ]


def _annotated(info: Any) -> Any:
    from typing import Annotated

    annotation: Any = info.annotation
    for mark in info.metadata:
        annotation = Annotated[annotation, mark]
    return annotation


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _doc(function: Any, name: str) -> str:
    return inspect.getdoc(function) or name.replace("_", " ")


def _line(target: Any, fallback: str) -> str:
    """`file:line` of a function or class; `fallback` when Python does not know."""
    code: CodeType | None = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
    if code is not None:
        return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
    return fallback


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else "rename it, or declare it"


def _first_target(app: TaskApp) -> Any:
    return next((d.target for d in app.declared if isinstance(d.target, type)), None) or next(
        (d.target for d in app.declared if callable(d.target)), TaskApp
    )

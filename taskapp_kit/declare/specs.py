"""The checked declarations of an app as plain data. `freeze` builds them once; they never change afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

from taskapp_kit.declare.signature import Arguments
from taskapp_kit.declare.tasks import TaskSource
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.scorecard import Blend

MAX_REFUSALS = 10
"""Default limit on consecutive replies without an accepted action, after which an episode is truncated."""
DEFAULT_MAX_TURNS = 1000
"""Limit on turns if the environment declares no limit."""
SCORING = 2
"""Version of the outcome formula, part of the spec hash. Version 1 used raw scores, version 2 normalizes by scale."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: the tool that a policy sees, the method that runs, and the parser of its arguments.

    Attributes:
        tool: The tool that a policy sees.
        method: Name of the method.
        arguments: Parser of the arguments.
        place: Location of the declaration.
        keys: Arguments by keyboard key, for people who play in the viewer. Policies do not see them.
    """

    tool: Tool
    method: str
    arguments: Arguments
    place: str
    keys: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name


@dataclass(frozen=True)
class EnvironmentSpec:
    """One environment. Limits that are None do not apply.

    Attributes:
        splits: Seeds by split. Empty if the seed selects a row.
        tasks: Source of the rows. None without rows.
        max_steps: Limit on steps.
        max_steps_parameter: Constructor parameter that sets `max_steps`; see `configured`.
        max_turns: Limit on turns.
        max_refusals: Limit on consecutive replies without an accepted action.
        default_max_turns: Limit on turns if the author declared no limit, else None.
        one_answer: Whether the policy's first answer always ends the episode.
        step_timeout_seconds: Time limit of one step. Only process isolation enforces it.
        models: Roles of the models that the environment calls.
        reward_range: Lowest and highest reward of a step.
        baselines: Highest acceptable mean reward of `noop`, `random` and `constant`.
        accept: Checks of the doctor whose findings are intended, with the reason.
    """

    name: str
    cls: type
    description: str
    version: str
    place: str
    config: Arguments
    actions: Mapping[str, ActionSpec]
    reset_parameters: tuple[str, ...]
    splits: Mapping[str, range]
    tasks: TaskSource | None = None
    max_steps: int | None = None
    max_steps_parameter: str | None = None
    max_turns: int | None = None
    max_refusals: int | None = MAX_REFUSALS
    default_max_turns: int | None = None
    one_answer: bool = False
    step_timeout_seconds: float | None = None
    isolation: Literal["thread", "process"] = "thread"
    models: tuple[str, ...] = ()
    reward_range: tuple[float, float] | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    accept: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    system_prompt: str | None = None
    has_final_state: bool = False
    has_actions: bool = False
    has_close: bool = False
    has_setup_worker: bool = False

    def configured(self, arguments: Mapping[str, Any]) -> EnvironmentSpec:
        """Return the environment with the step limit that the constructor's parsed `arguments` set."""
        steps = arguments.get(self.max_steps_parameter) if self.max_steps_parameter is not None else None
        return self if steps is None or steps == self.max_steps else replace(self, max_steps=steps)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits in declaration order. The first one is the default."""
        return self.tasks.splits if self.tasks is not None else tuple(self.splits)

    def seeds_of(self, split: str) -> range:
        """Return the seeds of a split. With rows, they are the rows' indices."""
        return self.splits[split] if self.tasks is None else range(len(self.tasks.rows(split)))

    @property
    def first_seed(self) -> int:
        """The first seed of the default split."""
        return 0 if self.tasks is not None else self.splits[self.split_names[0]][0]

    @property
    def most_turns(self) -> int | None:
        """The declared or default limit on turns, or None without a limit."""
        return 1 if self.one_answer else self.max_turns or self.default_max_turns

    @property
    def text_action(self) -> ActionSpec | None:
        """The action that takes plain text, or None."""
        return next((action for action in self.actions.values() if action.tool.text), None)

    def declaration(self) -> dict[str, Json]:
        """Return what the spec hash covers."""
        return {
            "name": self.name,
            "version": self.version,
            "config": dict(self.config.schema),
            "actions": {
                name: [spec.tool.description, dict(spec.tool.parameters), spec.tool.text]
                for name, spec in self.actions.items()
            },
            "splits": {name: [seeds.start, seeds.stop, seeds.step] for name, seeds in self.splits.items()},
            "tasks": list(self.tasks.splits) if self.tasks is not None else None,
            "limits": [self.max_steps, self.most_turns, self.max_refusals],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedSpec:
    """A declaration for some environments.

    Attributes:
        environments: Names of the environments. None means all.
        parameters: Names of the function's parameters.
    """

    name: str
    description: str
    environments: tuple[str, ...] | None
    parameters: tuple[str, ...]
    place: str

    def applies_to(self, environment: str) -> bool:
        """Return whether the declaration applies to this environment."""
        return self.environments is None or environment in self.environments


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec(ScopedSpec):
    """A function that an author declared."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionSpec(FunctionSpec):
    """One criterion scored by code.

    Attributes:
        of: "outcome" scores the trajectory once, "events" scores each step.
        weight: Weight, at least 0. With 0 the score is only reported.
        required: Whether the lowest score makes the whole rubric 0.
        scale: Lowest and highest score of an outcome criterion, for normalization. Only with weight 0 may a score be
            outside.
        accumulate: Whether the scores of steps are summed. If not (rubric files only), the last step's score counts.
    """

    of: Literal["outcome", "events"]
    weight: float
    required: bool
    scale: tuple[float, float] = (0.0, 1.0)
    accumulate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec(ScopedSpec):
    """One criterion scored by a model. The docstring is the question, the function's return value is the text to score.

    Attributes:
        group: Whether it ranks the rollouts of one seed instead of scoring single rollouts.
        function: Returns the text to score. None (rubric files) uses the transcript.
        models: Roles, each called `samples` times.
        combine: How several scores are combined into one.
        choices: Labels from worst to best instead of a number, spread evenly over the scale.
        kind: "reward_model" if the endpoint returns only a number.
        form: "text" sends no `response_format`.
        temperature: Sampling temperature. None leaves it to the endpoint.
        call: Rubric file and name of a call. Judges with the same call share one request.
    """

    weight: float
    scale: tuple[float, float]
    samples: int
    group: bool
    function: Callable[..., Any] | None
    models: tuple[str, ...] = ("judge",)
    combine: Literal["mean", "median", "majority"] = "mean"
    choices: tuple[str, ...] = ()
    kind: Literal["chat", "reward_model"] = "chat"
    form: Literal["json_schema", "text"] = "json_schema"
    temperature: float | None = None
    required: bool = False
    call: tuple[str, str] | None = None

    def declaration(self) -> list[Json]:
        """Return what the spec hash covers. It includes the name of the rubric file but not its directory."""
        call = None if self.call is None else f"{PurePath(self.call[0]).name}:{self.call[1]}"
        return [
            *(self.name, self.description, self.weight, list(self.scale), self.samples, list(self.models)),
            *(self.combine, list(self.choices), self.kind, self.group, self.required, call),
        ]


class AuthorPolicySpec(FunctionSpec):
    """A policy that the app declares: `fn(observation, rng)`. The policy `gold` may also take `task`."""


class MetricSpec(FunctionSpec):
    """One or more numbers about a rollout that do not affect its reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(FunctionSpec):
    """One or more numbers about many rollouts: `fn(rollouts: Sequence[RolloutSummary]) -> float | dict | None`.

    Attributes:
        published: Published figures for comparison: column heading to name to number. The names are those that the
            function returns.
    """

    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class AppSpec:
    """A checked task app.

    Attributes:
        warnings: Messages for the server's operator.
        withheld: Declared policies that this server does not offer.
    """

    name: str
    version: str
    description: str
    environments: Mapping[str, EnvironmentSpec]
    criteria: Sequence[CriterionSpec]
    judges: Sequence[JudgeSpec]
    policies: Sequence[AuthorPolicySpec]
    metrics: Sequence[MetricSpec]
    aggregates: Sequence[AggregateSpec]
    reward: Blend | None
    aggregation: Literal["weighted_sum", "sum", "custom"] = "weighted_sum"
    system_prompt: str | None = None
    rollout_function: Callable[..., Any] | None = None
    warnings: tuple[str, ...] = ()
    withheld: tuple[AuthorPolicySpec, ...] = ()

    @property
    def default_environment(self) -> EnvironmentSpec:
        """The environment that was declared first."""
        return next(iter(self.environments.values()))

    def blend_for(self, environment: str) -> Blend:
        """Return the reward formula of an environment.

        The app's `reward` if set, else the outcome score if any criterion or judge counts, else the return.
        """
        if self.reward is not None:
            return self.reward
        scored: list[CriterionSpec | JudgeSpec] = [spec for spec in self.criteria if spec.of == "outcome"]
        scored += [spec for spec in self.judges if not spec.group]
        counts = any(spec.weight > 0 and spec.applies_to(environment) for spec in scored)
        return Blend(outcome=1.0) if counts else Blend(env=1.0)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the declarations as hex digits. Rollouts with another hash were played or scored by other rules."""
        return json_hash(
            {
                "app": [self.name, self.version],
                "environments": [spec.declaration() for spec in self.environments.values()],
                "criteria": [[c.name, c.of, c.description, c.weight, c.required, list(c.scale)] for c in self.criteria],
                "scoring": SCORING,
                "judges": [judge.declaration() for judge in self.judges],
                "reward": {name: self.blend_for(name).words() for name in self.environments},
            }
        )

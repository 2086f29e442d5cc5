"""The checked declarations of an app as plain data. `freeze` builds the specs, which never change afterwards."""

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
"""Default limit on consecutive replies without an accepted action. At the limit, the episode is truncated."""
DEFAULT_MAX_TURNS = 1000
"""Limit on turns in environments that declare no limit."""
SCORING = 2
"""Version of the outcome formula, which is part of the spec hash. Version 1 used raw scores. Version 2 normalizes them
by their scale.
"""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: the tool that policies see, the method that executes it, and the parser of its arguments.

    Attributes:
        tool: The tool that policies see.
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
    """One environment. A limit that is None does not apply.

    Attributes:
        splits: Range of seeds of each split. Empty if the environment has rows.
        tasks: Source of the rows, or None if the environment has no rows.
        max_steps: Maximum number of steps.
        max_steps_parameter: Name of the constructor parameter that sets `max_steps`; see `configured`.
        max_turns: Maximum number of turns.
        max_refusals: Maximum number of consecutive replies without an accepted action.
        default_max_turns: Default maximum number of turns, or None if the author declared a limit.
        one_answer: Whether the policy's first answer always ends the episode.
        step_timeout_seconds: Time limit of one step. Only process isolation enforces it.
        models: Roles of the models that the environment calls.
        reward_range: Lowest and highest reward of a step.
        baselines: Highest acceptable mean reward of the policies `noop`, `random` and `constant`.
        accept: Checks of the doctor whose findings are intended, each with the reason.
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
        """Return a copy with the step limit from the constructor's parsed `arguments`, if they set one."""
        steps = arguments.get(self.max_steps_parameter) if self.max_steps_parameter is not None else None
        return self if steps is None or steps == self.max_steps else replace(self, max_steps=steps)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits in declaration order. The first one is the default."""
        return self.tasks.splits if self.tasks is not None else tuple(self.splits)

    def seeds_of(self, split: str) -> range:
        """Return the seeds of a split. In an environment with rows, seeds are the indices of the rows."""
        return self.splits[split] if self.tasks is None else range(len(self.tasks.rows(split)))

    @property
    def first_seed(self) -> int:
        """The first seed of the default split."""
        return 0 if self.tasks is not None else self.splits[self.split_names[0]][0]

    @property
    def most_turns(self) -> int | None:
        """The declared or default limit on turns, or None if turns are not limited."""
        return 1 if self.one_answer else self.max_turns or self.default_max_turns

    @property
    def text_action(self) -> ActionSpec | None:
        """The action that accepts plain text, or None if no action accepts it."""
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
    """A declaration that applies to some or all environments.

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
        of: "outcome" scores the trajectory once. "events" scores each step.
        weight: Weight, at least 0. With weight 0, the score is only reported.
        required: Whether the outcome is 0 when this criterion has its lowest score.
        scale: Lowest and highest score of an outcome criterion, for normalization. A score outside the scale is an
            error unless the weight is 0.
        accumulate: Whether the scores of all steps are summed. If not, only the score of the last step counts. Only
            rubric files can disable it.
    """

    of: Literal["outcome", "events"]
    weight: float
    required: bool
    scale: tuple[float, float] = (0.0, 1.0)
    accumulate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec(ScopedSpec):
    """One criterion scored by a model. `description` is the question to the model.

    Attributes:
        group: Whether the judge compares the rollouts of one seed instead of scoring single rollouts.
        function: Returns the content to score. If it is None, as for rubric files, the transcript is scored.
        models: Roles of the models. Each model is called `samples` times.
        combine: How the scores from several model calls are combined into one score.
        choices: Labels from which the model chooses instead of returning a number, from worst to best. Their scores are
            spread evenly over the scale.
        kind: "reward_model" if the endpoint returns only a number.
        form: With "text", requests contain no `response_format`.
        temperature: Sampling temperature. If it is None, the endpoint's default applies.
        call: Path of a rubric file and name of a call in it. Judges with the same call share one request.
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
        """Return the values that the spec hash covers. The directory of a rubric file is not covered."""
        call = None if self.call is None else f"{PurePath(self.call[0]).name}:{self.call[1]}"
        return [
            *(self.name, self.description, self.weight, list(self.scale), self.samples, list(self.models)),
            *(self.combine, list(self.choices), self.kind, self.group, self.required, call),
        ]


class AuthorPolicySpec(FunctionSpec):
    """A policy that the app declares, `fn(observation, rng)`. The policy `gold` may also have the parameter `task`."""


class MetricSpec(FunctionSpec):
    """One or more numbers about a rollout that do not affect its reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(FunctionSpec):
    """One or more numbers about many rollouts: `fn(rollouts: Sequence[RolloutSummary]) -> float | dict | None`.

    Attributes:
        published: Published figures for comparison, by column heading and then by name. The names are the keys of the
            dict that the function returns.
    """

    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class AppSpec:
    """A checked task app.

    Attributes:
        warnings: Messages to the server's operator.
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

        If the app does not set `reward`, the reward is the outcome score if a criterion or judge has a weight above 0,
        and the return otherwise.
        """
        if self.reward is not None:
            return self.reward
        scored: list[CriterionSpec | JudgeSpec] = [spec for spec in self.criteria if spec.of == "outcome"]
        scored += [spec for spec in self.judges if not spec.group]
        counts = any(spec.weight > 0 and spec.applies_to(environment) for spec in scored)
        return Blend(outcome=1.0) if counts else Blend(env=1.0)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the declarations, in hexadecimal. It changes when the rules for playing or scoring change."""
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

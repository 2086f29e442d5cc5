"""The frozen declarations of an app as plain data. Built once, at freeze; nothing changes them afterwards."""

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
"""After this many answers in a row with no accepted action an episode is truncated, unless declared otherwise."""
DEFAULT_MAX_TURNS = 1000
"""The turns of an episode whose environment declares no limit."""
SCORING = 2
"""Version of the formula that computes an outcome; part of the spec hash. 1: raw scores. 2: normalised by their scales."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: the tool that a policy sees, the method that runs, and the parser of its arguments.

    keys: the arguments that a person's key stands for, by its name in browsers. No policy sees them.
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
    """One environment.

    splits: name to its seeds (a range, or a list for a callable task source); empty when the seed picks a row. tasks:
    where rows come from, None without rows. max_steps_parameter: the constructor's parameter that gives max_steps, which is
    its default; see `configured`. max_steps counts steps, max_turns turns, max_refusals answers in a row with no accepted
    action; None is no limit. default_max_turns: turns of an environment that declares no limit of its own, None where
    there is one. one_answer: the policy's first answer ends the episode, whatever it is. step_timeout_seconds bounds one
    step (enforced by process isolation). models: the roles of models that it calls. reward_range: lowest and highest
    reward of a step. baselines: highest acceptable mean reward of `noop`, `random`, `constant`. accept: checks of the
    doctor whose findings are meant, with the reason.
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
        """Return the environment with the limit set by `env.config`. arguments: the constructor's, parsed."""
        steps = arguments.get(self.max_steps_parameter) if self.max_steps_parameter is not None else None
        return self if steps is None or steps == self.max_steps else replace(self, max_steps=steps)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits in the order in which they were declared; the first is the default."""
        return self.tasks.splits if self.tasks is not None else tuple(self.splits)

    def seeds_of(self, split: str) -> range:
        """Return the seeds of a split; a row of a task source is the seed of its place."""
        return self.splits[split] if self.tasks is None else range(len(self.tasks.rows(split)))

    @property
    def first_seed(self) -> int:
        """The first seed of the default split."""
        return 0 if self.tasks is not None else self.splits[self.split_names[0]][0]

    @property
    def most_turns(self) -> int | None:
        """The largest number of turns of an episode, by declaration or default; None without such a limit."""
        return 1 if self.one_answer else self.max_turns or self.default_max_turns

    @property
    def text_action(self) -> ActionSpec | None:
        """The action that takes plain text, if there is one."""
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
    """A declaration for some environments, or (`environments` None) for all. parameters: the names that its function takes."""

    name: str
    description: str
    environments: tuple[str, ...] | None
    parameters: tuple[str, ...]
    place: str

    def applies_to(self, environment: str) -> bool:
        """Return whether it is for this environment."""
        return self.environments is None or environment in self.environments


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec(ScopedSpec):
    """A function that an author declared."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionSpec(FunctionSpec):
    """One criterion scored by code.

    of: "outcome" (once, on the trajectory) or "events" (for each step). weight ≥ 0, 0 is a metric. required: a score of 0
    makes the rubric 0. scale: lowest and highest score of an outcome criterion, by which it is normalised; with weight 0 a
    score may lie outside. accumulate False (rubric files of events): the last step's score counts instead of the sum.
    """

    of: Literal["outcome", "events"]
    weight: float
    required: bool
    scale: tuple[float, float] = (0.0, 1.0)
    accumulate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec(ScopedSpec):
    """One criterion scored by a model: the docstring is the question, the function's return value is the text to score.

    function: None (rubric files) uses the transcript. models: roles, each called `samples` times; combine: how the
    scores become one. choices: words from worst to best in place of a number, spread evenly over the scale. kind
    "reward_model": the endpoint answers with a number alone. group: ranks the rollouts of one seed, and scores no rollout
    by itself. call: a rubric file and the name of a call; judges with the same one share a request. form: "text" sends no
    `response_format`. temperature: None leaves it to the endpoint.
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
        """Return what the spec hash covers: only the name of the rubric file, not the app's folder."""
        call = None if self.call is None else f"{PurePath(self.call[0]).name}:{self.call[1]}"
        return [
            *(self.name, self.description, self.weight, list(self.scale), self.samples, list(self.models)),
            *(self.combine, list(self.choices), self.kind, self.group, self.required, call),
        ]


class AuthorPolicySpec(FunctionSpec):
    """A policy of the app's own: `fn(observation, rng)`, `gold` may also take `task`."""


class MetricSpec(FunctionSpec):
    """A number (or several) about one rollout, outside every score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(FunctionSpec):
    """A number (or several) over many rollouts: `fn(rollouts: Sequence[RolloutRow]) -> float | dict | None`.

    published: figures by others to compare with: heading of their column to name to number, with the names that the
    function returns.
    """

    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class AppSpec:
    """A whole task app, checked.

    warnings: messages for the operator of the server. withheld: declared policies that this server does not offer.
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
        """Return the reward's formula for an environment: the app's; else the outcome's score if one is defined, else the return."""
        if self.reward is not None:
            return self.reward
        judged = any(
            item.of == "outcome" and item.weight > 0 and item.applies_to(environment) for item in self.criteria
        )
        judged = judged or any(
            item.weight > 0 and not item.group and item.applies_to(environment) for item in self.judges
        )
        return Blend(outcome=1.0) if judged else Blend(env=1.0)

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the declarations: rows with another hash were played or scored by other rules."""
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

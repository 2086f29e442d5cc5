"""The responses of `/info` and `/task_info`, built from the frozen declarations.

They contain no private fields of a row, because rows pass through `TaskSource.public`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskapp_kit.declare.specs import AppSpec, CriterionSpec, EnvironmentSpec, JudgeSpec
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.policy.options import policies_of
from taskapp_kit.version import __version__


class Description:
    """The description of one app and of the server's limits. Parts that do not depend on the seed are built once."""

    def __init__(self, spec: AppSpec, *, max_time_seconds: float, max_concurrent: int, max_body_bytes: int) -> None:
        self._spec = spec
        self._limits = {
            "max_response_tokens": None,
            "timeout_seconds": max(1, int(max_time_seconds)),
            "max_concurrent": max_concurrent,
            "max_body_bytes": max_body_bytes,
        }
        self._fixed: dict[str, dict[str, Json]] = {}

    def info(self) -> dict[str, Json]:
        """Return the response of `/info`: the description of the default environment, and all environments by name."""
        fixed = self._environment(self._spec.default_environment)
        return {
            "service": {"task": fixed["task"], "version": self._spec.version},
            "dataset": fixed["dataset"],
            "rubrics": _rubrics(fixed["rubric"], self._spec.aggregation),
            "inference": fixed["inference"],
            "limits": fixed["limits"],
            "reward": fixed["reward"],
            "environments": {
                name: {key: self._environment(env)[key] for key in ("dataset", "limits", "reward", "action_space")}
                for name, env in self._spec.environments.items()
            },
            "versions": {"app": self._spec.version, "kit": __version__},
        }

    def taskset(self, environment: EnvironmentSpec) -> dict[str, Json]:
        """Return the response of `/task_info` without a seed: the task set, and the fields that all tasks have in common.

        The client of the Synth SDK parses this response as a TaskInfo, although the SDK's own server does not send a TaskInfo.
        """
        fixed = self._environment(environment)
        taskset = {**fixed["dataset"], "environments": list(self._spec.environments)}
        return {"taskset": taskset, **fixed, "task_metadata": {}}

    def ranges(self, environment: EnvironmentSpec) -> str:
        """Return the seeds of each split as a string, such as `train 0 to 99; test 100 to 119`."""
        seeds = self._environment(environment)["dataset"]["seeds"]
        return "; ".join(
            f"{split} {bounds[0]} to {bounds[1] - 1}" + (f" by {bounds[2]}" if len(bounds) > 2 else "")
            for split, bounds in seeds.items()
        )

    def task(self, environment: EnvironmentSpec, split: str, seed: int, row: Any = None) -> dict[str, Json]:
        """Return the TaskInfo of one task. row: the task's row, of which only the public fields are included."""
        fixed = self._environment(environment)
        metadata: dict[str, Json] = {"seed": seed, "split": split}
        if row is not None and environment.tasks is not None:
            metadata["row"] = environment.tasks.public(row)
        return {**fixed, "task_metadata": metadata}

    def _environment(self, environment: EnvironmentSpec) -> dict[str, Json]:
        known = self._fixed.get(environment.name)
        if known is None:
            known = self._fixed[environment.name] = self._build(environment)
        return known

    def _build(self, environment: EnvironmentSpec) -> dict[str, Json]:
        spec = self._spec
        blend = spec.blend_for(environment.name)
        policies = policies_of(spec, environment)
        return {
            "task": {
                "id": spec.name,
                "name": spec.name,
                "description": spec.description or environment.description,
                "version": spec.version,
            },
            "environment": environment.name,
            "dataset": _dataset(spec, environment),
            "rubric": _rubric(spec, environment.name),
            "inference": {
                "model": None,
                "inference_url": None,
                "policies": [name for name, why_not in policies.items() if why_not is None],
            },
            "limits": {
                "max_turns": environment.most_turns,
                "max_turns_by_default": environment.default_max_turns is not None,
                "max_refusals": environment.max_refusals,
                "max_steps": environment.max_steps,
                "step_timeout_seconds": environment.step_timeout_seconds,
                **self._limits,
            },
            "action_space": {
                "type": "tools",
                "tools": [
                    {
                        "name": action.tool.name,
                        "description": action.tool.description,
                        "parameters": dict(action.tool.parameters),
                        "text": action.tool.text,
                    }
                    for action in environment.actions.values()
                ],
            },
            "config_schema": dict(environment.config.schema),
            "reward": {
                "formula": blend.words(),
                "env": blend.env,
                "event": blend.event,
                "outcome": blend.outcome,
                "step_range": list(environment.reward_range) if environment.reward_range else None,
            },
            "description": environment.description,
            "version": environment.version,
            "tags": list(environment.tags),
            **({"models": list(environment.models)} if environment.models else {}),
            "metrics": [
                {"name": metric.name, "description": metric.description}
                for metric in spec.metrics
                if metric.applies_to(environment.name)
            ],
        }


def _dataset(spec: AppSpec, environment: EnvironmentSpec) -> dict[str, Json]:
    if environment.tasks is not None:
        sizes = {split: len(environment.tasks.rows(split)) for split in environment.split_names}
        seeds: dict[str, list[int]] = {split: [0, size] for split, size in sizes.items()}
    else:
        sizes = {split: _count(numbers) for split, numbers in environment.splits.items()}
        seeds = {
            split: [numbers.start, numbers.stop] if numbers.step == 1 else [numbers.start, numbers.stop, numbers.step]
            for split, numbers in environment.splits.items()
        }
    names = list(environment.split_names)
    difficulties = {} if environment.tasks is None else {"difficulties": environment.tasks.difficulties()}
    return {
        "id": environment.name if environment.name == spec.name else f"{spec.name}/{environment.name}",
        "name": environment.name,
        "version": environment.version,
        "splits": names,
        "default_split": names[0] if names else None,
        "description": environment.description,
        "cardinality": sum(sizes.values()),
        "sizes": sizes,
        "seeds": seeds,
        "kind": "rows" if environment.tasks is not None else "seeds",
        **difficulties,
    }


def _count(numbers: range) -> int:
    """Return the length of a range. `len()` fails for lengths of 2⁶³ or more."""
    return (numbers[-1] - numbers[0]) // numbers.step + 1 if numbers else 0


def _rubric(spec: AppSpec, environment: str) -> dict[str, Json]:
    criteria = [item for item in spec.criteria if item.applies_to(environment)]
    outcome = [_criterion(item) for item in criteria if item.of == "outcome"]
    outcome += [_judge(item) for item in spec.judges if item.applies_to(environment)]
    events = [_criterion(item) for item in criteria if item.of == "events"]
    return {
        "outcome": {"name": "Outcome", "criteria": outcome} if outcome else None,
        "events": {"name": "Events", "criteria": events} if events else None,
    }


def _criterion(item: CriterionSpec) -> dict[str, Json]:
    described: dict[str, Json] = {
        "id": item.name,
        "description": item.description,
        "weight": item.weight,
        "required": item.required,
    }
    return described if item.of == "events" else {**described, "scale": list(item.scale)}


def _judge(item: JudgeSpec) -> dict[str, Json]:
    return {
        "id": item.name,
        "description": item.description,
        "weight": item.weight,
        "required": item.required,
        "judge": True,
        "scale": list(item.scale),
        "choices": list(item.choices),
        "group": item.group,
    }


def _rubrics(rubric: Mapping[str, Json], aggregation: str) -> dict[str, Json] | None:
    """Return the rubric for `/info` as sections with a version and an aggregation, or None if nothing is scored."""
    if not any(rubric.values()):
        return None
    goals = {"outcome": "What the finished episode is worth.", "events": "What each step is worth; it accumulates."}
    return {
        kind: None
        if section is None
        else {
            "version": "1",
            "goal_text": goals[kind],
            "criteria": section["criteria"],
            "aggregation": aggregation if kind == "outcome" else "sum",
        }
        for kind, section in rubric.items()
    }

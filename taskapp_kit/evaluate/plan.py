"""The plan of an evaluation: one policy, its seeds, the samples of each. Every rollout has a position in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.inference_url import stored_url
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.evaluate.seeds import Seeds
from taskapp_kit.rollout.policy.select import STORED_CONFIG


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """Identifies a rollout: the policy by name, the requested split (None: the seed's), seed and sample."""

    policy: str
    split: str | None
    seed: int
    sample: int

    def to_json(self) -> dict[str, Json]:
        """The key as a result line contains it."""
        return {"policy": self.policy, "split": self.split, "seed": self.seed, "sample": self.sample}


@dataclass(frozen=True)
class EvalPlan:
    """The rollouts of one evaluation: for each seed, ascending, the samples 0 to repeats − 1.

    policy: `policy.config` as it is sent, keys included; `to_json()` is the part that is stored. environment, split: None
    leaves them to the app. ops: turns after which an episode is cut, 0 for none. max_time_seconds: each rollout's
    deadline. skip_judges: no judge is called. max_refusals, max_rollout_tokens: each rollout's, None without.
    """

    seeds: Seeds
    policy: Mapping[str, Any] = field(repr=False)
    environment: str | None = None
    split: str | None = None
    repeats: int = 1
    output_mode: str = "tool_calls"
    config: Mapping[str, Any] = field(default_factory=dict)
    ops: int = 0
    max_time_seconds: float = 3600.0
    skip_judges: bool = False
    max_refusals: int | None = None
    max_rollout_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.seeds) * self.repeats

    @property
    def policy_name(self) -> str:
        """The policy's name, else the model's, else `model`."""
        return str(self.policy.get("policy") or self.policy.get("model") or "model")

    def key(self, position: int) -> RolloutKey:
        """The key of the rollout at a position, counted from 0."""
        return RolloutKey(
            self.policy_name, self.split, self.seeds.at(position // self.repeats), position % self.repeats
        )

    def position(self, key: Any) -> int | None:
        """The position of a rollout by its key from a result line; None when it is not in the plan."""
        try:
            seed, sample = key["seed"], key["sample"]
            if key["policy"] != self.policy_name or key["split"] != self.split:
                return None
        except (KeyError, TypeError):
            return None
        if type(seed) is not int or type(sample) is not int or not 0 <= sample < self.repeats:
            return None
        index = self.seeds.index(seed)
        return None if index is None else index * self.repeats + sample

    def request(self, position: int, run_id: str) -> RolloutRequest:
        """The request for the rollout at a position. run_id: the label that all of them share."""
        key = self.key(position)
        config = dict(self.config) if self.split is None else {**self.config, "split": self.split}
        return RolloutRequest.model_validate(
            {
                "run_id": run_id,
                "env": {"env_name": self.environment, "seed": key.seed, "config": config},
                "policy": {
                    "policy_name": self.policy.get("policy"),
                    "config": {**self.policy, "sample": key.sample},
                    "output_mode": self.output_mode,
                },
                "ops": ["agent"] * self.ops,
                "safety": {"max_time_s": self.max_time_seconds, **self._limits()},
                "record": {"trajectories": False},
                "mode": "eval",
            }
        )

    def to_json(self) -> dict[str, Json]:
        """The plan as it is stored, without any key; it must be the same when the evaluation is resumed.

        Of the policy's configuration, members that a store may hold are included with values, others by name only.
        """
        policy: dict[str, Json] = {name: self.policy[name] for name in STORED_CONFIG if name in self.policy}
        url = self.policy.get("inference_url")
        if isinstance(url, str):
            policy["inference_url"] = stored_url(url)
        others = sorted(set(self.policy) - set(policy) - {"api_key", "inference_url"})
        if others:
            policy["others"] = others
        return {
            "environment": self.environment,
            "split": self.split,
            "seeds": str(self.seeds),
            "repeats": self.repeats,
            "policy": policy,
            "output_mode": self.output_mode,
            "config": dict(self.config),
            "ops": self.ops,
            "max_time_seconds": self.max_time_seconds,
            **({"judges": "skip"} if self.skip_judges else {}),
            **self._limits(),
        }

    def _limits(self) -> dict[str, int]:
        """The given limits, as members of `safety`."""
        limits = {"max_refusals": self.max_refusals, "max_rollout_tokens": self.max_rollout_tokens}
        return {name: limit for name, limit in limits.items() if limit is not None}

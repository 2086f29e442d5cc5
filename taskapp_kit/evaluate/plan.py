"""The plan of an evaluation: its policies, seeds and samples. Every rollout has a position in the plan."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.rollout.policy.options import STORED_CONFIG
from taskapp_kit.wire.inference_url import stored_url
from taskapp_kit.wire.rollout import RolloutRequest


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """Identifies a rollout in a plan.

    policy: The policy's name. split: The requested split, or None for the app's default split.
    """

    policy: str
    split: str | None
    seed: int
    sample: int

    def to_json(self) -> dict[str, Json]:
        """Return the key as JSON for a result line."""
        return {"policy": self.policy, "split": self.split, "seed": self.seed, "sample": self.sample}


@dataclass(frozen=True)
class EvalPlan:
    """The rollouts of one evaluation: for each seed and each policy, the samples 0 to repeats − 1.

    Seeds are in ascending order. All policies play a seed before the next seed begins, so that the policies can be
    compared even if the evaluation is stopped.

    Attributes:
        seeds: The seeds.
        policies: `policy.config` of each policy, including API keys, which `to_json()` omits.
        names: Unique names of the policies. Each defaults to `policy_name(config)`.
        environment: The environment, or None for the app's default.
        split: The split, or None for the app's default.
        repeats: The number of samples per seed.
        output_mode: The format of a model's replies.
        config: `env.config` of every episode.
        ops: The number of turns after which an episode is truncated, or 0 for no limit.
        max_time_seconds: The deadline of each rollout.
        skip_judges: Whether to skip all judges.
        max_refusals: The limit on consecutive rejected replies in each rollout.
        max_rollout_tokens: The limit on tokens in each rollout.
        difficulty: The difficulties by which the rows of `seeds` were selected.
        tags: The tags by which the rows of `seeds` were selected.
        only: The (seed, sample) pairs to play, in ascending order. Empty for all.

    Raises:
        ConfigError: Two policies have the same name.
    """

    seeds: Seeds
    policies: Sequence[Mapping[str, Any]] = field(repr=False)
    names: Sequence[str] = ()
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
    difficulty: Sequence[str] = ()
    tags: Sequence[str] = ()
    only: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        names = tuple(self.names) or tuple(policy_name(config) for config in self.policies)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ConfigError(
                f"Two policies have the name {twice[0]!r}.",
                hint="Pass each policy once. Models with the same name need different names in models.toml.",
            )
        object.__setattr__(self, "names", names)

    def __len__(self) -> int:
        return (len(self.only) or len(self.seeds) * self.repeats) * len(self.policies)

    def key(self, position: int) -> RolloutKey:
        """Return the key of the rollout at a position, counted from 0."""
        if self.only:
            index, policy = divmod(position, len(self.policies))
            return RolloutKey(self.names[policy], self.split, *self.only[index])
        index, rest = divmod(position, len(self.policies) * self.repeats)
        policy, sample = divmod(rest, self.repeats)
        return RolloutKey(self.names[policy], self.split, self.seeds.at(index), sample)

    def position(self, key: Any) -> int | None:
        """Return the position of a rollout, given its key from a result line, or None if it is not in the plan."""
        try:
            seed, sample = key["seed"], key["sample"]
            if key["policy"] not in self.names or key["split"] != self.split:
                return None
        except (KeyError, TypeError):
            return None
        if type(seed) is not int or type(sample) is not int:
            return None
        policy = self.names.index(key["policy"])
        if self.only:
            at = bisect_left(self.only, (seed, sample))
            return at * len(self.policies) + policy if self.only[at : at + 1] == ((seed, sample),) else None
        if not 0 <= sample < self.repeats:
            return None
        index = self.seeds.index(seed)
        return None if index is None else (index * len(self.policies) + policy) * self.repeats + sample

    def policy_of(self, position: int) -> int:
        """Return the index of the policy that plays the rollout at a position."""
        return position // (1 if self.only else self.repeats) % len(self.policies)

    def first(self, index: int, policy: int) -> int:
        """Return the position of the first rollout of a seed and a policy, given the indexes of both."""
        if self.only:
            return bisect_left(self.only, (self.seeds.at(index), 0)) * len(self.policies) + policy
        return (index * len(self.policies) + policy) * self.repeats

    def request(self, position: int, run_id: str) -> RolloutRequest:
        """Return the request for the rollout at a position.

        run_id: The label that all rollouts of the evaluation share.
        """
        key, policy = self.key(position), self.policies[self.policy_of(position)]
        policy_config = sorted({**policy, "sample": key.sample}.items())  # a repeated request must have the same bytes
        config = dict(self.config) if self.split is None else {**self.config, "split": self.split}
        return RolloutRequest.model_validate(
            {
                "run_id": run_id,
                "env": {"env_name": self.environment, "seed": key.seed, "config": config},
                "policy": {
                    "policy_name": policy.get("policy"),
                    "config": dict(policy_config),
                    "output_mode": self.output_mode,
                },
                "ops": ["agent"] * self.ops,
                "safety": {"max_time_s": self.max_time_seconds, **self._limits()},
                "record": {"trajectories": False},
                "mode": "eval",
            }
        )

    def to_json(self) -> dict[str, Json]:
        """Return the plan as it is stored, without API keys. To resume an evaluation, both plans must have equal JSON.

        A single policy is stored as `policy`. Several policies are stored as `policies`, by name.
        """
        stored = {name: stored_policy(config) for name, config in zip(self.names, self.policies, strict=True)}
        return {
            "environment": self.environment,
            "split": self.split,
            "seeds": str(self.seeds),
            "repeats": self.repeats,
            **({"policy": stored[self.names[0]]} if len(stored) == 1 else {"policies": stored}),
            "output_mode": self.output_mode,
            "config": dict(self.config),
            "ops": self.ops,
            "max_time_seconds": self.max_time_seconds,
            **({"judges": "skip"} if self.skip_judges else {}),
            **self._limits(),
            **({"difficulty": list(self.difficulty)} if self.difficulty else {}),
            **({"tags": list(self.tags)} if self.tags else {}),
            **({"only": [list(pair) for pair in self.only]} if self.only else {}),
        }

    def _limits(self) -> dict[str, int]:
        """Return the limits that are set, as fields of `safety`."""
        limits = {"max_refusals": self.max_refusals, "max_rollout_tokens": self.max_rollout_tokens}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @classmethod
    def of_stored(
        cls, asked: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]] | None = None, **changed: Any
    ) -> EvalPlan:
        """Return the plan of a stored evaluation.

        policies: The policies by name, with their API keys. Defaults to the stored policies, which have no API keys.
        changed: Fields that replace stored fields.

        Raises ConfigError if `asked` is not a stored plan.
        """
        try:
            given = stored_policies(asked) if policies is None else policies
            known = {name: asked[name] for name in AS_STORED if name in asked}
            plan = cls(
                Seeds.read(asked["seeds"]),
                tuple(given.values()),
                names=tuple(given),
                skip_judges=asked.get("judges") == "skip",
                only=tuple((seed, sample) for seed, sample in asked.get("only", ())),
                **{**known, **changed},
            )
            len(plan), plan.to_json()  # raises an exception if a field has the wrong type
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError("This release cannot read config.json. Use the release that wrote it.") from None
        else:
            return plan


AS_STORED = tuple(
    member.name
    for member in fields(EvalPlan)
    if member.name not in ("seeds", "policies", "names", "skip_judges", "only")
)
"""The fields of a plan that `to_json` returns unchanged."""


def policy_name(config: Mapping[str, Any]) -> str:
    """Return a policy's name: its `policy` if set, otherwise its `model` if set, otherwise "model"."""
    return str(config.get("policy") or config.get("model") or "model")


def stored_policy(config: Mapping[str, Any]) -> dict[str, Json]:
    """Return `policy.config` for the store.

    The API key is omitted. Other fields that must not be stored are only named in `others`.
    """
    stored: dict[str, Json] = {name: config[name] for name in STORED_CONFIG if name in config}
    url = config.get("inference_url")
    if isinstance(url, str):
        stored["inference_url"] = stored_url(url)
    others = sorted(set(config) - set(stored) - {"api_key", "inference_url"})
    if others:
        stored["others"] = others
    return stored


def stored_policies(asked: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the policies of a stored plan by name, in order.

    Raises KeyError, TypeError, ValueError or AttributeError if the plan is malformed.
    """
    found = dict(asked["policies"]) if "policies" in asked else {policy_name(asked["policy"]): asked["policy"]}
    for config in found.values():
        if not all(isinstance(config.get(name), str | None) for name in ("policy", "model", "inference_url")):
            raise TypeError("a policy or its model is not a string")
    return found

"""The HTTP bodies: rollout request and response, with the names of the Synth AI SDK 0.3.x (release 0.3.9).

Only this module uses these names. Unknown keys of a request are ignored, as by the SDK; the kit's additions to the response
are at its top level. docs/reference/contract.md describes each field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, StrictStr, model_validator

from taskapp_kit.records.seeds import SEED_LIMIT

JsonDict = dict[str, Any]
Seed = Annotated[StrictInt, Field(ge=0, lt=SEED_LIMIT)]
NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Ids and names appear in logs, tables and headers, and a database may be unable to store NUL."""
SHORTEST_SECONDS = 0.001
"""The shortest time limit of a caller. Nothing ends in less time, and clocks round it to zero."""
Label = Annotated[StrictStr, Field(max_length=512, pattern=NO_CONTROL_CHARACTERS)]
ENVIRONMENT: dict[str, JsonValue] = {"type": "string", "format": "environment"}
"""The schema of an environment's name. The OpenAPI document adds the app's names to schemas with this format."""
SPLIT: dict[str, JsonValue] = {"type": "string", "format": "split"}
"""The schema of a split's name; the document adds the splits of all environments."""
POLICY: dict[str, JsonValue] = {"type": "string", "format": "policy"}
"""The schema of a policy's name; the document adds the app's policies."""
Split = Annotated[Label, Field(json_schema_extra=SPLIT)]
EnvironmentName = Annotated[Label, Field(json_schema_extra=ENVIRONMENT)]
Ignored = Annotated[StrictStr, Field(max_length=512)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]


def forms(*given: tuple[str, ...], first_only: tuple[str, ...] = ()) -> dict[str, JsonValue]:
    """Return the JSON Schema of a body with the members of exactly one form, while other members are absent or null.

    first_only: members that only the first form may have.
    """
    names = [name for form in given for name in form]
    return {
        "oneOf": [
            {
                "required": [*form],
                "properties": {
                    name: {"not": {"type": "null"}} if name in form else {"type": "null"}
                    for name in (*names, *(first_only if form is not given[0] else ()))
                },
            }
            for form in given
        ]
    }


class EnvSpec(BaseModel):
    """The environment: `env_name` (default: the app's first), `seed` (default: drawn), `config`."""

    env_id: Label | None = None
    env_name: EnvironmentName | None = None
    config: JsonDict = Field(default_factory=dict)
    seed: Seed | None = None


class StructuredConfig(BaseModel):
    """JSON Schema of the answer in output mode `structured`."""

    model_config = ConfigDict(populate_by_name=True)

    json_schema: JsonDict = Field(alias="schema")
    schema_name: Label = "response"
    strict: StrictBool = True


class PolicySpec(BaseModel):
    """The policy: `config.policy`, else `policy_name`, else `config.inference_url`."""

    policy_id: Label | None = None
    policy_name: Label | None = None
    config: JsonDict = Field(default_factory=dict)
    output_mode: Literal["tool_calls", "text", "structured"] = "tool_calls"
    structured_config: StructuredConfig | None = None


class RecordSpec(BaseModel):
    """What the response contains, and whether the rollout is stored (`store`, an addition): a trial rollout is not."""

    trajectories: StrictBool = True
    logprobs: StrictBool = False
    value: StrictBool = False
    return_trace: StrictBool = False
    trace_format: Literal["compact", "full", "structured"] = "compact"
    store: StrictBool = True


class SafetySpec(BaseModel):
    """Limits of one rollout. It fails after `max_time_s` seconds; the other limits truncate it.

    max_ops: operations, 1 for a turn and 1 for each of its actions. max_refusals: answers in a row without an accepted
    action; it lowers the environment's limit and never raises it. max_rollout_tokens: prompt and completion tokens of the
    policy's model and of the environment's models, checked before each call.
    """

    max_ops: Annotated[StrictInt, Field(ge=1, le=10_000_000)] = 100_000
    max_time_s: Annotated[float, Field(ge=SHORTEST_SECONDS, le=86_400, allow_inf_nan=False, strict=True)] = 3600.0
    max_refusals: Annotated[StrictInt, Field(ge=1, le=10_000_000)] | None = None
    max_rollout_tokens: Annotated[StrictInt, Field(ge=1, le=10**12)] | None = None


_WEIGHTS: list[JsonValue] = [
    {"required": [name], "properties": {name: {"exclusiveMinimum": 0}}} for name in ("env", "event", "outcome")
]


class RewardSpec(BaseModel):
    """The request's blend, instead of the app's. At least one weight must be above 0."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _WEIGHTS})

    env: Weight = 0.0
    event: Weight = 0.0
    outcome: Weight = 0.0

    @model_validator(mode="after")
    def _has_weight(self) -> RewardSpec:
        if not (self.env or self.event or self.outcome):
            raise ValueError("must have a weight above 0, because otherwise no reward would be defined")
        return self


def _given(schema: JsonValue, *path: str) -> dict[str, JsonValue]:
    for name in reversed(path):
        schema = {"required": [name], "properties": {name: schema}}
    assert isinstance(schema, dict)
    return schema


_POLICIES: list[JsonValue] = [
    _given(dict(POLICY), "policy", "policy_name"),
    _given(dict(POLICY), "policy", "config", "policy"),
    _given({"type": "string", "minLength": 1}, "policy", "config", "inference_url"),
    _given({"type": "string", "minLength": 1}, "inference_url"),
]
"""The ways to select a policy. The names are the app's; the environment may lack some of them."""


class RolloutRequest(BaseModel):
    """`POST /rollout`. `run_id` is the caller's label and may repeat; `ops` [] plays until the end or a limit."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _POLICIES})

    run_id: Annotated[StrictStr, Field(min_length=1, max_length=512, pattern=NO_CONTROL_CHARACTERS)]
    env: EnvSpec
    policy: PolicySpec
    ops: Annotated[list[StrictStr | JsonDict], Field(max_length=200_000)]
    record: RecordSpec = Field(default_factory=RecordSpec)
    on_done: Ignored = "reset"
    safety: SafetySpec = Field(default_factory=SafetySpec)
    training_session_id: Label | None = None
    synth_base_url: Ignored | None = None
    mode: Literal["rl", "eval"]
    inference_url: Annotated[StrictStr, Field(max_length=4096)] | None = None
    trace_correlation_id: Label | None = None
    group_id: Label | None = None
    reward: RewardSpec | None = None


class RolloutStep(BaseModel):
    """One step: the observation after the action, the action, its reward (null if undefined)."""

    obs: JsonDict
    tool_calls: list[JsonDict] = Field(default_factory=list)
    reward: float | None = None
    done: bool = False
    truncated: bool | None = None
    info: JsonDict | None = None
    output: JsonDict | str | None = None
    output_mode: str | None = None


class RolloutTrajectory(BaseModel):
    """One episode. The labels are null in a rollout read from the store."""

    env_id: str | None
    policy_id: str | None
    steps: list[RolloutStep]
    final: JsonDict | None = None
    length: int
    inference_url: str
    trace: JsonDict | None = None
    decision_samples: list[JsonDict] | None = None
    trace_correlation_id: str | None = None


class RolloutMetrics(BaseModel):
    """Numbers: `mean_return` is the sum of step rewards; the two scores come from the rubrics."""

    episode_returns: list[float]
    mean_return: float
    num_steps: int
    num_episodes: int = 0
    outcome_score: float | None = None
    events_score: float | None = None
    details: JsonDict = Field(default_factory=dict)


class RolloutResponse(BaseModel):
    """The answer of `POST /rollout`; the fields from `rollout_id` on are additions."""

    run_id: str
    trajectories: list[RolloutTrajectory]
    branches: JsonDict = Field(default_factory=dict)
    metrics: RolloutMetrics
    aborted: bool = False
    ops_executed: int | None = 0
    trace_correlation_id: str | None = None
    trace: JsonDict | None = None
    pipeline_metadata: JsonDict = Field(default_factory=dict)
    rollout_id: str
    status: Literal["terminated", "truncated"]
    stop_reason: str
    reward: float | None
    reward_formula: str
    digest: str
    observation_digest: str | None = None
    group_id: str | None = None
    scorecard: JsonDict
    timing: dict[str, float]
    usage: dict[str, float]
    versions: dict[str, str | None]

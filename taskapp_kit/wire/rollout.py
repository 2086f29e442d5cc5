"""The HTTP bodies: rollout request and response, with the names of the Synth AI SDK 0.3.x (release 0.3.9).

Only this module uses these names. Unknown keys in a request are ignored, as in the SDK. The kit's additions to the
response are top-level fields. docs/reference/contract.md describes each field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, StrictStr, model_validator

from taskapp_kit.records.seeds import SEED_LIMIT

JsonDict = dict[str, Any]
Seed = Annotated[StrictInt, Field(ge=0, lt=SEED_LIMIT)]
NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""The pattern of ids and names.

They appear in logs and headers, and are stored in databases that may not support NUL.
"""
SHORTEST_SECONDS = 0.001
"""The shortest time limit that a caller may set. No rollout ends sooner, and clocks would round less to zero."""
Label = Annotated[StrictStr, Field(max_length=512, pattern=NO_CONTROL_CHARACTERS)]
ENVIRONMENT: dict[str, JsonValue] = {"type": "string", "format": "environment"}
"""The schema of an environment's name. The OpenAPI document adds the app's environments to schemas with this format."""
SPLIT: dict[str, JsonValue] = {"type": "string", "format": "split"}
"""The schema of a split's name. The OpenAPI document adds the splits of all environments."""
POLICY: dict[str, JsonValue] = {"type": "string", "format": "policy"}
"""The schema of a policy's name. The OpenAPI document adds the app's policies."""
Split = Annotated[Label, Field(json_schema_extra=SPLIT)]
EnvironmentName = Annotated[Label, Field(json_schema_extra=ENVIRONMENT)]
Ignored = Annotated[StrictStr, Field(max_length=512)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]


def forms(*given: tuple[str, ...], first_only: tuple[str, ...] = ()) -> dict[str, JsonValue]:
    """Return a JSON Schema that requires the fields of exactly one form. Fields of other forms must be null or absent.

    given: the names of the fields of each form. first_only: optional fields that only the first form may have.
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
    """The environment. `env_name` defaults to the app's first environment, and `seed` to a random seed."""

    env_id: Label | None = None
    env_name: EnvironmentName | None = None
    config: JsonDict = Field(default_factory=dict)
    seed: Seed | None = None


class StructuredConfig(BaseModel):
    """The JSON Schema of the model's reply in output mode `structured`."""

    model_config = ConfigDict(populate_by_name=True)

    json_schema: JsonDict = Field(alias="schema")
    schema_name: Label = "response"
    strict: StrictBool = True


class PolicySpec(BaseModel):
    """The policy, selected by `config.policy`, else by `policy_name`, else by `config.inference_url`."""

    policy_id: Label | None = None
    policy_name: Label | None = None
    config: JsonDict = Field(default_factory=dict)
    output_mode: Literal["tool_calls", "text", "structured"] = "tool_calls"
    structured_config: StructuredConfig | None = None


class RecordSpec(BaseModel):
    """What the response contains, and whether the rollout is stored. `store` is an addition of the kit."""

    trajectories: StrictBool = True
    logprobs: StrictBool = False
    value: StrictBool = False
    return_trace: StrictBool = False
    trace_format: Literal["compact", "full", "structured"] = "compact"
    store: StrictBool = True


class SafetySpec(BaseModel):
    """Limits of one rollout. The rollout fails after `max_time_s` seconds. The other limits truncate the episode.

    Attributes:
        max_ops: The maximum number of operations. Each turn and each action counts as one.
        max_refusals: The maximum number of consecutive replies without an accepted action. It can only lower the
            environment's limit.
        max_rollout_tokens: The maximum number of prompt and completion tokens, summed over the policy's model and the
            environment's models. It is checked before each model call.
    """

    max_ops: Annotated[StrictInt, Field(ge=1, le=10_000_000)] = 100_000
    max_time_s: Annotated[float, Field(ge=SHORTEST_SECONDS, le=86_400, allow_inf_nan=False, strict=True)] = 3600.0
    max_refusals: Annotated[StrictInt, Field(ge=1, le=10_000_000)] | None = None
    max_rollout_tokens: Annotated[StrictInt, Field(ge=1, le=10**12)] | None = None


_WEIGHTS: list[JsonValue] = [
    {"required": [name], "properties": {name: {"exclusiveMinimum": 0}}} for name in ("env", "event", "outcome")
]


class RewardSpec(BaseModel):
    """The weights of the reward, which replace the app's weights. At least one must be above 0."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _WEIGHTS})

    env: Weight = 0.0
    event: Weight = 0.0
    outcome: Weight = 0.0

    @model_validator(mode="after")
    def _has_weight(self) -> RewardSpec:
        if not (self.env or self.event or self.outcome):
            raise ValueError("must have at least one weight above 0, because otherwise the reward would be undefined")
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
"""The alternatives for selecting a policy. The environment may not support every policy of the app."""


class RolloutRequest(BaseModel):
    """The body of `POST /rollout`.

    `run_id` is the caller's label and need not be unique. An empty `ops` plays a whole episode.
    """

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
    """One step: an action, the observation after it, and its reward, which is null if undefined."""

    obs: JsonDict
    tool_calls: list[JsonDict] = Field(default_factory=list)
    reward: float | None = None
    done: bool = False
    truncated: bool | None = None
    info: JsonDict | None = None
    output: JsonDict | str | None = None
    output_mode: str | None = None


class RolloutTrajectory(BaseModel):
    """One episode. `env_id` and `policy_id` are null in a rollout that was read from the store."""

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
    """Metrics of a rollout. `mean_return` is the sum of the step rewards. `outcome_score` and `events_score` come from the
    rubrics.
    """

    episode_returns: list[float]
    mean_return: float
    num_steps: int
    num_episodes: int = 0
    outcome_score: float | None = None
    events_score: float | None = None
    details: JsonDict = Field(default_factory=dict)


class RolloutResponse(BaseModel):
    """The response of `POST /rollout`. The fields from `rollout_id` on are additions of the kit."""

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

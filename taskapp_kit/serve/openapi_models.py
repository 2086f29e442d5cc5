"""The models of responses, for the OpenAPI document and for tests. Responses may contain additional fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    # generated clients must accept the additional fields of later versions
    model_config = ConfigDict(extra="allow")


class FieldError(BaseModel):
    """An invalid field: its location, a message, and a stable type."""

    loc: list[str | int]
    message: str
    type: str


class ErrorBody(BaseModel):
    """`code` is stable, `message` describes the error, and `hint` suggests a fix. Other fields are optional."""

    code: str
    message: str
    hint: str
    rollout_id: str | None = None
    boundary: Literal["environment", "policy", "scoring", "timeout", "cancelled"] | None = None
    error_id: str | None = None
    fields: list[FieldError] | None = None


class ErrorDetail(BaseModel):
    """Contains the error."""

    error: ErrorBody


class ErrorEnvelope(BaseModel):
    """The body of every error response."""

    detail: ErrorDetail


class Root(BaseModel):
    """The response of `/`: the server is running."""

    status: Literal["ok"]
    service: str


class Done(BaseModel):
    """The response of `/done`."""

    ok: Literal[True]
    service: str


class HealthAuth(BaseModel):
    """Whether a key is required."""

    required: Literal[True]


class Health(_Open):
    """The response of `/health`: the number of rollouts in flight, and its maximum."""

    healthy: bool
    status: str
    auth: HealthAuth
    version: str
    in_flight: int
    capacity: int


class DebugEnv(_Open):
    """The response of `/debug/env`: whether a variable is set, without the value of the variable."""

    has_ENVIRONMENT_API_KEY: bool


class TaskDescriptor(_Open):
    """The identity of the task."""

    id: str
    name: str
    description: str | None = None
    version: str | None = None


class DatasetInfo(_Open):
    """The source of the tasks. `cardinality` is the number of seeds. `seeds` contains the range [start, stop] of each split."""

    id: str | None = None
    name: str | None = None
    version: str | None = None
    splits: list[str] | None = None
    default_split: str | None = None
    description: str | None = None
    cardinality: int | None = None
    seeds: dict[str, list[int]] = Field(default_factory=dict)


class RubricCriterion(_Open):
    """One criterion. A criterion with weight 0 is only reported."""

    id: str
    description: str
    weight: float | None = None


class RubricSection(_Open):
    """The criteria of one kind."""

    name: str
    criteria: list[RubricCriterion] = Field(default_factory=list)


class RubricInfo(_Open):
    """How rollouts are scored."""

    outcome: RubricSection | None = None
    events: RubricSection | None = None


class InferenceInfo(_Open):
    """The policies of the app. The caller provides the model."""

    model: str | None = None
    inference_url: str | None = None
    policies: list[str] = Field(default_factory=list)


class LimitsInfo(_Open):
    """The limits of a rollout."""

    max_turns: int | None = None
    max_turns_by_default: bool = False
    max_refusals: int | None = None
    max_response_tokens: int | None = None
    timeout_seconds: int | None = None


class TaskInfo(_Open):
    """A description of the app, with the data of one seed in `task_metadata`."""

    task: TaskDescriptor
    environment: str
    dataset: DatasetInfo
    rubric: RubricInfo
    inference: InferenceInfo
    limits: LimitsInfo
    task_metadata: dict[str, Any] = Field(default_factory=dict)
    action_space: dict[str, Any]
    config_schema: dict[str, Any]
    reward: dict[str, Any]


class Taskset(BaseModel):
    """The response of `/task_info` without a seed."""

    taskset: DatasetInfo


class ServiceInfo(_Open):
    """The app and its version."""

    task: TaskDescriptor
    version: str


class Info(_Open):
    """The response of `/info`."""

    service: ServiceInfo
    dataset: DatasetInfo
    rubrics: dict[str, Any] | None
    inference: InferenceInfo
    limits: LimitsInfo


class Pending(BaseModel):
    """The 202 response while a rollout runs. `created_at` is in Unix seconds. `events` counts the events so far."""

    rollout_id: str
    status: Literal["running"]
    created_at: float
    events: int
    url: str


class Ended(BaseModel):
    """The response of `DELETE /rollouts/{rollout_id}`: this request cancelled the rollout, or it had already ended."""

    rollout_id: str
    status: Literal["cancelled", "ended"]

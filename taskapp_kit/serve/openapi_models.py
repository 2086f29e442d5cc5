"""The responses as OpenAPI documents them and tests check them. Names are the wire's; extra members are allowed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    # a later version may return more members, which clients generated from this document must accept
    model_config = ConfigDict(extra="allow")


class FieldError(BaseModel):
    """An invalid field: its location, what is wrong, and a stable type."""

    loc: list[str | int]
    message: str
    type: str


class ErrorBody(BaseModel):
    """`code` is stable, `message` describes what happened, `hint` what to do. Other members are present if they apply."""

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
    """The shape of every error."""

    detail: ErrorDetail


class Root(BaseModel):
    """`/`: the server responds."""

    status: Literal["ok"]
    service: str


class Done(BaseModel):
    """`/done`."""

    ok: Literal[True]
    service: str


class HealthAuth(BaseModel):
    """Whether a key is required."""

    required: Literal[True]


class Health(_Open):
    """`/health`: rollouts in flight, and their maximum."""

    healthy: bool
    status: str
    auth: HealthAuth
    version: str
    in_flight: int
    capacity: int


class DebugEnv(_Open):
    """`/debug/env`: whether a variable is set, without its value."""

    has_ENVIRONMENT_API_KEY: bool


class TaskDescriptor(_Open):
    """The identity of the task."""

    id: str
    name: str
    description: str | None = None
    version: str | None = None


class DatasetInfo(_Open):
    """The source of the tasks: `cardinality` is the number of seeds, `seeds` the range [start, stop] of each split."""

    id: str | None = None
    name: str | None = None
    version: str | None = None
    splits: list[str] | None = None
    default_split: str | None = None
    description: str | None = None
    cardinality: int | None = None
    seeds: dict[str, list[int]] = Field(default_factory=dict)


class RubricCriterion(_Open):
    """One criterion; weight 0 is a metric."""

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
    """The policies of the app; a model is the caller's."""

    model: str | None = None
    inference_url: str | None = None
    policies: list[str] = Field(default_factory=list)


class LimitsInfo(_Open):
    """Limits of one rollout."""

    max_turns: int | None = None
    max_turns_by_default: bool = False
    max_refusals: int | None = None
    max_response_tokens: int | None = None
    timeout_seconds: int | None = None


class TaskInfo(_Open):
    """One task: the app's description, and the seed's data in `task_metadata`."""

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
    """`/task_info` without a seed."""

    taskset: DatasetInfo


class ServiceInfo(_Open):
    """The app and its version."""

    task: TaskDescriptor
    version: str


class Info(_Open):
    """`/info`."""

    service: ServiceInfo
    dataset: DatasetInfo
    rubrics: dict[str, Any] | None
    inference: InferenceInfo
    limits: LimitsInfo


class Pending(BaseModel):
    """202: the rollout is running. `created_at`: unix seconds. `events`: the number of events so far."""

    rollout_id: str
    status: Literal["running"]
    created_at: float
    events: int
    url: str


class Ended(BaseModel):
    """`DELETE /rollouts/{rollout_id}`: cancelled by this request, or ended before."""

    rollout_id: str
    status: Literal["cancelled", "ended"]

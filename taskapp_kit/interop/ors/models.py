"""The bodies of ORS requests, and of ORS responses for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.wire.rollout import SPLIT, JsonDict, forms


class OrsTool(BaseModel):
    """A tool. `input_schema` is a JSON Schema."""

    name: str
    description: str
    input_schema: JsonDict


class OrsTools(BaseModel):
    """The tools, which are the same for every task."""

    tools: list[OrsTool]
    terminal_tool: None
    supports_score_group: bool
    message_block_types: list[str]


class OrsBlock(BaseModel):
    """A block of text, or of an image with base64 `data`."""

    type: Literal["text", "image"]
    text: str = ""
    data: str = ""
    mimeType: str = ""
    detail: JsonDict | None


class OrsMessage(BaseModel):
    """A message in the first prompt."""

    role: str
    blocks: list[OrsBlock]
    detail: None


class OrsSid(BaseModel):
    """The id of the session."""

    sid: str


class OrsStatus(BaseModel):
    """The session exists."""

    status: Literal["ok"]


class OrsBody(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid")


class CreateSession(OrsBody):
    """The task: an object that `/task` returned, or a split and an index. `toolset_name` must be absent or null."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=forms(("task_spec",), ("split", "index")))

    env_name: StrictStr | None = None
    task_spec: JsonDict | None = None
    split: Annotated[StrictStr, Field(json_schema_extra=SPLIT)] | None = None
    index: StrictInt | None = None
    toolset_name: None = None

    @model_validator(mode="after")
    def _names_one_task(self) -> CreateSession:
        if (self.task_spec is None) == (self.split is None) or (self.split is None) != (self.index is None):
            raise ValueError("should have task_spec, or both split and index")
        return self


class TaskSpec(OrsBody):
    """A task. `config` is `env.config` of `POST /rollout`. `row` is the row from `/task`, and is ignored."""

    split: StrictStr | None = None
    seed: StrictInt = Field(ge=0, lt=SEED_LIMIT)
    config: JsonDict = Field(default_factory=dict)
    row: Any = None


class OrsCall(OrsBody):
    """A tool call.

    If `task_id` is the id of an earlier call, the result of that call is sent again and the tool does not run.
    """

    name: StrictStr = Field(max_length=512)
    input: Any = Field(default_factory=dict)
    task_id: StrictStr | None = None


class GroupCandidate(OrsBody):
    """A rollout of a group.

    `metadata.rollout_id` is the rollout's id, which each response to `/call` contains in its metadata. `messages` is
    ignored.
    """

    messages: list[Any] = Field(default_factory=list)
    metadata: JsonDict | None = None


class ScoreGroup(OrsBody):
    """The rollouts to rank."""

    candidates: list[GroupCandidate]
    task_id: StrictStr | None = None

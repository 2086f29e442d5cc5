"""The bodies of OpenEnv's requests and responses, as models for the OpenAPI document.

The routes and sockets validate requests with the models in `serve.routes.sessions`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from taskapp_kit.serve.routes.sessions import FinishSession, ResetSession
from taskapp_kit.wire.rollout import JsonDict

MAX_EPISODE_ID = 255


class OpenEnvSession(BaseModel):
    """The id of the session. It may be sent in a header or the query instead. Other fields are ignored."""

    model_config = ConfigDict(extra="allow")

    session_id: StrictStr | None = None


class OpenEnvReset(ResetSession, OpenEnvSession):
    """The episode to begin. A task may be selected by its `split` and `index` instead of a `seed`.

    The environment's options may be sent as additional fields or in `config`.
    """

    model_config = ConfigDict(extra="allow")

    episode_id: Annotated[StrictStr, Field(max_length=MAX_EPISODE_ID)] | None = None
    index: Any = None
    config: JsonDict | None = None  # type: ignore[assignment]  # null means absent


class OpenEnvStep(FinishSession, OpenEnvSession):
    """An action, with the fields that `/schema` describes."""

    model_config = ConfigDict(extra="allow")

    action: JsonDict


class OpenEnvAnswer(BaseModel):
    """An observation. `reward` is null before the first step, and if the reward is undefined."""

    observation: JsonDict
    reward: float | None
    done: bool
    metadata: JsonDict


class OpenEnvState(BaseModel):
    """The state of the session's episode. `episode_id` is null if the request identifies no session."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None
    step_count: int


class OpenEnvSchemas(BaseModel):
    """The JSON Schemas of an environment."""

    action: JsonDict
    observation: JsonDict
    reset_observation: JsonDict
    state: JsonDict


class OpenEnvMetadata(BaseModel):
    """A description of the environment."""

    name: str
    description: str
    readme_content: str | None
    version: str | None
    author: None
    documentation_url: None


class OpenEnvHealth(BaseModel):
    """Whether the server accepts sessions."""

    status: Literal["healthy", "unhealthy", "degraded"]


class OpenEnvRpcAnswer(BaseModel):
    """A JSON-RPC response: `result` or `error`."""

    jsonrpc: Literal["2.0"]
    id: str | float | None
    result: JsonDict = Field(default_factory=dict)
    error: JsonDict = Field(default_factory=dict)

"""The bodies of a resources server as OpenAPI documents them; `episodes.py` reads them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictStr

from taskapp_kit.wire.rollout import JsonDict, Seed, Split


class NemoBody(BaseModel):
    """An object. Members that are not named are the agent's own, and are not read."""

    model_config = ConfigDict(extra="allow")


class NemoRow(NemoBody):
    """The episode: a row of `taskapp export tasks --format nemo`. `config`: an object, or the text of one."""

    seed: Seed
    split: Split | None = None
    config: Any = None
    environment: StrictStr | None = None
    output_mode: Literal["tool_calls"] = "tool_calls"
    on_failure: Literal["mask", "error"] = "mask"


class NemoSeeded(BaseModel):
    """The episode has begun, or failed, which `verify` says; then the id may be absent."""

    rollout_id: str | None


class NemoVerified(NemoBody):
    """The members of the request, the reward, and what it was made of. A failed episode's sample is marked to be masked."""

    reward: float
    taskapp: JsonDict

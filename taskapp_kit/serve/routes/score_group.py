"""`POST /score_group`: group judges rank the rollouts of one seed against each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request

from taskapp_kit.net.body import read_json
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.rollout.groups import MAX_MEMBERS
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext, RouteSpec, parsed
from taskapp_kit.wire.rollout import forms


class ScoreGroupRequest(BaseModel):
    """Which rollouts: their ids, or the group_id that they were sent with. Exactly one of them."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=forms(("rollout_ids",), ("group_id",)))

    # a rollout that is named twice would be compared with itself
    rollout_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] | None = Field(
        default=None, min_length=2, max_length=MAX_MEMBERS, json_schema_extra={"uniqueItems": True}
    )
    group_id: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _names_one_group(self) -> ScoreGroupRequest:
        if (self.rollout_ids is None) == (self.group_id is None):
            raise ValueError("should have exactly one of rollout_ids and group_id")
        return self


class GroupMember(BaseModel):
    """One rollout of the group. rank: 1 is the best, equal scores share one; null without a judge that weighs something."""

    rollout_id: str
    score: float | None
    rank: int | None
    reason: str | None


class GroupJudge(BaseModel):
    """What one judge said. normalised: its scores from 0 to 1, by its scale.

    orders: in which the rollouts stood before the model, for each sample. cost: US dollars.
    """

    name: str
    weight: float
    scores: dict[str, float | None]
    normalised: dict[str, float | None]
    spreads: dict[str, float | None]
    orders: list[list[str]]
    reason: str | None
    error: str | None
    seconds: float
    cost: float | None


class ScoreGroupResponse(BaseModel):
    """The ranking, in the order in which the rollouts were named."""

    group_id: str | None
    environment: str
    split: str
    seed: int
    scores: list[GroupMember]
    judges: list[GroupJudge]


async def score_group(context: RouteContext, request: Request) -> EncodedResponse:
    """Ranks stored rollouts of one environment, split, seed and config; others are refused, and it says what differs.

    Scores lie in the judges' scale; they are answered, and not stored.
    """
    scope = request.scope
    body = await read_json(scope, request.receive, context.settings.max_body_bytes)
    wanted = parsed(ScoreGroupRequest, body)
    return json_answer(
        await context.service.score_group(
            rollout_ids=wanted.rollout_ids, group_id=wanted.group_id, caller=caller_of(scope)
        )
    )


ROUTE = RouteSpec(
    "/score_group",
    "POST",
    score_group,
    "Rank the rollouts of one seed",
    request_model=ScoreGroupRequest,
    response_model=ScoreGroupResponse,
    failures=(408, 413, 415, 422, 429, 500, 504),
)

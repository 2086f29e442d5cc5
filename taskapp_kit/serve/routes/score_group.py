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
    """The rollouts to rank, by exactly one of their ids and their group_id."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=forms(("rollout_ids",), ("group_id",)))

    # a rollout named twice would be compared with itself
    rollout_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] | None = Field(
        default=None, min_length=2, max_length=MAX_MEMBERS, json_schema_extra={"uniqueItems": True}
    )
    group_id: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _names_one_group(self) -> ScoreGroupRequest:
        if (self.rollout_ids is None) == (self.group_id is None):
            raise ValueError("must have exactly one of rollout_ids and group_id")
        return self


class GroupMember(BaseModel):
    """A rollout of the group. rank: 1 is the best, equal scores share a rank; null without a judge with a weight."""

    rollout_id: str
    score: float | None
    rank: int | None
    reason: str | None


class GroupJudge(BaseModel):
    """The verdict of one judge. normalised: its scores, mapped from its scale to 0 to 1.

    orders: the order in which the model saw the rollouts, for each sample. cost: US dollars.
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
    """Rank stored rollouts of one environment, split, seed and config; for other rollouts, the error names what differs.

    The scores are on the judges' scales. They are returned and not stored.
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

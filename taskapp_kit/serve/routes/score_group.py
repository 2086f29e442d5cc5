"""`POST /score_group` calls group judges, which rank several rollouts of the same seed."""

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
    """The rollouts to rank. Exactly one of `rollout_ids` and `group_id` must be set."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=forms(("rollout_ids",), ("group_id",)))

    # a repeated id would compare a rollout with itself
    rollout_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] | None = Field(
        default=None, min_length=2, max_length=MAX_MEMBERS, json_schema_extra={"uniqueItems": True}
    )
    group_id: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _names_one_group(self) -> ScoreGroupRequest:
        if (self.rollout_ids is None) == (self.group_id is None):
            raise ValueError("exactly one of rollout_ids and group_id must be set")
        return self


class GroupMember(BaseModel):
    """A rollout in the group.

    `rank` is 1 for the best rollout. Rollouts with equal scores share a rank. `rank` is null if no judge has a weight
    above 0.
    """

    rollout_id: str
    score: float | None
    rank: int | None
    reason: str | None


class GroupJudge(BaseModel):
    """The verdict of one judge.

    `normalised` contains the scores, mapped from the judge's scale to 0 to 1. `orders` contains, for each call of
    the judge's model, the order in which the rollouts were shown to the model. `cost` is in US dollars.
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
    """The ranks and verdicts. The rollouts have the same order as in the request."""

    group_id: str | None
    environment: str
    split: str
    seed: int
    scores: list[GroupMember]
    judges: list[GroupJudge]


async def score_group(context: RouteContext, request: Request) -> EncodedResponse:
    """Rank stored rollouts, which must have the same environment, split, seed and config.

    If they differ in one of these, the error names the difference. The scores are on the judges' scales. They are not stored.
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
    "Rank rollouts of the same seed",
    request_model=ScoreGroupRequest,
    response_model=ScoreGroupResponse,
    failures=(408, 413, 415, 422, 429, 500, 504),
)

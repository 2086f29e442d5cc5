"""`/sessions`: environments that stay open between calls. `rollout/sessions.py` implements the sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictStr
from starlette.requests import Request

from taskapp_kit.net.body import read_json
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.records.content import Content, Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.rollout.response import PictureRoom, wire_observation
from taskapp_kit.rollout.session import EnvironmentSession, SessionStart, SessionStep
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext, RouteSpec, invalid_field, parsed
from taskapp_kit.wire.rollout import (
    NO_CONTROL_CHARACTERS,
    SHORTEST_SECONDS,
    EnvironmentName,
    JsonDict,
    Label,
    RewardSpec,
    Seed,
    Split,
    forms,
)

PROTOCOL = "sessions"
"""The name of the protocol that is stored with the rollouts of these sessions."""
MAX_ACTIONS = 1000
"""The maximum number of actions in a request. `max_actions_per_step` limits how many of them are executed."""

RequestId = Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=NO_CONTROL_CHARACTERS)]
Seconds = Annotated[float, Field(ge=SHORTEST_SECONDS, le=86_400, allow_inf_nan=False, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenSession(_Strict):
    """The environment to open, by default the app's first environment.

    `run_id` is stored with the session's rollouts. It defaults to the session's id.
    """

    env_name: EnvironmentName | None = None
    run_id: Annotated[Label, Field(min_length=1)] | None = None


class ResetSession(_Strict):
    """The episode, with the same fields as `env` in `POST /rollout`.

    `split` may also be a field of `config`. If the seed is missing, the server draws a seed.
    """

    seed: Seed | None = None
    split: Split | None = None
    config: JsonDict = Field(default_factory=dict)
    reward: RewardSpec | None = None
    request_id: RequestId | None = None
    timeout_s: Seconds | None = None


class SessionAction(_Strict):
    """One action and its arguments."""

    tool: Annotated[StrictStr, Field(max_length=512)]
    args: Any = Field(default_factory=dict)


class StepSession(_Strict):
    """One decision: `tool` and `args`, several `actions`, or `text` if the environment has a text action."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra=forms(("tool",), ("actions",), ("text",), first_only=("args",))
    )

    tool: Annotated[StrictStr, Field(max_length=512)] | None = None
    args: Any = None
    actions: Annotated[list[SessionAction], Field(min_length=1, max_length=MAX_ACTIONS)] | None = None
    text: StrictStr | None = None
    request_id: RequestId | None = None
    timeout_s: Seconds | None = None


class FinishSession(_Strict):
    """The id of this request and its time limit."""

    request_id: RequestId | None = None
    timeout_s: Seconds | None = None


class SessionState(BaseModel):
    """A session. `turn` counts the decisions in the current episode. `rollout_id` is null before the first reset."""

    session_id: str
    env_name: str
    state: Literal["open", "playing", "over", "closed"]
    run_id: str
    rollout_id: str | None
    turn: int
    busy: bool
    idle_seconds: float


class SessionList(BaseModel):
    """The open sessions to which the key has access, oldest first."""

    sessions: list[SessionState]


class SessionEpisode(BaseModel):
    """How the episode ended, with the same fields as in the response of `POST /rollout`."""

    rollout_id: str
    status: Literal["terminated", "truncated"]
    stop_reason: str
    reward: float | None
    episode_return: float
    length: int
    digest: str
    metrics: dict[str, float]
    scorecard: JsonDict
    warnings: list[str]
    timing: dict[str, float]


class SessionResult(BaseModel):
    """The result of one action in a step. `reward` is the environment's reward.

    If the action was rejected, `refused` is the reason. `observation` is null for the last action, whose observation is
    the observation of the step.
    """

    tool: str
    args: Any
    observation: JsonDict | None
    reward: float | None
    refused: str | None
    info: JsonDict


class SessionStarted(BaseModel):
    """The first observation, and `messages` and `tools` for trainers that sample from the model themselves."""

    session_id: str
    rollout_id: str
    env_name: str
    split: str
    seed: int
    observation: JsonDict
    actions: list[JsonDict]
    messages: list[JsonDict]
    tools: list[JsonDict]
    limits: dict[str, float | None]
    reward_formula: str
    done: bool
    truncated: bool
    episode: SessionEpisode | None


class SessionStepped(BaseModel):
    """The latest observation. A null `reward` is undefined, not 0. An episode's rewards sum to `episode.reward`."""

    session_id: str
    rollout_id: str
    turn: int
    observation: JsonDict
    reward: float | None
    reward_parts: dict[str, float | None]
    terminated: bool
    truncated: bool
    done: bool
    results: list[SessionResult]
    episode: SessionEpisode | None


M = TypeVar("M", bound=BaseModel)


async def open_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Open a session with an environment. The first reset begins an episode.

    The number of sessions is limited. A session ends when it is closed, or when it has not been used for
    `idle_seconds`. At the limit, the request waits some seconds for another session to end. After that, the response
    is 503 with `Retry-After`. Sessions count in a key's quota of rollouts.
    """
    wanted = await _read(context, request, OpenSession)
    session = await context.service.sessions.open(
        wanted.env_name, caller=caller_of(request.scope), protocol=PROTOCOL, run_id=wanted.run_id
    )
    return json_answer(state_of(context, session))


async def list_sessions(context: RouteContext, request: Request) -> EncodedResponse:
    """List the open sessions of this key. An admin's key lists all sessions. Listing does not count as use."""
    sessions = context.service.sessions.listed(caller_of(request.scope))
    return json_answer({"sessions": [state_of(context, session) for session in sessions]})


async def read_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Describe a session. The request counts as use, so it also prevents the session from expiring.

    Only an admin's key can read the sessions of other keys; for other keys, the response is 404.
    """
    return json_answer(state_of(context, _found(context, request, drives=False)))


async def reset_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Begin an episode. An episode that is still running ends and is stored as cancelled."""
    session = _found(context, request)
    wanted = await _read(context, request, ResetSession)
    return json_answer(await reset_with(session, wanted))


async def step_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Make one decision. A request with the `request_id` of the previous call returns the response of that call again.

    A rejected action is a step whose observation is the reason. The response to the step that ends the episode is sent
    after the episode has been scored and stored, and its `reward` includes the outcome. Failures have the same response
    as in `POST /rollout`.
    """
    session = _found(context, request)
    wanted = await _read(context, request, StepSession, required=True)
    return json_answer(await step_with(session, wanted))


async def finish_session(context: RouteContext, request: Request) -> EncodedResponse:
    """End the episode now. It is truncated, scored and stored. If it has already ended, return its last step again."""
    session = _found(context, request)
    wanted = await _read(context, request, FinishSession)
    return json_answer(await finish_with(session, wanted))


async def close_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Close the session. A running episode is stored as cancelled. To score it, call `finish` first."""
    # an admin can close all sessions, but control only its own sessions
    session = _found(context, request, drives=False)
    await session.close()
    return json_answer(state_of(context, session))


async def delete_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Close the session, like `POST /sessions/{session_id}/close`."""
    return await close_session(context, request)


# -- shared by the routes and the socket -----------------------------------------------------------------------------


async def reset_with(session: EnvironmentSession, wanted: ResetSession) -> dict[str, Json]:
    """Begin an episode, and return the response."""
    return _started(session, await begin_with(session, wanted))


async def begin_with(session: EnvironmentSession, wanted: ResetSession) -> SessionStart:
    """Begin the episode that the body of a reset describes."""
    reward = wanted.reward
    return await session.reset(
        wanted.seed,
        split=wanted.split,
        config=wanted.config,
        reward=None if reward is None else Blend(reward.env, reward.event, reward.outcome),
        request_id=wanted.request_id,
        seconds=wanted.timeout_s,
    )


async def step_with(session: EnvironmentSession, wanted: StepSession) -> dict[str, Json]:
    """Make one decision, and return the response.

    Raises:
        RequestError: The body does not contain exactly one of `tool`, `actions` and `text`.
    """
    forms = [wanted.tool is not None, wanted.actions is not None, wanted.text is not None]
    # checked here, because a validator of the whole model could not name the invalid field
    if sum(forms) != 1:
        raise invalid_field(("body", "tool"), "The body must have exactly one of `tool`, `actions` and `text`.")
    if wanted.args is not None and wanted.tool is None:
        raise invalid_field(("body", "args"), "`args` is allowed only together with `tool`.")
    actions: list[tuple[str, Json]] = [(action.tool, action.args) for action in wanted.actions or ()]
    if wanted.tool is not None:
        actions = [(wanted.tool, {} if wanted.args is None else wanted.args)]
    step = await session.step(actions, text=wanted.text, request_id=wanted.request_id, seconds=wanted.timeout_s)
    return _stepped(session, step)


async def finish_with(session: EnvironmentSession, wanted: FinishSession) -> dict[str, Json]:
    """End the episode, and return the response."""
    return _stepped(session, await session.finish(request_id=wanted.request_id, seconds=wanted.timeout_s))


def state_of(context: RouteContext, session: EnvironmentSession) -> dict[str, Json]:
    """Return the description of a session."""
    return {
        "session_id": session.session_id,
        "env_name": session.environment.name,
        "state": session.state,
        "run_id": session.run_id,
        "rollout_id": session.rollout_id,
        "turn": session.turn,
        "busy": session.busy,
        "idle_seconds": context.service.sessions.idle_seconds,
    }


def _found(context: RouteContext, request: Request, *, drives: bool = True) -> EnvironmentSession:
    session_id: str = request.path_params["session_id"]
    return context.service.sessions.find(session_id, caller_of(request.scope), drives=drives)


async def _read(context: RouteContext, request: Request, model: type[M], *, required: bool = False) -> M:
    body = await read_json(request.scope, request.receive, context.settings.max_body_bytes, required=required)
    return parsed(model, body)


def _started(session: EnvironmentSession, start: SessionStart) -> dict[str, Json]:
    return {
        "session_id": session.session_id,
        "rollout_id": start.rollout_id,
        "env_name": start.environment,
        "split": start.split,
        "seed": start.seed,
        "observation": _shown(start.observation),
        "actions": start.actions,
        "messages": start.messages,
        "tools": start.tools,
        "limits": start.limits,
        "reward_formula": start.formula,
        "done": start.end is not None,
        "truncated": start.end is not None,  # only a limit can end an episode before its first step
        "episode": None if start.end is None else described_episode(start.end),
    }


def _stepped(session: EnvironmentSession, step: SessionStep) -> dict[str, Json]:
    return {
        "session_id": session.session_id,
        "rollout_id": session.rollout_id,
        "turn": step.turn,
        "observation": _shown(step.observation),
        "reward": step.reward,
        "reward_parts": step.parts,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "done": step.end is not None,
        "results": _results(step.steps),
        "episode": None if step.end is None else described_episode(step.end),
    }


def _shown(observation: Content) -> dict[str, Json]:
    """Return an observation with inline images, because `/blobs` has no images of a running episode."""
    return wire_observation(observation, PictureRoom(sys.maxsize))


def _results(steps: Sequence[PlayedStep]) -> list[Json]:
    return [
        {
            "tool": step.tool,
            "args": step.args,
            "observation": None if step is steps[-1] else _shown(step.observation),
            "reward": step.reward,
            "refused": step.refused,
            "info": step.info,
        }
        for step in steps
    ]


def described_episode(end: Rollout) -> dict[str, Json]:
    """Return the fields of `SessionEpisode`."""
    return {
        "rollout_id": end.rollout_id,
        "status": end.status,
        "stop_reason": end.stop_reason,
        "reward": end.reward,
        "episode_return": end.total_reward,
        "length": end.length,
        "digest": end.digest,
        "metrics": end.all_metrics,
        "scorecard": end.scorecard.to_json(),
        "warnings": end.warnings,
        "timing": end.timing,
    }


PARAMETERS = (
    {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}},
)
READING = (408, 413, 415, 422)
PLAYING = (404, 409, *READING, 429, 500, 502, 504)

ONE = "/sessions/{session_id}"
DESCRIBED: dict[str, Any] = {"response_model": SessionState, "failures": (404,), "parameters": PARAMETERS}


def _played(request: type[BaseModel], response: type[BaseModel], *, body_required: bool = False) -> dict[str, Any]:
    """Return the arguments of `RouteSpec` that document a route that plays an episode."""
    models = {"request_model": request, "body_required": body_required, "response_model": response}
    return {**models, "failures": PLAYING, "parameters": PARAMETERS}


ROUTES = (
    RouteSpec(
        "/sessions",
        "POST",
        open_session,
        "Open a session",
        request_model=OpenSession,
        body_required=False,
        response_model=SessionState,
        failures=(*READING, 429),
    ),
    RouteSpec("/sessions", "GET", list_sessions, "List open sessions", response_model=SessionList),
    RouteSpec(ONE, "GET", read_session, "Describe a session", **DESCRIBED),
    RouteSpec(ONE, "DELETE", delete_session, "Close a session", **DESCRIBED),
    RouteSpec(f"{ONE}/reset", "POST", reset_session, "Begin an episode", **_played(ResetSession, SessionStarted)),
    RouteSpec(
        f"{ONE}/step",
        "POST",
        step_session,
        "Make one decision",
        **_played(StepSession, SessionStepped, body_required=True),
    ),
    RouteSpec(
        f"{ONE}/finish",
        "POST",
        finish_session,
        "End the episode and score it",
        **_played(FinishSession, SessionStepped),
    ),
    RouteSpec(f"{ONE}/close", "POST", close_session, "Close a session", **DESCRIBED),
)

"""`/sessions`: environments held open between calls. `rollout/sessions.py` has the sessions."""

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
"""The protocol that is stored with the rollouts of these sessions."""
MAX_ACTIONS = 1000
"""The maximum number of actions in a step; `max_actions_per_step` is how many of them are run."""

RequestId = Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=NO_CONTROL_CHARACTERS)]
Seconds = Annotated[float, Field(ge=SHORTEST_SECONDS, le=86_400, allow_inf_nan=False, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenSession(_Strict):
    """The environment (default: the app's first); `run_id` is stored with its rollouts (default: the session's id)."""

    env_name: EnvironmentName | None = None
    run_id: Annotated[Label, Field(min_length=1)] | None = None


class ResetSession(_Strict):
    """The episode, as `env` of `POST /rollout`; `split` may also be in `config`. A missing seed is drawn."""

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
    """One decision: `tool` and `args`, or several `actions`, or `text` if the environment has a text action."""

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
    """Only the call's id and time limit."""

    request_id: RequestId | None = None
    timeout_s: Seconds | None = None


class SessionState(BaseModel):
    """A session. `turn` counts the decisions of the current episode; `rollout_id` is its rollout, null before a reset."""

    session_id: str
    env_name: str
    state: Literal["open", "playing", "over", "closed"]
    run_id: str
    rollout_id: str | None
    turn: int
    busy: bool
    idle_seconds: float


class SessionList(BaseModel):
    """The open sessions that the key may see, oldest first."""

    sessions: list[SessionState]


class SessionEpisode(BaseModel):
    """How the episode ended, with the same members as in the answer of `POST /rollout`."""

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
    """One action of a step. `refused` is the reason if it was refused; `reward` is the environment's.

    `observation` is null for the last action, because it is the step's observation.
    """

    tool: str
    args: Any
    observation: JsonDict | None
    reward: float | None
    refused: str | None
    info: JsonDict


class SessionStarted(BaseModel):
    """The first observation, and `messages` and `tools` for the model of a trainer that samples itself."""

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
    """The newest observation. A null `reward` is undefined, never 0. An episode's rewards sum to `episode.reward`."""

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
    """Open a session of an environment; its first reset begins an episode.

    It occupies a place until it is closed or was not used for `idle_seconds`. If every place is taken, the request waits
    some seconds for a place, and is then answered with 503 and `Retry-After`. Sessions count in a key's quota of rollouts.
    """
    wanted = await _read(context, request, OpenSession)
    session = await context.service.sessions.open(
        wanted.env_name, caller=caller_of(request.scope), protocol=PROTOCOL, run_id=wanted.run_id
    )
    return json_answer(state_of(context, session))


async def list_sessions(context: RouteContext, request: Request) -> EncodedResponse:
    """List the open sessions of this key, or with an admin's key all of them. Listing does not count as use."""
    sessions = context.service.sessions.listed(caller_of(request.scope))
    return json_answer({"sessions": [state_of(context, session) for session in sessions]})


async def read_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Describe a session, which counts as use: a ping. A session of another key is not found; an admin sees all."""
    return json_answer(state_of(context, _found(context, request, drives=False)))


async def reset_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Begin an episode. A running episode ends and is stored as cancelled."""
    session = _found(context, request)
    wanted = await _read(context, request, ResetSession)
    return json_answer(await reset_with(session, wanted))


async def step_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Make one decision. Repeating the `request_id` of the previous call only returns its answer again.

    A refused action is a step whose observation is the reason. The step that ends the episode is answered after the
    episode is scored and stored; its `reward` includes the outcome. A failure is answered as in `POST /rollout`.
    """
    session = _found(context, request)
    wanted = await _read(context, request, StepSession, required=True)
    return json_answer(await step_with(session, wanted))


async def finish_session(context: RouteContext, request: Request) -> EncodedResponse:
    """End the episode now: truncated, scored and stored. If it has ended, return its last step again."""
    session = _found(context, request)
    wanted = await _read(context, request, FinishSession)
    return json_answer(await finish_with(session, wanted))


async def close_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Close the session. A running episode ends and is stored as cancelled; call `finish` before to score it."""
    # an admin may close any session, but drive only its own
    session = _found(context, request, drives=False)
    await session.close()
    return json_answer(state_of(context, session))


async def delete_session(context: RouteContext, request: Request) -> EncodedResponse:
    """Close the session, like `POST /sessions/{session_id}/close`."""
    return await close_session(context, request)


# -- what the routes share with the socket ---------------------------------------------------------------------------


async def reset_with(session: EnvironmentSession, wanted: ResetSession) -> dict[str, Json]:
    """Return the answer of a reset."""
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
    """Return the answer of a step. Raises RequestError unless there is exactly one form of a decision."""
    forms = [wanted.tool is not None, wanted.actions is not None, wanted.text is not None]
    # checked here, because a validator of the whole model could not name the wrong member
    if sum(forms) != 1:
        raise invalid_field(("body", "tool"), "The body must have exactly one of tool (with args), actions and text.")
    if wanted.args is not None and wanted.tool is None:
        raise invalid_field(("body", "args"), "args are only allowed with tool.")
    actions: list[tuple[str, Json]] = [(action.tool, action.args) for action in wanted.actions or ()]
    if wanted.tool is not None:
        actions = [(wanted.tool, {} if wanted.args is None else wanted.args)]
    step = await session.step(actions, text=wanted.text, request_id=wanted.request_id, seconds=wanted.timeout_s)
    return _stepped(session, step)


async def finish_with(session: EnvironmentSession, wanted: FinishSession) -> dict[str, Json]:
    """Return the answer of a finish."""
    return _stepped(session, await session.finish(request_id=wanted.request_id, seconds=wanted.timeout_s))


def state_of(context: RouteContext, session: EnvironmentSession) -> dict[str, Json]:
    """Return a session's description."""
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
        "truncated": start.end is not None,  # only a limit ends an episode before its first step
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
    """Return an observation with its images inline, because `/blobs` lacks the images of a running episode."""
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
    """Return the members of `SessionEpisode`."""
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
    """Return the documentation of a call that plays."""
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

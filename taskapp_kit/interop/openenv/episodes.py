"""The OpenEnv sessions of a server, for its sockets, HTTP routes and JSON-RPC."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.interop.openenv.actions import METADATA, action_schema, read_action
from taskapp_kit.interop.openenv.models import MAX_EPISODE_ID
from taskapp_kit.interop.protocols import (
    check_environment,
    environment_of_path,
    step_metadata,
    tools_of,
)
from taskapp_kit.interop.split_tasks import TaskIndex, task_at
from taskapp_kit.records.content import Content, Json
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.response import wire_observation
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.route import RouteContext, parsed
from taskapp_kit.serve.routes.sessions import ResetSession, begin_with, described_episode
from taskapp_kit.wire.field_problems import invalid_member

PROTOCOL = "openenv"
RESERVED = ("reward", "done", METADATA)
"""Members that OpenEnv adds to the environment's observations."""
RESET_FIELDS = ("seed", "split", "config", "reward", "request_id", "timeout_s")


class OpenEnvEpisodes:
    """OpenEnv's names for a session, which provides boundaries, limits, rewards and storage.

    Every method raises what the session raises, and RequestError where OpenEnv's own server answers 422.
    """

    def __init__(self, context: RouteContext) -> None:
        self.context = context
        self.sessions = context.service.sessions
        self._app = context.service.spec
        self._episode_ids: WeakKeyDictionary[EnvironmentSession, str] = WeakKeyDictionary()

    def environment(self, name: str | None) -> EnvironmentSpec:
        """Return an environment; None selects the default one. Raises RequestRefused (404)."""
        return self._app.default_environment if name is None else environment_of_path(self._app, name)

    async def open(self, environment: EnvironmentSpec, caller: Caller) -> EnvironmentSession:
        """Open a session."""
        return await self.sessions.open(environment.name, caller=caller, protocol=PROTOCOL)

    def find(self, session_id: str, environment: EnvironmentSpec, caller: Caller) -> EnvironmentSession:
        """Return a session of this caller, opened here or with `/sessions`. Raises SessionError, RequestError."""
        session = self.sessions.find(session_id, caller)
        check_environment(session, environment, "Use the path of the session's environment.")
        return session

    # -- the verbs -------------------------------------------------------------------------------------------------

    async def reset(self, session: EnvironmentSession, data: Mapping[str, Json]) -> dict[str, Json]:
        """Begin an episode with `seed`, `episode_id`, `split`, `config`, `reward` and settings of the environment's config.

        `split` and `index` without a seed select the task with that index, as in openenv 0.10. Other members are ignored, as in
        OpenEnv's server, and listed in `metadata.ignored`.
        """
        episode_id = data.get("episode_id")
        if episode_id is not None and (not isinstance(episode_id, str) or len(episode_id) > MAX_EPISODE_ID):
            message = f"should be a string of at most {MAX_EPISODE_ID} characters"
            raise invalid_member("reset", "episode_id", message)
        body = {name: data[name] for name in RESET_FIELDS if data.get(name) is not None}
        configurable = session.environment.config.schema.get("properties", {})
        indexed = (
            "split" in body and data.get("index") is not None and "index" not in configurable and "seed" not in body
        )
        if indexed:
            task = parsed(TaskIndex, {name: data[name] for name in ("split", "index")})
            body["seed"] = task_at(session.environment, task.split, task.index)["seed"]
        more = {name: value for name, value in data.items() if name not in RESET_FIELDS and name in configurable}
        if more:
            config = body.get("config", {})
            body["config"] = {**more, **config} if isinstance(config, dict) else config
        used = (*RESET_FIELDS, "episode_id", *(("index",) if indexed else ()))
        ignored = [name for name in data if name not in used and name not in configurable]
        start = await begin_with(session, parsed(ResetSession, body))
        self._episode_ids[session] = episode_id or start.rollout_id
        metadata: dict[str, Json] = {
            "session_id": session.session_id,
            "rollout_id": start.rollout_id,
            "environment": start.environment,
            "split": start.split,
            "seed": start.seed,
            "limits": start.limits,
            "reward_formula": start.formula,
            "ignored": ignored[:100],
        }
        if start.end is not None:  # a limit was reached before the first step
            metadata["episode"] = described_episode(start.end)
        reward = None if start.end is None else start.end.reward
        answer = _answer(_observed(start.observation, metadata), reward, start.end is not None, metadata)
        answer[METADATA] = {**metadata, "messages": start.messages, "tools": start.tools}
        return answer

    async def step(
        self,
        session: EnvironmentSession,
        data: Mapping[str, Json],
        *,
        request_id: str | None = None,
        seconds: float | None = None,
    ) -> dict[str, Json]:
        """Run an action, or list the tools. A refused action is a step with the reason in `metadata.refused`."""
        action = read_action(session.environment, data)
        if action.tool is None:
            observation = {"tools": tools_of(session.environment, "input_schema")}
            return _answer({**observation, METADATA: {}}, None, session.state == "over", {})
        step = await session.step([(action.tool, action.args)], request_id=request_id, seconds=seconds)
        metadata = {"session_id": session.session_id, **step_metadata(session, step)}
        observed = wire_observation(step.observation)
        if action.named:
            refused = metadata["refused"]
            kind = "tool_not_found" if action.tool not in session.environment.actions else "invalid_args"
            result = observed["text"] if observed.keys() == {"text"} else observed
            return _answer(
                {
                    "tool_name": action.tool,
                    "result": None if refused else result,
                    "error": {"error_type": kind, "message": refused} if refused else None,
                    METADATA: metadata,
                },
                step.reward,
                step.end is not None,
                metadata,
            )
        return _answer(_observed(step.observation, metadata), step.reward, step.end is not None, metadata)

    async def finish(
        self, session: EnvironmentSession, *, request_id: str | None = None, seconds: float | None = None
    ) -> dict[str, Json]:
        """Truncate, score and store the episode. OpenEnv itself has no such call."""
        step = await session.finish(request_id=request_id, seconds=seconds)
        metadata = {"session_id": session.session_id, **step_metadata(session, step)}
        return _answer(_observed(step.observation, metadata), step.reward, True, metadata)

    def state(self, session: EnvironmentSession) -> dict[str, Json]:
        """Describe the episode, without the environment's own state. It counts as using the session."""
        session.touch()
        return {
            "episode_id": self._episode_ids.get(session),
            "step_count": session.turn,
            "status": session.state,
            "session_id": session.session_id,
            "rollout_id": session.rollout_id,
            "environment": session.environment.name,
        }

    # -- descriptions of an environment -----------------------------------------------------------------------------

    def metadata(self, environment: EnvironmentSpec) -> dict[str, Json]:
        """Return OpenEnv's EnvironmentMetadata."""
        return {
            "name": environment.name,
            "description": environment.description or self._app.description,
            "readme_content": self._app.description or None,
            "version": environment.version,
            "author": None,
            "documentation_url": None,
        }


def schemas(environment: EnvironmentSpec) -> dict[str, Json]:
    """Return the JSON Schemas of action, observation and state."""
    observation = {
        "type": "object",
        "description": "`text`, or `content` with text and pictures (data URLs), or the members that the environment returns; "
        "as `value` where those have the name of a member below.",
        "properties": {
            "text": {"type": "string"},
            "content": {"type": "array", "items": {"type": "object"}},
            METADATA: {"type": "object"},
        },
        "additionalProperties": True,
    }
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    return {
        "action": action_schema(environment),
        "observation": observation,
        "reset_observation": observation,
        "state": {
            "type": "object",
            "properties": {
                "episode_id": optional,
                "step_count": {"type": "integer", "minimum": 0},
                "status": {"enum": ["open", "playing", "over", "closed"]},
                "session_id": {"type": "string"},
                "rollout_id": optional,
                "environment": {"type": "string"},
            },
            "additionalProperties": True,
        },
    }


NO_STATE: dict[str, Json] = {"episode_id": None, "step_count": 0}
"""The state without a session."""


def _answer(observation: dict[str, Json], reward: Json, done: bool, metadata: dict[str, Json]) -> dict[str, Json]:
    """Return the response of a reset or step. `metadata` is in both places, because each release reads another one."""
    return {"observation": observation, "reward": reward, "done": done, METADATA: metadata}


def _observed(content: Content, metadata: dict[str, Json]) -> dict[str, Json]:
    observed = wire_observation(content)
    if any(name in observed for name in RESERVED):
        observed = {"value": observed}
    return {**observed, METADATA: metadata}

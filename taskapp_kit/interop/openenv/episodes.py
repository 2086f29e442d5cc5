"""The OpenEnv sessions of a server. WebSockets, HTTP routes and JSON-RPC use them."""

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
"""The fields that OpenEnv adds to the environment's observations."""
RESET_FIELDS = ("seed", "split", "config", "reward", "request_id", "timeout_s")


class OpenEnvEpisodes:
    """OpenEnv's calls, implemented with sessions, which provide error boundaries, limits, rewards and storage.

    Every method raises the session's exceptions, and RequestError if OpenEnv's own server would respond with 422.
    """

    def __init__(self, context: RouteContext) -> None:
        self.context = context
        self.sessions = context.service.sessions
        self._app = context.service.spec
        self._episode_ids: WeakKeyDictionary[EnvironmentSession, str] = WeakKeyDictionary()

    def environment(self, name: str | None) -> EnvironmentSpec:
        """Return the environment with this name, or the default environment if the name is None.

        Raises RequestRefused (404) if no environment has this name.
        """
        return self._app.default_environment if name is None else environment_of_path(self._app, name)

    async def open(self, environment: EnvironmentSpec, caller: Caller) -> EnvironmentSession:
        """Open a session."""
        return await self.sessions.open(environment.name, caller=caller, protocol=PROTOCOL)

    def find(self, session_id: str, environment: EnvironmentSpec, caller: Caller) -> EnvironmentSession:
        """Return a session of this caller. It may have been opened with `/sessions`.

        Raises SessionError if the caller has no such session, and RequestError if the session has another environment.
        """
        session = self.sessions.find(session_id, caller)
        check_environment(session, environment, "Use the path with the name of the session's environment.")
        return session

    # -- the verbs -------------------------------------------------------------------------------------------------

    async def reset(self, session: EnvironmentSession, data: Mapping[str, Json]) -> dict[str, Json]:
        """Begin an episode.

        data: may contain `seed`, `episode_id`, `split`, `config`, `reward` and fields of the environment's config.
        Without a seed, `split` and `index` select the task with this index, as in openenv 0.10. Other fields are
        ignored, as in OpenEnv's server, and `metadata.ignored` lists them.
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
        if start.end is not None:  # the episode reached a limit before the first step
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
        """Run an action, or list the tools.

        A rejected action counts as a step, and `metadata.refused` contains the reason.
        """
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
        """Truncate, score and store the episode. OpenEnv itself does not have this call."""
        step = await session.finish(request_id=request_id, seconds=seconds)
        metadata = {"session_id": session.session_id, **step_metadata(session, step)}
        return _answer(_observed(step.observation, metadata), step.reward, True, metadata)

    def state(self, session: EnvironmentSession) -> dict[str, Json]:
        """Return a description of the episode, without the environment's own state.

        The call marks the session as used.
        """
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
    """Return the JSON Schemas of actions, observations and states."""
    observation = {
        "type": "object",
        "description": "`text`; or `content`, a list of text and images (data URLs); or the environment's own fields, "
        "which are inside `value` if a name conflicts with a field below.",
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
"""The state that is returned if there is no session."""


def _answer(observation: dict[str, Json], reward: Json, done: bool, metadata: dict[str, Json]) -> dict[str, Json]:
    """Return the response of a reset or step.

    `metadata` is at the top level and in the observation, because each OpenEnv release reads only one of these.
    """
    return {"observation": observation, "reward": reward, "done": done, METADATA: metadata}


def _observed(content: Content, metadata: dict[str, Json]) -> dict[str, Json]:
    observed = wire_observation(content)
    if any(name in observed for name in RESERVED):
        observed = {"value": observed}
    return {**observed, METADATA: metadata}

"""`from_openenv` declares the environment of an OpenEnv server as an environment of an app.

Written against openenv 0.10.0 and openenv-core 0.3.0 (PyPI; github.com/huggingface/OpenEnv, BSD-3), whose packages are
not needed. It reads the server's `/schema` and `/metadata` when the app is declared, and opens a WebSocket at `/ws` for
each episode. Guarantees:

- An action is checked against the server's schema before it is sent.
- The observation does not contain the reward, `done` or `metadata`. `metadata` becomes the step's info.
- `done` means terminated, unless `metadata` contains `truncated`. A reward of null is undefined. If the server sends
  only null in an episode, the reward of the episode is undefined and the rollout fails, unless the author passes
  `rewarded=False`.
- A timeout closes the connection, because responses have no id. If a connection breaks, the server sends an error
  frame, or no session is free, the rollout fails and has no reward.
- The server's key is read from an environment variable. URLs, messages and traces do not contain it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from taskapp_kit.errors import DeclarationError, InvalidAction
from taskapp_kit.interop.chat_content import block_of
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.openenv.server_socket import OpenEnvFailed, OpenEnvSocket, described
from taskapp_kit.interop.schema_tools import Sample, resolved, tool_method, tool_methods
from taskapp_kit.interop.server_episode import (
    ServerEpisode,
    header_values,
    kind_of,
    server_address,
    shown_url,
    unreadable,
)
from taskapp_kit.records.content import Json
from taskapp_kit.records.trajectory import Step

STEP_SECONDS = 60.0
"""The time limit for a response, as in OpenEnv's own client."""
OPEN_SECONDS = 30.0
METADATA = "metadata"
OWN_MEMBERS = ("reward", "done", METADATA)
"""The fields of a response that are not part of the observation."""
NOT_REPEATABLE = ("episode_id", "session_id", "rollout_id", "episode")
"""The fields of states and metadata that differ when an episode is repeated: ids, and timings from taskapp-kit's protocol."""
CALL_TOOL = frozenset({"tool_name", "arguments"})
"""The fields of OpenEnv's CallToolAction, which MCP environments use."""
TOOL_AND_ARGS = frozenset({"tool", "args"})
"""The fields of an action in taskapp-kit's own OpenEnv protocol, if the environment has several actions."""
REFUSALS = frozenset({"invalid_args", "tool_not_found"})
TOOL_RAISED = "execution_error"
"""The errors of a tool call that the policy observes. Any other error is a failure."""


def from_openenv(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    tool: str = "step",
    description: str = "",
    sample: Sample | Mapping[str, Sample] | None = None,
    noop: Mapping[str, Any] | None = None,
    configurable: Mapping[str, Any] | None = None,
    rewarded: bool = True,
    seconds: float = STEP_SECONDS,
    open_seconds: float = OPEN_SECONDS,
    **options: Any,
) -> type[OpenEnvEnvironment]:
    """Return a class for `app.environment(...)` that plays the environment of an OpenEnv server.

        app.environment("echo", splits={"train": range(1000)}, max_steps=8)(from_openenv("http://127.0.0.1:8000"))

    The server must be running when the app is declared. If the call contains a mistake, freezing the app that declares
    the class raises DeclarationError. An environment with one action has a single tool, whose arguments are the
    action's fields. An MCP environment has its own tools.

    Args:
        url: The server's URL, as in the parameter base_url of OpenEnv's clients.
        headers: Maps each header to the *name* of the environment variable that contains its value, such as
            {"X-API-Key": "ECHO_KEY"}.
        tool: The name of the tool, if the environment has one action.
        description: The description of this tool for the model.
        sample: `fn(rng) -> arguments`, for the policy `random`. If there are several tools, a mapping from each tool's
            name to its function.
        noop: The arguments of the action that changes nothing, if the environment has one action.
        configurable: Fields of `reset` that a caller may set in env.config. It maps each name to a default (bool, int,
            float or str) or to (annotation, default).
        rewarded: Pass False if the server sends no rewards and the author's rubrics score the episode.
        seconds: The time limit for a response.
        open_seconds: How long an episode waits for a session if all sessions of the server are in use.
        **options: Fields of each `reset`. The episode's seed is always sent as `seed`.

    Returns:
        A subclass of `OpenEnvEnvironment`.

    Raises:
        Unavailable: An environment variable in `headers` is not set.
    """
    parts = ClassParts("from_openenv", shown_url(url), sys._getframe(1))
    try:
        address = server_address(parts, url, "an http or https URL, as for OpenEnv's clients")
        values = header_values(parts, headers or {})
        configurable = configurable or {}
        members: dict[str, Any] = {
            "__init__": parts.constructor(configurable, OpenEnvEnvironment.open),
            "server": address,
            "connect": staticmethod(lambda: OpenEnvSocket(address, values, seconds=seconds, open_seconds=open_seconds)),
            "_options": {**options, **parts.defaults(configurable)},
            "rewarded": rewarded,
        }
        clash = sorted({"seed"} & {*options, *configurable})
        if clash:
            raise parts.wrong("has seed=", "other fields of reset", "remove it; the episode's seed is sent")
        name, about = _about(address, values)
        schema = _schema(parts, address, values)
        tools = _tools(parts, schema, members["connect"])
        members["__doc__"] = about
        if tools is None:
            members["act"] = _typed(parts, schema, tool, description or f"Take one step in {name}.", noop, sample)
        else:
            members |= _named(parts, tools, "tool_name" in schema["properties"], noop, sample)
        return parts.made(OpenEnvEnvironment, name, members)
    except DeclarationError as error:
        return parts.without_environment(error, OpenEnvEnvironment)


class OpenEnvEnvironment(ServerEpisode):
    """An episode on an OpenEnv server. `from_openenv` creates the subclasses that an app declares."""

    adapter, library, failure = "from_openenv", "OpenEnv", OpenEnvFailed
    _options: Mapping[str, Json]

    def open(self, options: dict[str, Any]) -> None:
        """Store the options from env.config."""
        self.options = {**self._options, **options}

    def reset(self, seed: int) -> Any:
        """Open a session, begin its episode and return the observation. Raises OpenEnvFailed if the server fails."""
        answer = self.begin().open({**self.options, "seed": seed})
        if self.flag(answer, "done"):
            raise self.failed("ended the episode at reset, before any action")
        self._at_reset = self._number(answer) or 0.0
        return self._observation(answer)

    def send(self, fields: dict[str, Json]) -> Step:
        """Send an action. Raises InvalidAction if the server rejects it, and OpenEnvFailed if the server fails."""
        answer = self.opened().call("step", fields)
        metadata, observation = _metadata(answer), answer.get("observation")
        done = self.flag(answer, "done")
        error = (
            observation.get("error") if fields.get("type") == "call_tool" and isinstance(observation, dict) else None
        )
        if isinstance(error, dict):
            message, kind = str(error.get("message")), str(error.get("error_type"))
            if kind in REFUSALS:
                raise InvalidAction(message, end=done)
            if kind != TOOL_RAISED:
                raise self.failed(f"could not call the tool ({kind}): {message[:300]}")
            answer = {**answer, "observation": {"text": message}}
        reward = self._number(answer)
        self.count(reward, ended=done, metadata=metadata)
        if reward is not None and self._at_reset:
            reward, self._at_reset = reward + self._at_reset, 0.0
        truncated = done and self.flag(metadata, "truncated")
        return Step(
            self._observation(answer),
            reward,
            terminated=done and (not truncated or self.flag(metadata, "terminated")),
            truncated=truncated,
            info=_repeatable(metadata),
        )

    def final_state(self) -> dict[str, Any]:
        """Return the server's `state`, which policies do not see. Raises OpenEnvFailed if the server sent no reward."""
        socket = self.opened()
        self.check_paid()
        state = socket.call("state", {})
        return {"state": _repeatable(state), "rewards": self.rewards}

    def _observation(self, answer: Mapping[str, Json]) -> Any:
        """Return the policy's observation from a response."""
        observation = answer.get("observation")
        if not isinstance(observation, dict):
            raise self.failed(f"sent an observation that is {kind_of(observation)}; expected an object")
        seen = {name: value for name, value in observation.items() if name not in OWN_MEMBERS}
        if seen.keys() == {"text"} and isinstance(seen["text"], str):
            return seen["text"]
        if seen.keys() == {"content"} and isinstance(seen["content"], list):
            blocks = [block_of(block) for block in seen["content"]]
            if blocks and None not in blocks:
                return blocks
        if seen.keys() == {"tool_name", "result", "error"}:
            return _result(seen["result"])
        return seen

    def _number(self, answer: Mapping[str, Json]) -> float | None:
        """Return the reward of a response, or None if it is undefined."""
        reward = answer.get("reward")
        if reward is not None and not isinstance(reward, int | float):
            raise self.failed(f"sent a reward that is {kind_of(reward)}; expected a number or null")
        return None if reward is None else float(reward)


# -- the server's description of itself -------------------------------------------------------------------------------


def _schema(parts: ClassParts, address: str, values: Mapping[str, str]) -> dict[str, Any]:
    try:
        schema = described(address, "/schema", values).get("action")
    except OpenEnvFailed as error:
        raise unreadable(parts, error, "a server that responds to /schema") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise parts.wrong(
            f"of {parts.name}: the action in /schema has no properties",
            "the JSON Schema of an object",
            "define fields in the server's action model",
        )
    return schema


def _about(address: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return the environment's name and description, or defaults if the server has no `/metadata`."""
    try:
        metadata = described(address, "/metadata", values)
    except OpenEnvFailed:
        metadata = {}
    name = str(metadata.get("name") or "OpenEnv")
    return name, str(metadata.get("description") or f"Play {name}.")


def _tools(
    parts: ClassParts, schema: Mapping[str, Any], socket_of: Callable[[], OpenEnvSocket]
) -> list[dict[str, Any]] | None:
    """Return the environment's tools, or None if it has a single typed action instead."""
    fields = set(schema["properties"]) - {METADATA}
    if not (fields >= CALL_TOOL or fields == TOOL_AND_ARGS or not fields):
        return None
    socket = socket_of()
    try:
        observation = socket.open(None).get("observation")
    except (OpenEnvFailed, InvalidAction) as error:
        raise parts.wrong(
            f"cannot list the tools of {parts.name}: {error}", "a response to list_tools", "check the server"
        ) from error
    finally:
        socket.close()
    listed = observation.get("tools") if isinstance(observation, dict) else None
    tools = [item for item in listed if isinstance(item, dict) and item.get("name")] if isinstance(listed, list) else []
    if not tools:
        raise parts.wrong(f"found no tools at {parts.name}", "at least one tool", "check the server")
    return tools


def _typed(
    parts: ClassParts,
    schema: Mapping[str, Any],
    tool: str,
    description: str,
    noop: Mapping[str, Any] | None,
    sample: Sample | Mapping[str, Sample] | None,
) -> Any:
    """Return the method for the action of an environment with one action."""
    if isinstance(sample, Mapping):
        raise parts.wrong(
            "has a mapping as sample=, but the environment has one action", "fn(rng) -> fields", "pass a function"
        )
    constant = [
        name for name, item in schema["properties"].items() if {"const", "default"} <= resolved(item, schema).keys()
    ]
    return tool_method(
        parts, tool, description, schema, OpenEnvEnvironment.send,
        left_out=(METADATA, *constant), noop=noop, sample=sample,
    )  # fmt: skip


def _named(
    parts: ClassParts,
    tools: list[dict[str, Any]],
    mcp: bool,
    noop: Mapping[str, Any] | None,
    sample: Sample | Mapping[str, Sample] | None,
) -> dict[str, Any]:
    """Return a method for each tool. mcp: whether tools are called with OpenEnv's CallToolAction."""
    if noop is not None or callable(sample):
        raise parts.wrong(
            "has noop=, or a function as sample=, but the environment has several tools",
            "sample= as a mapping from tool to fn(rng)",
            "remove noop=, and map each tool in sample=",
        )

    def send(environment: OpenEnvEnvironment, tool: str, arguments: dict[str, Json]) -> Step:
        call: dict[str, Json] = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return environment.send(call if mcp else {"tool": tool, "args": arguments})

    return tool_methods(parts, tools, send, sample or {})


# -- parts of an answer ----------------------------------------------------------------------------------------------


def _metadata(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return the metadata of a response, or {} if the response has no metadata.

    openenv 0.10 sends metadata at the top level and in the observation. The server of 0.3.0 sends none.
    """
    observation = answer.get("observation")
    for metadata in (answer.get(METADATA), observation.get(METADATA) if isinstance(observation, dict) else None):
        if isinstance(metadata, dict) and metadata:
            return dict(metadata)
    return {}


def _repeatable(members: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in members.items() if name not in NOT_REPEATABLE}


def _result(result: Json) -> Any:
    """Return a tool's result as an observation. For an MCP result, return its data or its text."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        texts = [
            item["text"] for item in result["content"] if isinstance(item, dict) and isinstance(item.get("text"), str)
        ]
        structured = result.get("structured_content")
        data = result.get("data")
        result = texts[0] if len(texts) == 1 else data if data is not None else structured or "\n".join(texts)
    return result if isinstance(result, str | dict) else {"result": result}

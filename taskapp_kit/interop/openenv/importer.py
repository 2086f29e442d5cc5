"""Turns the environment of an OpenEnv server into ours: `app.environment("echo", ...)(from_openenv("http://host:8000"))`.

Written against openenv 0.10.0 and openenv-core 0.3.0 (PyPI; github.com/huggingface/OpenEnv, BSD-3), whose packages it does
not need: the server's `/schema` and `/metadata` when the app is declared, and one WebSocket at `/ws` for each episode.
Guarantees:

- An action is checked against the server's schema before it is sent.
- The observation has neither reward nor done nor metadata; metadata is the step's info.
- `done` is terminated, except where metadata says `truncated`. A reward of null stays undefined; an episode in which the
  server pays nothing but null has no reward, and fails unless the author declares `rewarded=False`.
- A time-out closes the connection, for answers carry no id. A broken connection, an error frame and a server without a free
  session are failures of the rollout, never a reward.
- The server's key is read from an environment variable and is in no URL, message or trace.
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
    episode_class,
    header_values,
    kind_of,
    server_address,
    shown_url,
    unreadable,
)
from taskapp_kit.records.content import Json
from taskapp_kit.records.trajectory import Step

STEP_SECONDS = 60.0
"""As long as OpenEnv's own client waits for an answer."""
OPEN_SECONDS = 30.0
METADATA = "metadata"
OWN_MEMBERS = ("reward", "done", METADATA)
"""Members of an answer that are no part of what the policy observes."""
NOT_REPEATABLE = ("episode_id", "session_id", "rollout_id", "episode")
"""Members of state and metadata that differ when the same episode is played again: ids that the server draws, and the
summary that taskapp-kit's own protocol adds, with its times."""
CALL_TOOL = frozenset({"tool_name", "arguments"})
"""Fields of OpenEnv's own CallToolAction: an MCP environment, which lists its tools."""
TOOL_AND_ARGS = frozenset({"tool", "args"})
"""Fields of an action at taskapp-kit's own OpenEnv protocol, where the environment has several."""
REFUSALS = frozenset({"invalid_args", "tool_not_found"})
TOOL_RAISED = "execution_error"
"""Errors of a tool call that the policy reads; the others are failures."""


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

    url: what OpenEnv's clients take as base_url. headers: header name to the *name* of the environment variable with its
    value, {"X-API-Key": "ECHO_KEY"}. An environment of one action has the tool `tool`, which takes the action's fields;
    description: what the model reads about it. An MCP environment has its own tools.

    sample: `fn(rng) -> arguments`, for the policy `random`, and noop: arguments of the action that changes nothing; with
    several tools, sample is a mapping from tool to function and noop is refused. configurable: members of `reset` that a
    caller may set in env.config, name to default (bool, int, float, str) or to (annotation, default); options: those that
    each reset sends. The episode's seed is always sent as `seed`.

    rewarded: False where the server gives no rewards and the author's rubrics score. seconds: the longest time that one
    answer may take. open_seconds: how long an episode waits for a session while all of the server's are in use.

    The server has to run when the app is declared. What does not fit is a problem of the app that declares the class. Raises
    Unavailable: a variable of `headers` is not set.
    """
    parts = ClassParts("from_openenv", shown_url(url), sys._getframe(1))
    try:
        address = server_address(parts, url, "the http(s) URL that OpenEnv's clients take")
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
            raise parts.wrong("has seed=", "members of reset", "leave it out: the episode's seed is sent")
        name, about = _about(address, values)
        schema = _schema(parts, address, values)
        tools = _tools(parts, schema, members["connect"])
        members["__doc__"] = about
        if tools is None:
            members["act"] = _typed(parts, schema, tool, description or f"Take one step in {name}.", noop, sample)
        else:
            members |= _named(parts, tools, "tool_name" in schema["properties"], noop, sample)
        return episode_class(parts, OpenEnvEnvironment, name, members)
    except DeclarationError as error:
        return parts.without_environment(error, OpenEnvEnvironment)


class OpenEnvEnvironment(ServerEpisode):
    """One episode at an OpenEnv server; `from_openenv` makes the subclasses that an app declares."""

    adapter, library, failure = "from_openenv", "OpenEnv", OpenEnvFailed
    _options: Mapping[str, Json]

    def open(self, options: dict[str, Any]) -> None:
        """Take what the caller set in env.config."""
        self.options = {**self._options, **options}

    def reset(self, seed: int) -> Any:
        """Open a session and begin its episode; return the observation. Raises OpenEnvFailed."""
        answer = self.begin().open({**self.options, "seed": seed})
        if self.flag(answer, "done"):
            raise self.failed("ended the episode at reset, before any action")
        self._at_reset = self._number(answer) or 0.0
        return self._observation(answer)

    def send(self, fields: dict[str, Json]) -> Step:
        """Send one action. Raises OpenEnvFailed, InvalidAction."""
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
        """Return the server's `state`, which no policy sees. Raises OpenEnvFailed where nothing was paid."""
        socket = self.opened()
        self.check_paid()
        state = socket.call("state", {})
        return {"state": _repeatable(state), "rewards": self.rewards}

    def _observation(self, answer: Mapping[str, Json]) -> Any:
        """What the policy observes of an answer."""
        given = answer.get("observation")
        if not isinstance(given, dict):
            raise self.failed(f"sent an observation that is {kind_of(given)}; expected an object")
        seen = {name: value for name, value in given.items() if name not in OWN_MEMBERS}
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
        """The reward of an answer; None where there is none."""
        reward = answer.get("reward")
        if reward is not None and not isinstance(reward, int | float):
            raise self.failed(f"sent a reward that is {kind_of(reward)}; expected a number or null")
        return None if reward is None else float(reward)


# -- what the server says of itself ----------------------------------------------------------------------------------


def _schema(parts: ClassParts, address: str, values: Mapping[str, str]) -> dict[str, Any]:
    try:
        schema = described(address, "/schema", values).get("action")
    except OpenEnvFailed as error:
        raise unreadable(parts, error, "a server that answers /schema") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise parts.wrong(f"of {parts.name}: the action of its /schema has no properties", "a JSON Schema of an object",
                          "give its action a model with fields")  # fmt: skip
    return schema


def _about(address: str, values: Mapping[str, str]) -> tuple[str, str]:
    """The environment's name and description; a server without `/metadata` has neither."""
    try:
        found = described(address, "/metadata", values)
    except OpenEnvFailed:
        found = {}
    name = str(found.get("name") or "OpenEnv")
    return name, str(found.get("description") or f"Play {name}.")


def _tools(
    parts: ClassParts, schema: Mapping[str, Any], socket_of: Callable[[], OpenEnvSocket]
) -> list[dict[str, Any]] | None:
    """The tools of an environment that has some; None for one typed action."""
    fields = set(schema["properties"]) - {METADATA}
    if not (fields >= CALL_TOOL or fields == TOOL_AND_ARGS or not fields):
        return None
    socket = socket_of()
    try:
        observation = socket.open(None).get("observation")
    except (OpenEnvFailed, InvalidAction) as error:
        raise parts.wrong(
            f"cannot list the tools of {parts.name}: {error}", "an answer to list_tools", "check the server"
        ) from error
    finally:
        socket.close()
    found = observation.get("tools") if isinstance(observation, dict) else None
    tools = [item for item in found if isinstance(item, dict) and item.get("name")] if isinstance(found, list) else []
    if not tools:
        raise parts.wrong(f"finds no tools at {parts.name}", "at least one", "check the server")
    return tools


def _typed(
    parts: ClassParts,
    schema: Mapping[str, Any],
    tool: str,
    description: str,
    noop: Mapping[str, Any] | None,
    sample: Sample | Mapping[str, Sample] | None,
) -> Any:
    """The method of an environment of one action."""
    if isinstance(sample, Mapping):
        raise parts.wrong("has sample= by tool, and the environment has one action", "fn(rng) -> fields", "fix sample=")
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
    """A method for each tool. mcp: called by OpenEnv's CallToolAction."""
    if noop is not None or callable(sample):
        raise parts.wrong("has noop= or one sample=, and the environment has several tools",
                          "sample= as a mapping from tool to fn(rng)", "fix them")  # fmt: skip

    def send(environment: OpenEnvEnvironment, tool: str, arguments: dict[str, Json]) -> Step:
        call: dict[str, Json] = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return environment.send(call if mcp else {"tool": tool, "args": arguments})

    return tool_methods(parts, tools, send, sample or {})


# -- parts of an answer ----------------------------------------------------------------------------------------------


def _metadata(answer: Mapping[str, Json]) -> dict[str, Json]:
    """The metadata of an answer: 0.10 has it in both places, 0.3.0's own server in neither."""
    observation = answer.get("observation")
    for found in (answer.get(METADATA), observation.get(METADATA) if isinstance(observation, dict) else None):
        if isinstance(found, dict) and found:
            return dict(found)
    return {}


def _repeatable(members: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in members.items() if name not in NOT_REPEATABLE}


def _result(result: Json) -> Any:
    """What a tool returned: the data of an MCP result, its text, or what else it is."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        texts = [
            item["text"] for item in result["content"] if isinstance(item, dict) and isinstance(item.get("text"), str)
        ]
        structured = result.get("structured_content")
        data = result.get("data")
        result = texts[0] if len(texts) == 1 else data if data is not None else structured or "\n".join(texts)
    return result if isinstance(result, str | dict) else {"result": result}

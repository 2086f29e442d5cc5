"""A task app as the `environment_factory` of TRL's `GRPOTrainer`.

Written against TRL 1.16.0, where `environment_factory` is experimental. TRL creates an object for each rollout of a
batch, calls `reset(**row)`, offers the other public methods to the model as tools, and calls `get_reward()` at the end.
If the reward is None, the rollout does not count in the group's baseline and has the advantage 0. TRL shows an
exception's message to the model and trains on the rest of the rollout, so methods do not raise after an episode has
failed. This module does not import TRL or torch.
"""

from __future__ import annotations

import inspect
import json
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import BadArgument, ConfigError, RolloutFailed, SessionError, TaskAppError
from taskapp_kit.interop.blocking_session import BlockingSession
from taskapp_kit.interop.schema_tools import resolved
from taskapp_kit.records.content import Json, text_of

log = logging.getLogger("taskapp_kit.trl")

KEY_VARIABLE = "ENVIRONMENT_API_KEY"
PROTOCOL = "trl"
OVER = "The episode is over."
FAILED = "The environment is not available."
"""The only text that the model sees after a failure. The log contains the reason."""
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None}
SHOWN_BY_TYPE = ("title", "default", "type", "enum", "const", "items", "anyOf", "oneOf", "$ref")
RESERVED = ("reset", "get_reward")


def environment_factory(
    app: TaskApp | str | Path, environment: str | None = None, *, key_variable: str = KEY_VARIABLE
) -> Callable[[], TrlEnvironment]:
    """Return an `environment_factory` for TRL's trainer. Each environment that it creates has its own session.

        GRPOTrainer(model, environment_factory=environment_factory("adder.py"), train_dataset=rows, ...)

    Rows must have `seed`, and may have `split`, `config` (a JSON string or a dict) and `prompt`, as in the rows that
    `taskapp export tasks` writes. A prompt that already contains the first observation is unchanged.

    Args:
        app: An app, a path, the name of a bundled app, or the URL of a served app.
        environment: The name of an environment. Defaults to the app's first.
        key_variable: The environment variable that contains the API key for a URL.

    Returns:
        A function that creates environments.

    Raises:
        ConfigError: An action has the name of a method that TRL calls, or a name that begins with an underscore.
        DiscoveryError, DeclarationError, RequestError, Unavailable, TaskAppError: The app or environment cannot be
        used.
    """
    first = BlockingSession(app, environment, key_variable, PROTOCOL)
    described: Any = first.described
    tools: Sequence[Mapping[str, Any]] = described["action_space"]["tools"]
    for tool in tools:
        if tool["name"] in RESERVED or tool["name"].startswith("_"):
            first.close()
            raise ConfigError(
                f"The action {tool['name']!r} cannot be a tool in TRL. TRL calls a method with this name, or the name "
                "begins with an underscore.",
                hint='Rename the tool: @action(name="…").',
            )
    members = {tool["name"]: _method(tool) for tool in tools}
    name = str(described["environment"])
    made: type[TrlEnvironment] = type(name, (TrlEnvironment,), {"__doc__": f"The environment {name!r}.", **members})
    unused = [first]

    def make() -> TrlEnvironment:
        session = unused.pop() if unused else BlockingSession(app, environment, key_variable, PROTOCOL)
        return made(session)

    return make


class TrlEnvironment:
    """An environment that plays one rollout at a time.

    `environment_factory` creates a subclass whose methods are the actions.
    """

    def __init__(self, session: BlockingSession) -> None:
        self._session = session
        self._finalizer = weakref.finalize(self, session.close)  # TRL does not close its environments
        self._episode: dict[str, Any] | None = None
        self._state: Literal["none", "playing", "over", "failed"] = "none"

    def reset(self, **row: Any) -> str | None:
        """Begin the row's episode, and return the part of the first observation that the prompt does not contain yet.

        Raises BadArgument or RequestError for an invalid row. If the episode fails, this method does not raise, and the
        reward is None.
        """
        if "seed" not in row:
            raise BadArgument(
                "A row has no column `seed`, which names the episode.", hint="Use rows from `taskapp export tasks`."
            )
        config = row.get("config") or {}
        body = {
            "seed": int(row["seed"]),
            "split": row.get("split"),
            "config": json.loads(config) if isinstance(config, str) else dict(config),
        }
        self._state, self._episode = "playing", None
        started = self._tried(lambda: self._session.reset(body))
        if started is None:
            return FAILED
        shown = [_text(message["content"]) for message in started["messages"]]
        prompt = row.get("prompt")
        last = _text(prompt[-1]["content"]) if isinstance(prompt, list) and prompt else ""
        if shown and last.endswith(shown[-1]):
            return None
        return "\n\n".join(shown[-1:] if last else shown)

    def get_reward(self) -> float | None:
        """Return the episode's reward, or None if the episode failed or its reward is undefined.

        An unfinished episode is truncated and scored.
        """
        if self._state == "playing":
            self._ended(self._tried(self._session.finish))
        if self._state != "over" or self._episode is None or self._episode["reward"] is None:
            return None
        return float(self._episode["reward"])

    def _act(self, tool: str, arguments: dict[str, Json]) -> str:
        """Run an action, and return the observation, or the reason if the action was rejected."""
        if self._state != "playing":
            return OVER if self._state == "over" else FAILED
        step = self._tried(lambda: self._session.step({"tool": tool, "args": arguments}))
        if step is None:
            return FAILED
        self._ended(step)
        return (
            f"{_observed(step['observation'])}\n\n{OVER}".lstrip() if step["done"] else _observed(step["observation"])
        )

    def _ended(self, step: dict[str, Any] | None) -> None:
        if step is not None and step["episode"] is not None:
            self._state, self._episode = "over", step["episode"]

    def _tried(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the result of `call`, or None if it raises because the episode failed."""
        try:
            return call()
        except (RolloutFailed, SessionError, TaskAppError) as error:
            log.warning("a rollout has no reward (%s): %s", getattr(error, "boundary", None) or "session", error)
            self._state = "failed"
            return None


def _method(tool: Mapping[str, Any]) -> Callable[..., str]:
    """Return a method for an action. transformers creates the tool's schema from its annotations and docstring."""
    name, schema = str(tool["name"]), tool["parameters"]
    properties = {field: resolved(given, schema) for field, given in schema.get("properties", {}).items()}
    required = schema.get("required", ())

    def method(self: TrlEnvironment, **arguments: Any) -> str:
        return self._act(name, arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for field, given in properties.items():
        default = inspect.Parameter.empty if field in required else given.get("default")
        hint = _hint(given)
        parameters.append(inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    lines = [f"    {field}: {_about(field, given)}" for field, given in properties.items()]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([str(tool["description"]), *(["", "Args:", *lines] if lines else [])])
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = {**{field: _hint(given) for field, given in properties.items()}, "return": str}
    return method


def _hint(schema: Mapping[str, Any]) -> Any:
    """Return an argument's type in a form that transformers can read. The app checks the values."""
    if "const" in schema or "enum" in schema:
        return Literal[tuple(schema.get("enum", [schema.get("const")]))]
    if forms := schema.get("anyOf", schema.get("oneOf")):
        return Union[tuple(_hint(form) for form in forms)]  # noqa: UP007
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return TYPES.get(str(kind), Any)


def _about(field: str, schema: Mapping[str, Any]) -> str:
    """Return the line for an argument in a tool's docstring: the argument's description or its constraints."""
    if "description" in schema:
        return " ".join(str(schema["description"]).split())
    rest = {key: value for key, value in schema.items() if key not in SHOWN_BY_TYPE}
    return f"{field} {json.dumps(rest)}" if rest else field


def _observed(observation: Mapping[str, Any]) -> str:
    """Return the text of an observation, without images."""
    if observation.keys() == {"text"}:
        return str(observation["text"])
    if observation.keys() == {"content"}:
        return _text(observation["content"])
    return text_of(dict(observation))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")

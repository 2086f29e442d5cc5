"""A task app as the `environment_factory` of TRL's `GRPOTrainer`.

Written against TRL 1.16.0 (experimental there), which makes one object for each rollout of a batch, calls `reset(**row)`,
offers the other public methods to the model as tools, and asks `get_reward()` in the end; None is masked: the group's
baseline leaves it out, and its advantage is 0. TRL shows the text of an exception to the model and trains on the rest, so
nothing here raises once an episode has failed. Neither TRL nor torch is imported.
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
"""All that the model reads of a failure; the log has the reason."""
TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None}
SHOWN_BY_TYPE = ("title", "default", "type", "enum", "const", "items", "anyOf", "oneOf", "$ref")
RESERVED = ("reset", "get_reward")


def environment_factory(
    app: TaskApp | str | Path, environment: str | None = None, *, key_variable: str = KEY_VARIABLE
) -> Callable[[], TrlEnvironment]:
    """Returns what TRL's trainer takes as `environment_factory`; each call makes an environment with a session of its own.

        GRPOTrainer(model, environment_factory=environment_factory("adder.py"), train_dataset=rows, ...)

    app: where the app is, the app, or the URL of one that is served, whose key is in the variable `key_variable`.
    environment: the app's first when absent. Rows have `seed`, and may have `split`, `config` (JSON text or a dict) and
    `prompt`, as `taskapp export tasks` writes them; a prompt that shows the first observation already is left as it is.

    Raises DiscoveryError, DeclarationError, RequestError, Unavailable, TaskAppError, and ConfigError for an action that
    has the name of one of TRL's own methods.
    """
    first = BlockingSession(app, environment, key_variable, PROTOCOL)
    described: Any = first.described
    tools: Sequence[Mapping[str, Any]] = described["action_space"]["tools"]
    for tool in tools:
        if tool["name"] in RESERVED or tool["name"].startswith("_"):
            first.close()
            raise ConfigError(
                f"The action {tool['name']!r} cannot be a tool in TRL, which has a method of that name.",
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
    """One rollout at a time; `environment_factory` makes a class of it that has the actions as methods."""

    def __init__(self, session: BlockingSession) -> None:
        self._session = session
        self._finalizer = weakref.finalize(self, session.close)  # TRL does not close its environments
        self._episode: dict[str, Any] | None = None
        self._state: Literal["none", "playing", "over", "failed"] = "none"

    def reset(self, **row: Any) -> str | None:
        """Begins the episode that the row names; returns what the prompt does not show yet. Raises BadArgument, RequestError.

        A failure is none of them: the rollout has no reward then.
        """
        if "seed" not in row:
            raise BadArgument(
                "A row has no column seed, which names the episode.", hint="Train on rows of `taskapp export tasks`."
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
        given = _text(prompt[-1]["content"]) if isinstance(prompt, list) and prompt else ""
        if shown and given.endswith(shown[-1]):
            return None
        return "\n\n".join(shown[-1:] if given else shown)

    def get_reward(self) -> float | None:
        """Returns the episode's reward; None when it failed or the reward is undefined.

        An episode that the model left is ended here: truncated, and scored.
        """
        if self._state == "playing":
            self._ended(self._tried(self._session.finish))
        if self._state != "over" or self._episode is None or self._episode["reward"] is None:
            return None
        return float(self._episode["reward"])

    def _act(self, tool: str, arguments: dict[str, Json]) -> str:
        """Does an action, and returns what is observed then, or why it was refused."""
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
        """Returns the answer, None where the episode failed."""
        try:
            return call()
        except (RolloutFailed, SessionError, TaskAppError) as error:
            log.warning("a rollout has no reward (%s): %s", getattr(error, "boundary", None) or "session", error)
            self._state = "failed"
            return None


def _method(tool: Mapping[str, Any]) -> Callable[..., str]:
    """Returns the method of an action, with the hints and the docstring of which transformers makes the tool's schema."""
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
    """Returns a type that transformers reads; values are checked by the app, not here."""
    if "const" in schema or "enum" in schema:
        return Literal[tuple(schema.get("enum", [schema.get("const")]))]
    if forms := schema.get("anyOf", schema.get("oneOf")):
        return Union[tuple(_hint(form) for form in forms)]  # noqa: UP007
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return TYPES.get(str(kind), Any)


def _about(field: str, schema: Mapping[str, Any]) -> str:
    """Returns one line about an argument, which transformers asks for: its description, or what the type does not say."""
    if "description" in schema:
        return " ".join(str(schema["description"]).split())
    rest = {key: value for key, value in schema.items() if key not in SHOWN_BY_TYPE}
    return f"{field} {json.dumps(rest)}" if rest else field


def _observed(observation: Mapping[str, Any]) -> str:
    """Returns the text of an observation; pictures are left out."""
    if observation.keys() == {"text"}:
        return str(observation["text"])
    if observation.keys() == {"content"}:
        return _text(observation["content"])
    return text_of(dict(observation))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")

"""Checks of an environment's actions, each of which becomes a tool with a parser for its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from taskapp_kit.declare.declarations import Problems, check_keywords
from taskapp_kit.declare.marks import ActionMark, action, actions_of
from taskapp_kit.declare.signature import Arguments, SignatureProblem, is_object, parameters_of
from taskapp_kit.declare.source_location import docstring, line_of
from taskapp_kit.declare.specs import ActionSpec
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Tool

KIT_METHODS = ("reset", "close", "final_state", "actions", "setup_worker")
"""Methods that the kit itself calls. They cannot be actions."""


# Each pair is (what the kit accepts, what to change), the last two fields of a Problem.
SOME_ACTION = ("methods marked @action, or step(self, action: T)", "mark at least one method with @action")
ONE_TEXT_ACTION = ("at most one action with text=True", "remove text=True from all actions but one")
DESCRIPTION = ("a docstring, which becomes the tool's description", "add a docstring to the method")
TOOL_NAME = ("at most 64 letters, digits, _ and -", "set @action(name=...)")
TEXT_PARAMETER = ("exactly one parameter, a str", "write it like def answer(self, text: str)")
FITTING_NOOP = ("arguments that the action accepts", "change noop=")
SAMPLE_FUNCTION = ("fn(rng) -> dict", "pass a function as sample=")
KEYS_DICT = ("a dict that maps keyboard keys to arguments", 'write keys={"a": {...}}')
FITTING_KEYS = ("the name of a keyboard key, and arguments that the action accepts", "change keys=")


def check_actions(cls: type, place: str, problems: Problems) -> dict[str, ActionSpec]:
    """Return the actions of a class by tool name. If no method is marked with `@action`, `step` is the only action."""
    specs: dict[str, ActionSpec] = {}
    marks = actions_of(cls)
    seen: dict[str, str] = {}
    for name, mark, method in marks:
        where = line_of(getattr(cls, method), place)
        if method in KIT_METHODS:
            found = f"action {name!r} is the method {method!r}, whose name is reserved for a method that the kit calls"
            fix = f"rename the method, and mark it @action(name={name!r})"
            problems.add(where, found, "a method with a different name", fix)
        elif name in seen:
            problems.add_second(where, f"action {name!r}", seen[name])
        else:
            seen[name] = where
            spec = _action(name, method, cls, mark, place, problems)
            if spec is not None:
                specs[name] = spec
    if not marks and callable(getattr(cls, "step", None)):
        spec = _action("step", "step", cls, ActionMark(), place, problems)
        if spec is not None:
            specs["step"] = spec
    elif not marks:
        problems.add(place, f"{cls.__name__} has no action", *SOME_ACTION)
    takes_text = [name for name, spec in specs.items() if spec.tool.text]
    if len(takes_text) > 1:
        names = f"{len(takes_text)} actions with text=True ({', '.join(takes_text)})"
        problems.add(place, f"{cls.__name__} has {names}", *ONE_TEXT_ACTION)
    return specs


def _action(name: str, method: str, cls: type, mark: ActionMark, place: str, problems: Problems) -> ActionSpec | None:
    function = getattr(cls, method)
    where = line_of(function, place)
    check_keywords(action, "@action", mark.unknown, where, problems)
    description = docstring(inspect.getdoc(function))
    if not description:
        problems.add(where, f"action {name!r} has no docstring", *DESCRIPTION)
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
        problems.add(where, f"action {name!r} has a name that model APIs reject", *TOOL_NAME)
    try:
        bound = isinstance(inspect.getattr_static(cls, method), (staticmethod, classmethod))
        parameters = parameters_of(function, skip_first=not bound)
        whole = method == "step" and len(parameters) == 1 and is_object(parameters[0].annotation)
        arguments = Arguments(name, tuple(parameters), whole)
        schema = arguments.schema
    except SignatureProblem as error:
        fix = "annotate each parameter (int, str, Literal[...], a pydantic model, ...)"
        problems.add(where, str(error), "annotated parameters that JSON can represent", fix)
        return None
    if mark.text and (len(parameters) != 1 or parameters[0].annotation is not str):
        problems.add(where, f"action {name!r} has text=True", *TEXT_PARAMETER)
    if mark.noop is not None:
        try:
            arguments.read(dict(mark.noop))
        except (ValueError, TypeError) as error:
            problems.add(where, f"noop={mark.noop!r} of action {name!r} is invalid: {error}", *FITTING_NOOP)
    keys = _keys(mark.keys, arguments, name, where, problems)
    sample: object = mark.sample
    if sample is not None and not callable(sample):
        problems.add(where, f"sample={sample!r} of action {name!r} is not callable", *SAMPLE_FUNCTION)
    tool = Tool(name, description, schema, text=mark.text, noop=mark.noop, sample=mark.sample)
    return ActionSpec(tool, method, arguments, where, keys)


def _keys(keys: Any, arguments: Arguments, name: str, where: str, problems: Problems) -> dict[str, Mapping[str, Json]]:
    """Return the `keys=` of an action, and report each invalid entry."""
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        problems.add(where, f"keys={keys!r} of action {name!r} is not a dict", *KEYS_DICT)
        return {}
    for key, values in keys.items():
        try:
            if not isinstance(key, str) or not key:
                raise ValueError(f"{key!r} is not the name of a keyboard key")
            arguments.read(values)
        except (ValueError, TypeError) as error:
            found = f"keys={{{key!r}: {values!r}}} of action {name!r} is invalid: {error}"
            problems.add(where, found, *FITTING_KEYS)
    return dict(keys)

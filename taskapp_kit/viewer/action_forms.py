"""Buttons and forms for people, made from the JSON Schemas of an action's arguments and an environment's config.

A form's controls are named by position (`f0`, `f1`), because a parameter's name may be any string. Input is parsed like the
input of `taskapp play`, and then checked by the action.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from taskapp_kit.declare.specs import ActionSpec
from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import Schema, read_schema, typed_argument, typed_value

MOST_BUTTONS = 40
"""An argument with more choices than this is shown as a list instead of buttons."""
MOST_NUMBERS = 12
"""An integer with at most this many values is shown as a choice."""
DIRECTIONS = (
    ("ArrowLeft", ("left", "west")),
    ("ArrowRight", ("right", "east")),
    ("ArrowUp", ("up", "north")),
    ("ArrowDown", ("down", "south")),
)
KEY_WORDS = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", " ": "Space"}
Kind = Literal["choice", "number", "text", "words", "json"]


class BadFields(ValueError):
    """Raised if fields of a form cannot be read. `problems` maps the names of their controls to messages."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True, slots=True)
class Field:
    """One control of a form.

    Attributes:
        control: The control's name in the form.
        name: The parameter's name.
        kind: The kind of input. `words` is a sequence of choices. `json` is any other JSON value.
        description: The parameter's description.
        options: The options of a choice, as (JSON, label).
        low: The minimum of a number.
        high: The maximum of a number.
        step: The step of a number.
        default: The initial value.
        required: Whether the control must not be empty.
        long: Whether the control accepts several lines.
        hint: A short text on what to enter.
    """

    control: str
    name: str
    kind: Kind
    description: str = ""
    options: tuple[tuple[str, str], ...] = ()
    low: float | None = None
    high: float | None = None
    step: str = "any"
    default: str = ""
    required: bool = False
    long: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Button:
    """A button that sends an action with fixed arguments.

    Attributes:
        label: The button's text.
        args: The arguments, as JSON.
        keys: The keys that press the button, by their names in browsers.
    """

    label: str
    args: str
    keys: tuple[str, ...] = ()

    @property
    def key_words(self) -> list[str]:
        """Return the names of the keys for display."""
        return [KEY_WORDS.get(key, key) for key in self.keys]


@dataclass(frozen=True, slots=True)
class ActionForm:
    """The controls of one action.

    Attributes:
        index: The action's position among the environment's actions.
        text: Whether the action accepts plain text.
        fields: The form's controls. Empty if buttons are sufficient.
    """

    index: int
    name: str
    description: str
    text: bool
    buttons: tuple[Button, ...] = ()
    fields: tuple[Field, ...] = field(default=())


def action_forms(actions: Sequence[ActionSpec], available: Sequence[str]) -> list[ActionForm]:
    """Return the forms of the available actions, and assign keys to their buttons."""
    made = [_form(index, action) for index, action in enumerate(actions) if action.name in available]
    taken = {key for form in made for button in form.buttons for key in button.keys}
    free = [str(digit) for digit in range(1, 10) if str(digit) not in taken]
    done = []
    for form in made:
        buttons = []
        for button in form.buttons:
            if not button.keys and not actions[form.index].keys:
                key = _direction(button.label, taken) or (free.pop(0) if free else None)
                if key is not None:
                    taken.add(key)
                    button = Button(button.label, button.args, (key,))
            buttons.append(button)
        done.append(ActionForm(form.index, form.name, form.description, form.text, tuple(buttons), form.fields))
    return done


def fields_of(schema: Mapping[str, Any], *, values: Mapping[str, Json] | None = None) -> list[Field]:
    """Return a control for each field of an object. values: Initial values, which take precedence over the defaults."""
    if _is_union(schema):
        return [Field("f0", "arguments", "json", required=True, long=True, hint="a JSON object")]
    whole, shown_first = read_schema(schema), values or {}
    return [
        _field(f"f{index}", name, part, shown_first.get(name, part.keywords.get("default")), name in whole.required)
        for index, (name, part) in enumerate(whole.members.items())
    ]


def read_fields(schema: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Json]:
    """Return the object that the form describes. Empty optional fields are omitted.

    Raises BadFields if a required field is empty or JSON is invalid.
    """
    if _is_union(schema):
        try:
            read = json.loads(form.get("f0", ""))
        except ValueError as error:
            raise BadFields({"f0": f"is not valid JSON: {error}"}) from None
        if not isinstance(read, dict):
            raise BadFields({"f0": "must be a JSON object"})
        return read
    members = read_schema(schema).members
    arguments: dict[str, Json] = {}
    problems: dict[str, str] = {}
    for control in fields_of(schema):
        part = _without_null(members[control.name])[0]
        text = form.get(control.control, "").replace("\r\n", "\n")
        if control.kind == "text" and (text or control.required):
            arguments[control.name] = text
        elif not text.strip():
            if control.required:
                problems[control.control] = "must not be empty"
        elif control.kind == "json":
            try:
                arguments[control.name] = json.loads(text)
            except ValueError as error:
                problems[control.control] = f"is not valid JSON: {error}"
        elif control.kind == "words":
            arguments[control.name] = typed_argument(text.strip(), part)
        else:
            sent = [json.loads(option) for option, _ in control.options]
            arguments[control.name] = typed_value(
                text.strip(), replace(part, keywords={"enum": sent}) if sent else part
            )
    if problems:
        raise BadFields(problems)
    return arguments


# -- internals -------------------------------------------------------------------------------------------------------


def _is_union(schema: Mapping[str, Any]) -> bool:
    """Return whether the object is a union, which has no fields to show."""
    return not schema.get("properties") and any(word in schema for word in ("anyOf", "oneOf", "$ref"))


def _form(index: int, action: ActionSpec) -> ActionForm:
    schema = action.tool.parameters
    name, description = action.name, action.tool.description
    fields = fields_of(schema)
    if action.tool.text:
        words = Field("text", "words", "text", required=True, long=True)
        return ActionForm(index, name, description, True, fields=(words,))
    buttons: list[tuple[str, Json]] = []
    if not fields:
        buttons = [(name, {})]
    elif len(fields) == 1 and len(fields[0].options) <= MOST_BUTTONS:
        (only,) = fields
        several = only.kind == "words"
        values = [json.loads(option) for option, _ in only.options]
        buttons = [
            (words, {only.name: [value] if several else value})
            for value, (_, words) in zip(values, only.options, strict=True)
        ]
    made = [Button(label, _compact(args), _keys(action, args)) for label, args in buttons]
    known = {button.args for button in made}
    for key, args in action.keys.items():
        text = _compact(args)
        if text not in known:
            known.add(text)
            made.append(Button(_words(args), text, _keys(action, args) or (key,)))
    shown = () if buttons and not (fields and fields[0].kind == "words") else tuple(fields)
    return ActionForm(index, name, description, False, tuple(made), shown)


def _keys(action: ActionSpec, args: Json) -> tuple[str, ...]:
    return tuple(key for key, wanted in action.keys.items() if _compact(dict(wanted)) == _compact(args))


def _direction(label: str, taken: set[str]) -> str | None:
    """Return the arrow key for the one direction that a button's label names. Return None for other labels or a taken key."""
    words = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", label).lower()))
    arrows = [key for key, names in DIRECTIONS if words.intersection(names)]
    return arrows[0] if len(arrows) == 1 and arrows[0] not in taken else None


def _field(control: str, name: str, schema: Schema, default: Any, required: bool) -> Field:
    part, nullable = _without_null(schema)
    keywords, kind = part.keywords, part.kind
    description = str(schema.keywords.get("description") or keywords.get("description") or "")
    need = required and not nullable
    first = "" if default is None else json.dumps(default)
    if options := _options(part):
        return Field(control, name, "choice", description, options, default=first, required=need)
    if options := _options(part.items) if kind == "array" else ():
        first = " ".join(map(str, default)) if isinstance(default, list) else ""
        return Field(control, name, "words", description, options, default=first, required=need, hint=_how_many(part))
    if kind in ("integer", "number"):
        low = keywords.get("minimum", keywords.get("exclusiveMinimum"))
        high = keywords.get("maximum", keywords.get("exclusiveMaximum"))
        step = "1" if kind == "integer" else "any"
        return Field(control, name, "number", description, (), low, high, step, first, need, hint=_range(low, high))
    if kind == "string":
        first = default if isinstance(default, str) else ""
        return Field(control, name, "text", description, default=first, required=need, long=_is_long(part))
    first = "" if default is None else _words(default)
    hint = {"array": "a JSON array", "object": "a JSON object"}.get(str(kind), "JSON")
    return Field(control, name, "json", description, default=first, required=required, long=True, hint=hint)


def _without_null(schema: Schema) -> tuple[Schema, bool]:
    """Return the schema without null, and whether null is allowed. The schema of a union of several types is empty."""
    branches = [] if schema.choices else schema.branches
    rest = [branch for branch in branches if branch.kind != "null"]
    nullable = len(rest) < len(branches)
    if len(rest) == 1:
        inner, deeper = _without_null(rest[0])
        return inner, nullable or deeper
    if not branches:
        return schema, False
    choices = [choice for branch in rest for choice in branch.choices] if all(branch.choices for branch in rest) else []
    return replace(schema, keywords={"enum": choices} if choices else {}), nullable


def _options(part: Schema) -> tuple[tuple[str, str], ...]:
    values = part.values(MOST_NUMBERS)
    if part.kind == "boolean" and not values:
        values = [True, False]
    return tuple((json.dumps(value), value if isinstance(value, str) else json.dumps(value)) for value in values)


def _is_long(part: Schema) -> bool:
    longest = part.keywords.get("maxLength")
    return not isinstance(longest, int) or longest > 200


def _how_many(part: Schema) -> str:
    low, high = part.keywords.get("minItems"), part.keywords.get("maxItems")
    if low is not None and high is not None:
        return f"{low} to {high} values, separated by spaces"
    return f"up to {high} values, separated by spaces" if high is not None else "values, separated by spaces"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"from {low}" if low is not None else f"up to {high}" if high is not None else ""


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _words(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

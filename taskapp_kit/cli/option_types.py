"""Kinds of values that several commands take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.contract.identity import SEED_LIMIT

if TYPE_CHECKING:
    ValueKind = click.ParamType[Any]
else:
    ValueKind = click.ParamType  # no generic in every release of click that we allow


class Seed(ValueKind):
    """A whole number in [0, 2⁶³)."""

    name = "seed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Fails for anything else."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < SEED_LIMIT):
            self.fail(f"{text[:80]!r} is no seed; expected a whole number from 0 to {SEED_LIMIT - 1}.", param, ctx)
        return int(text)


class JsonObject(ValueKind):
    """A JSON object, e.g. `{"low": 3}`."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """The object. Fails for other JSON and for what is not JSON."""
        if isinstance(value, dict):
            return value
        read = _json(self, value, param, ctx, '{"low": 3}')
        if not isinstance(read, dict):
            self.fail('expected a JSON object such as {"low": 3}; mind the shell\'s quotes.', param, ctx)
        return read


class ActionValue(ValueKind):
    """An action: `{"tool": {args}}`, a list of them, or words (with or without JSON's quotes)."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The action. Fails for broken JSON."""
        if not isinstance(value, str):
            return value
        shown = '{"add": {"amount": 3}}'
        return _json(self, value, param, ctx, shown) if value.lstrip()[:1] in ("{", "[", '"') else value


def _json(kind: ValueKind, text: str, param: click.Parameter | None, ctx: click.Context | None, shown: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: kind.fail(f"{name} is no JSON number.", param, ctx))
    except ValueError as error:
        return kind.fail(f"not JSON ({error}); mind the shell's quotes, as in '{shown}'.", param, ctx)


SEED = Seed()
JSON_OBJECT = JsonObject()
ACTION = ActionValue()


JUDGES = click.option(
    "--judges",
    type=click.Choice(["ask", "skip"]),
    default="ask",
    help="skip asks no judge: their scores are null, and so is a reward that needs them.",
)
"""Of the commands that play an app in this process."""


WIDTH = click.option(
    "--width",
    type=click.IntRange(40, 10_000),
    metavar="N",
    help="Columns of what is printed.  [default: the terminal's; 120 or more in a pipe]",
)
FULL = click.option("--full", is_flag=True, help="Cut nothing, fold no equal steps, print every metric.")
"""Of the commands that print the steps of an episode."""


def is_url(reference: str) -> bool:
    """True when APP names a running server."""
    return reference.startswith(("http://", "https://"))

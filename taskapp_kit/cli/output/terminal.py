"""Functions for the output of all commands: a console without markup, tables, JSON, and errors as one paragraph."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import orjson

from taskapp_kit.declare.source_location import joined
from taskapp_kit.errors import ConfigError, DiscoveryError, KitError, RequestError, TaskAppError
from taskapp_kit.records.content import as_object
from taskapp_kit.records.formatting import cut
from taskapp_kit.system.private_files import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table


def example(*lines: str) -> str:
    """Return the text of the examples at the end of a command's `--help`."""
    return "\b\n" + ("Example" if len(lines) == 1 else "Examples") + ":\n" + "\n".join(f"  {line}" for line in lines)


PIPE_WIDTH = 120
"""The minimum width of output to a pipe or a file, in columns."""


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that does not interpret markup. width: The width in columns. Defaults to the terminal's width."""
    from rich.console import ConsoleDimensions

    from taskapp_kit.cli.output.clean_console import CleanConsole

    made = CleanConsole(clean, stderr=stderr, highlight=False, markup=False, emoji=False)
    if width is None and not made.is_terminal:
        width = max(PIPE_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, made.height)).columns)
    if width is not None:
        made.size = ConsoleDimensions(width, made.height)  # without a height, rich ignores the width on a dumb terminal
    return made


def table(*columns: str, right: tuple[str, ...] = (), pad: int = 2) -> Table:
    """Return a table without borders. Its first column never wraps. right: The columns to align to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, pad, 0, 0), show_header=any(columns), header_style="bold")
    for index, name in enumerate(columns):
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=index == 0)
    return made


def clean(text: str) -> str:
    """Replace all characters that could control a terminal, except newlines and tabs, with escapes such as `\\x1b`.

    Bytes of a path that are not valid UTF-8 are also replaced.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\x{ord(character):02x}" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    """Return whether a character is a control or format character other than newline and tab."""
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs")


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a cleaned line on stdout, or on stderr if `err` is true."""
    click.echo(clean(str(text)), err=err, nl=nl)


def flowing(text: str) -> str:
    """Return an author's docstring with each paragraph on one line. Lists and indented lines are unchanged."""
    return joined(clean(text))


def wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """Wrap text to lines of at most `width` characters. Blank lines are omitted. At least one line is returned.

    most: The maximum number of lines. A longer text is cut and ends with `…`.
    """
    lines: list[str] = []
    for line in clean(text).split("\n"):
        if most is not None:
            line = line[: width * (most + 1)]
        lines += textwrap.wrap(line.rstrip(), width)
        if most is not None and len(lines) > most:
            return [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]
    return lines or [""]


def one_line(text: str, width: int) -> str:
    """Return text on one line of at most `width` characters. Newlines are replaced with ` / `, and longer text is cut."""
    joined = " / ".join(part.strip() for part in clean(text[: 4 * width + 400]).split("\n") if part.strip())
    return cut(joined, max(1, width))


def number(value: Any) -> str:
    """Format a score or a reward with at most six significant digits.

    None is shown as `-`, and any other value as text of at most 60 characters.
    """
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float | int) else one_line(str(value), 60)


LONG_NUMBER = 10_000
"""Numbers of at least this size are written without decimals, such as `14,010`."""


def figure(value: float | None, *, sign: str = "") -> str:
    """Format a computed mean with four significant digits. None is `-`. sign: With `+`, positive numbers have a sign."""
    if value is None:
        return "-"
    return f"{value:{sign},.0f}" if abs(value) >= LONG_NUMBER else f"{value:{sign}.4g}"


def size_words(size_bytes: int) -> str:
    """Format a size in bytes as text such as `512 B`, `2.2 kB` or `1.4 GB`."""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def print_json(value: Any) -> None:
    """Print the value on stdout as indented JSON. Control characters are escaped."""
    text = orjson.dumps(value, default=as_object, option=orjson.OPT_INDENT_2).decode()
    if not text.isascii():
        text = "".join(json.dumps(character)[1:-1] if _is_control(character) else character for character in text)
    click.echo(text)


def write_file(path: Path, content: bytes) -> None:
    """Write a file with mode 600, and print where it is on stderr. Raises ConfigError if it cannot be written."""
    try:
        write_private(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", hint="Choose another file.") from None
    echo(f"Written to {clean(str(path))}", err=True)


@contextmanager
def shown_from(source: str) -> Iterator[None]:
    """Raise TaskAppError if the block fails because the data of a server or a store has unexpected types.

    source: The server or store whose data the block reads and prints, for the message.
    """
    from rich.errors import NotRenderableError

    try:
        yield
    except KitError:
        raise
    except (ArithmeticError, AttributeError, LookupError, NotRenderableError, TypeError, ValueError) as error:
        raise TaskAppError(
            f"The data from {source} cannot be shown, because a field is missing or has an unexpected type "
            f"({type(error).__name__}).",
            code="unreadable_answer",
            hint="To check whether a server follows the HTTP contract, run `taskapp doctor URL`.",
        ) from error


FLAGS = {
    "safety.max_time_s": "--max-time-seconds",
    "safety.max_refusals": "--max-refusals",
    "safety.max_rollout_tokens": "--max-rollout-tokens",
    "policy.config.action": "--action",
    "policy.config.inference_url": "--inference-url",
    "policy.config.output_mode": "--output-mode",
    "policy.config.policy": "--policy",
    "policy.config.model": "--model",
    "env.config": "--config",
    "env.seed": "--seed",
}
"""The flags that set fields of a rollout request, by the field's path."""


def complain(error: KitError, command: click.Command | None = None) -> None:
    """Print the error as one paragraph on stderr.

    command: If set, the names of request fields in the error are replaced with this command's flags.
    """
    echo(f"Error: {with_flags(str(error), command)}", err=True)


def with_flags(text: str, command: click.Command | None) -> str:
    """Replace the names of request fields with a command's flags: `safety.max_time_s` becomes `--max-time-seconds`."""
    flags = {flag for param in (command.params if command is not None else ()) for flag in param.opts}
    for field, flag in FLAGS.items():
        if flag in flags:
            text = re.sub(rf"(?<![\w.]){re.escape(field)}(?![\w.]*\w)", flag, text)
    return text


@contextmanager
def until_stopped(ctx: click.Context, problem: type[KitError]) -> Iterator[None]:
    """Run a server in the block until Ctrl-C, and then print `Stopped.`.

    problem: The class of errors that end the command with status 1 instead of 2, because the command line is valid. For
    example, the address may be in use.
    """
    try:
        yield
    except KeyboardInterrupt:
        pass
    except problem as error:
        complain(error)
        ctx.exit(1)
    echo("\nStopped.", err=True)


def exit_status(error: KitError) -> int:
    """Return 2 if the command line, a setting or the request is wrong, and otherwise 1 (see `main`)."""
    own = getattr(error, "exit_status", None)
    if isinstance(own, int):
        return own
    if isinstance(error, TaskAppError):
        return 2 if error.status == 422 else 1
    if isinstance(error, DiscoveryError):  # if there is a cause, the author's file exists but its import failed
        return 2 if error.__cause__ is None else 1
    return 2 if isinstance(error, ConfigError | RequestError) else 1

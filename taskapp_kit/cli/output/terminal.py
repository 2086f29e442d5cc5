"""The output of every command: a console that takes no text for markup, tables, JSON, and errors in one paragraph."""

from __future__ import annotations

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
from taskapp_kit.records.words import cut

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def example(*lines: str) -> str:
    """The end of a command's `--help`."""
    return "\b\n" + ("Example" if len(lines) == 1 else "Examples") + ":\n" + "\n".join(f"  {line}" for line in lines)


PIPE_WIDTH = 120
"""Columns, at least, of output to a pipe or a file, where no terminal limits a line."""


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that takes no text of an author or a server for markup. width: columns, in place of the terminal's."""
    from rich.console import ConsoleDimensions

    from taskapp_kit.cli.output.clean_console import CleanConsole

    made = CleanConsole(clean, stderr=stderr, highlight=False, markup=False, emoji=False)
    if width is None and not made.is_terminal:
        width = max(PIPE_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, made.height)).columns)
    if width is not None:
        made.size = ConsoleDimensions(width, made.height)  # with a height, or a dumb terminal stays 80 columns wide
    return made


def table(*columns: str, right: tuple[str, ...] = (), pad: int = 2) -> Table:
    """A table without lines: headings and cells, `right` aligned to the right; the first column is not broken."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, pad, 0, 0), show_header=any(columns), header_style="bold")
    for index, name in enumerate(columns):
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=index == 0)
    return made


def clean(text: str) -> str:
    """Text that cannot steer a terminal: control characters but line end and tab, and the bytes of a path that are not UTF-8,
    are shown as their code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\x{ord(letter):02x}" if _steers(letter) else letter for letter in text)


def _steers(letter: str) -> bool:
    """Whether a terminal may take a character for a command: control and format characters but line end and tab."""
    return letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cf", "Cs")


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line that cannot steer a terminal, on stdout, or on stderr with err."""
    click.echo(clean(str(text)), err=err, nl=nl)


def flowing(text: str) -> str:
    """An author's docstring for a terminal: each paragraph in one line, lists and indented lines as they are."""
    return joined(clean(text))


def wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """Text on lines of at most `width` characters, blank lines left out; at least one. most: so many of them, then `…`."""
    lines: list[str] = []
    for line in clean(text).split("\n"):
        if most is not None:
            line = line[: width * (most + 1)]
        lines += textwrap.wrap(line.rstrip(), width)
        if most is not None and len(lines) > most:
            return [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]
    return lines or [""]


def one_line(text: str, width: int) -> str:
    """Text on one line of at most `width` characters; line ends become ` / `, what is cut leaves an ellipsis."""
    joined = " / ".join(part.strip() for part in clean(text[: 4 * width + 400]).split("\n") if part.strip())
    return cut(joined, max(1, width))


def number(value: Any) -> str:
    """A score or a reward for a table: at most six significant digits, `-` for null; what is no number as short text."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float | int) else one_line(str(value), 60)


LONG_NUMBER = 10_000
"""Numbers from here on are written as `14,010`."""


def figure(value: float | None, *, sign: str = "") -> str:
    """A computed mean for a table: four significant digits, `-` for None. sign: `+` writes it for positive ones, too."""
    if value is None:
        return "-"
    return f"{value:{sign},.0f}" if abs(value) >= LONG_NUMBER else f"{value:{sign}.4g}"


def size_words(size_bytes: int) -> str:
    """`512 B`, `2.2 kB`, `1.4 GB`."""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return (
        f"{size_bytes} B" if units[0] == "B" else f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"
    )


def print_json(value: Any) -> None:
    """The value on stdout as indented JSON, and nothing else. What could steer a terminal is escaped, as JSON allows."""
    text = orjson.dumps(value, default=as_object, option=orjson.OPT_INDENT_2).decode()
    if not text.isascii():
        text = "".join(_escaped(letter) if _steers(letter) else letter for letter in text)
    click.echo(text)


def _escaped(letter: str) -> str:
    """A character as JSON's escapes of its UTF-16 code units."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


@contextmanager
def shown_from(place: str) -> Iterator[None]:
    """Report as the server's or the store's fault what cannot be shown because a member has another type than it should.

    place: whose answers or rows the block reads and prints. Raises TaskAppError in place of the errors of wrong types.
    """
    from rich.errors import NotRenderableError

    try:
        yield
    except KitError:
        raise
    except (ArithmeticError, AttributeError, LookupError, NotRenderableError, TypeError, ValueError) as error:
        raise TaskAppError(
            f"What {place} gave cannot be shown: a member is missing or has another type than expected "
            f"({type(error).__name__}).",
            code="unreadable_answer",
            hint="`taskapp doctor URL` compares a server with the HTTP contract.",
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
"""Fields of a rollout's request, and the flags that commands have for them."""


def complain(error: KitError, command: click.Command | None = None) -> None:
    """Print the error as one paragraph on stderr. command: its flags replace the names of a request's fields."""
    echo(f"Error: {with_flags(str(error), command)}", err=True)


def with_flags(text: str, command: click.Command | None) -> str:
    """A sentence about a request as a command's user writes it: `--max-time-seconds` for `safety.max_time_s`."""
    flags = {flag for param in (command.params if command is not None else ()) for flag in param.opts}
    for field, flag in FLAGS.items():
        if flag in flags:
            text = re.sub(rf"(?<![\w.]){re.escape(field)}(?![\w.]*\w)", flag, text)
    return text


@contextmanager
def until_stopped(ctx: click.Context, problem: type[KitError]) -> Iterator[None]:
    """Serve inside until Ctrl-C, and say so. problem: an error that ends the command with status 1, not 2.

    The command line was right then: the address is taken, say, or the store cannot be used.
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
    """2 when the command line, a setting or the request is wrong, else 1 (see `main`)."""
    own = getattr(error, "exit_status", None)
    if isinstance(own, int):
        return own
    if isinstance(error, TaskAppError):
        return 2 if error.status == 422 else 1
    if isinstance(error, DiscoveryError):  # with a cause the author's file was found, and broke
        return 2 if error.__cause__ is None else 1
    return 2 if isinstance(error, ConfigError | RequestError) else 1

"""Places: file:line as an author types it, and as a server's callers may read it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.source_location import (
    calling_line,
    docstring,
    in_order,
    joined,
    line_of,
    shown_path,
    without_folder,
)

HERE = Path(__file__)


def asked() -> str:
    return calling_line(1)


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@marked  # the wrapped function begins here
def wrapped() -> None: ...


@dataclass
class Plain:
    size: int = 1


def line(text: str) -> int:
    return next(n for n, found in enumerate(HERE.read_text().splitlines(), 1) if found.startswith(text))


def test_a_path_is_shown_as_somebody_in_the_working_directory_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    assert shown_path(str(tmp_path / "in" / "games" / "adder.py")) == "games/adder.py"
    assert shown_path("games/adder.py") == "games/adder.py"
    assert shown_path(str(tmp_path / "adder.py")) == str(tmp_path / "adder.py"), "never ../adder.py"


def test_location_is_the_line_of_the_caller_or_function() -> None:
    here = shown_path(__file__)
    assert asked() == f"{here}:{line('    assert asked()')}"
    assert line_of(asked, "?") == f"{here}:{line('def asked')}"
    assert line_of(wrapped, "?") == f"{here}:{line('@marked')}", "not the wrapper's"


@pytest.mark.parametrize(
    "target",
    [Plain, Plain.__init__, functools.partial(asked), len, 3],
    ids=["class", "init", "partial", "builtin", "3"],
)
def test_target_without_source_line_gets_the_line_of_its_declaration(target: Any) -> None:
    assert line_of(target, "app.py:7") == "app.py:7"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/srv/games/adder.py:10", "adder.py:10"),
        ("games/adder.py:10", "adder.py:10"),
        ("adder.py:10", "adder.py:10"),
        ("C:\\games\\adder.py:10", "adder.py:10"),
        ("/srv/my games/rubric.toml (criteria[1])", "rubric.toml (criteria[1])"),
    ],
)
def test_callers_see_file_and_line_without_directory(place: str, told: str) -> None:
    assert without_folder(place) == told


def test_lines_are_in_order_of_number() -> None:
    places = ["a.py:9", "a.py:10", "a.py:10 (row 2)", "a.py:10 (row 11)", "b.py:1", "b.py:1 (row 0)"]
    assert sorted(sorted(places, reverse=True), key=in_order) == places


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("One.", "One."),
        ("One\n    line `and`\n    `more`.\n\n    Another\n    one.\n    ", "One line `and` `more`.\n\nAnother one."),
        ("Rules:\n- a\n- b\n  more\n1. c", "Rules:\n- a\n- b\n  more\n1. c"),
        ("As:\n\n    code\n    more\nEnd.", "As:\n\n    code\n    more\nEnd."),
        ("| a |\n| b |\nEnd.", "| a |\n| b |\nEnd."),
        ("```\na\nb\n```\nOne\ntwo.", "```\na\nb\n```\nOne two."),
    ],
)
def test_paragraphs_become_lines_and_the_rest_stays(text: str | None, expected: str) -> None:
    assert docstring(text) == expected
    assert joined(expected) == expected

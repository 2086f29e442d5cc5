"""The finder of lines against the parser of Python's own library, and files that are not TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import JobConfigError
from taskapp_kit.jobs.client.config.toml_file import lines_of, read_toml

EVERYTHING = '''# c
top = 1
[a]
"q.x" = """multi
line \\""" still
""""
b.c = [1, # x ]
  {d = 2, e.f = [ "]", 'x' ]},
  [3,
   4]]
[[l]]
x = 1
[l.sub]
y = 2
[[l.m]]
z = 1
[[l.m]]
z = 2
[[l]]
x = 1979-05-27T07:32:00
[[l.m]]
z = \'\'\'a''b\'\'\'
[z]
e = []
f = {}
g = -inf
h = "#=[" # "
'''


def paths(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in items:
        yield (*above, part)
        yield from paths(inner, (*above, part))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_keys_and_elements_that_begin_a_line_have_that_line(end: str) -> None:
    text = EVERYTHING.replace("\n", end)
    lines = lines_of(text)
    assert set(lines) <= set(paths(tomllib.loads(text)))
    rows = text.replace("\r\n", "\n").split("\n")
    for path, line in lines.items():
        if isinstance(path[-1], str):
            assert path[-1] in rows[line - 1], (path, line)
    assert (lines["a", "b", "c"], lines["a", "b", "c", 2]) == (7, 9)
    assert lines["l", 1] == 19 and lines["l", 1, "m", 0, "z"] == 22 and lines["z", "h"] == 27


NAMES = st.text(alphabet='ab.#="[ \\', min_size=0, max_size=4)
TEXTS = st.text(alphabet="ab#=[]{},\"'\\\n", max_size=6)
VALUES = st.recursive(
    st.one_of(st.integers(-5, 5), st.booleans(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


def written(value: Any, draw: st.DataObject) -> str:
    """A value as TOML, in one of the ways in which it can be written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        ways = [json.dumps(value)]
        if "'" not in value and "\n" not in value:
            ways.append(f"'{value}'")
        if "'" not in value and not value.startswith("\n"):
            ways.append(f"'''{value}'''")
        inside = value.replace("\\", "\\\\").replace('"""', '""\\"')
        if not value.endswith('"') and not value.startswith("\n"):
            ways.append(f'"""{inside}"""')
        return draw.draw(st.sampled_from(ways))
    if isinstance(value, list):
        between = draw.draw(st.sampled_from([", ", ",\n  ", ', # ] "\n']))
        return "[" + between.join(written(item, draw) for item in value) + "]"
    return "{" + ", ".join(f"{json.dumps(name)} = {written(item, draw)}" for name, item in value.items()) + "}"


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=4), st.data())
def test_it_agrees_with_the_parser_on_any_document(document: dict[str, dict[str, Any]], data: st.DataObject) -> None:
    rows: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for section, keys in document.items():
        rows.append(f"[{json.dumps(section)}] # [x]")
        expected[section,] = len(rows)
        for name, value in keys.items():
            rows.append("")
            expected[section, name] = len(rows) + 1
            rows += f"{json.dumps(name)} = {written(value, data)} # = x".split("\n")
    text = "\n".join(rows)
    parsed = tomllib.loads(text)
    assert parsed == document
    lines = lines_of(text)
    assert set(lines) <= set(paths(parsed))
    assert {path: lines[path] for path in expected} == expected


@given(st.text(alphabet="a.=[]{},\"'\\#\n \r1é", max_size=60))
def test_every_text_that_is_toml_has_lines(text: str) -> None:
    try:
        parsed = tomllib.loads(text)
    except ValueError:
        return
    lines = lines_of(text)
    assert set(lines) <= set(paths(parsed)) and all((name,) in lines for name in parsed)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested"),
        ("x=" + "{a=" * 50_000, "nested"),
        ("a." * 300_000 + "b = 1\n", "line 1: found a key with 300001 dotted parts"),
        ("a = 1\n['a'." + '"b" .' * 200_000 + "b]\n", "line 2: found a key with 200002 dotted parts"),
        ("x = " + "9" * 5000, "64 bits"),
        ('x=["' + '\\",' * 50_000, "line 1"),
        ('x="""' + "\\" * 100_000, "line 1"),
        ("'" * 500_000, "line 1"),
    ],
    ids=["lists", "tables", "dots", "quoted dots", "digits", "quotes", "backslashes", "apostrophes"],
)
def test_a_hostile_file_is_told_at_once(text: str, problem: str, tmp_path: Path) -> None:
    """A square of these lengths would take an hour."""
    (tmp_path / "rl.toml").write_text(text)
    with pytest.raises(JobConfigError) as caught:
        read_toml(tmp_path / "rl.toml", "RL config")
    assert problem in caught.value.problems[0]


def test_many_tables_are_read_in_linear_time(tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text("".join(f"[[a{number}]]\n" for number in range(15_000)))
    _, lines = read_toml(tmp_path / "rl.toml", "RL config")
    assert lines["a14999", 0] == 15_000

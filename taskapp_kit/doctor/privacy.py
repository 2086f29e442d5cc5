"""Checks of rows: private fields are not shown, and rows do not contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from taskapp_kit.declare.tasks import TaskSource
from taskapp_kit.doctor.finding import CheckResult, check, passed, warning, wrong
from taskapp_kit.doctor.subject import Budget, EnvironmentUnderTest
from taskapp_kit.records.content import Json, json_hash, text_of
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.score.private import private_values

SHORT = 4
"""The minimum length of a value to search for. Shorter values and numbers may occur anywhere by chance."""
USUAL = 0.8
"""Short values, numbers and choices are reported if at least this share of the rows show their own value."""
CHANCE = 0.5
"""If this share of the rows show the value of another row, the values are there by chance."""
LEAST_ROWS = 5


def folded(text: str) -> str:
    """Return the text in lower case, without white space and punctuation."""
    return re.sub(r"[\W_]+", "", text.casefold())


@dataclass(frozen=True, slots=True)
class Leak:
    """A private value that was shown. last: Whether it was shown at the end of the episode, after the last action."""

    field: str
    split: str
    seed: int
    where: str
    exact: bool
    last: bool


class _Row:
    """The private values of one row, and the public strings in which equal text may occur."""

    def __init__(self, tasks: TaskSource, row: Any, tools: str) -> None:
        public = tasks.public(row)
        self.elements = {folded(text) for text in _elements(public)} | {folded(word) for word in tools.split('"')}
        self.public = folded(orjson.dumps(public).decode())
        self.long: list[tuple[str, str]] = []
        self.faint: list[tuple[str, str]] = []
        for field, value in private_values(tasks, row):
            text = value if isinstance(value, str) else str(value)
            bare = folded(text)
            if not bare or bare in self.elements:
                continue  # such as a choice that the row shows, or an argument that the schema lists
            faint = len(bare) < SHORT or not isinstance(value, str) or bare.isdigit() or bare in self.public
            (self.faint if faint else self.long).append((field, text))


def _elements(value: Json) -> Iterator[str]:
    """Yield the strings in a row's lists, because they are usually choices."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _elements(part)
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, str):
                yield part
            else:
                yield from _elements(part)


@check("private", "No observation, info or tool shows a private field of the row.", plays=True)
async def private(subject: EnvironmentUnderTest) -> CheckResult:
    """Search observations, infos and tool descriptions for the row's private values, both exactly and folded."""
    tasks = subject.environment.tasks
    if tasks is None:
        return passed("The environment has no rows.")
    leaks: list[Leak] = []
    read: list[tuple[_Row, str]] = []
    for split, seed, row in Budget(subject.options.check_seconds).within(_chosen(subject)):
        view = await subject.first_view(split, seed)
        tools = orjson.dumps([[tool.description, dict(tool.parameters)] for tool in view.tools], default=dict).decode()
        values = _Row(tasks, row, tools)
        read.append((values, text_of(view.observation)))
        shown = [_Shown("the first observation", text_of(view.observation)), _Shown("a tool's description", tools)]
        leaks += _leaks(values, split, seed, shown)
    for rollout in subject.scored():
        row = tasks.rows(rollout.split)[rollout.seed]
        leaks += _leaks(_Row(tasks, row, ""), rollout.split, rollout.seed, _later(rollout.trajectory))
    if leaks:
        leak = min(leaks, key=lambda item: item.last)
        how = "verbatim" if leak.exact else "apart from case, spaces and punctuation"
        row = f"Row {leak.seed} of {leak.split}"
        found = f"{row}: {leak.where} shows the private field {leak.field!r} {how}."
        do = f"Do not show this value, or make {leak.field!r} public if policies may read it."
        return (warning if leak.last else wrong)(found, do, subject.line("reset"))
    for field, own, rows_with in _usual(read):
        found = f"{own} of {rows_with} first observations contain the value of the private field {field!r}."
        do = "Check whether this reveals the answer. If it does not, accept the finding with --allow private."
        return warning(found, do, subject.line("reset"))
    count = len(subject.scored())
    return passed(f"No private value is shown in {len(read)} first observations and {count} rollouts.")


def _usual(read: Sequence[tuple[_Row, str]]) -> Iterator[tuple[str, int, int]]:
    """Yield each field whose short value, number or choice appears in the first observation of most rows.

    The result is (field, number of rows whose observation contains it, number of rows with the field). A field is
    omitted if many observations also contain another row's value, because short values occur in any text.
    read: Pairs of a row and its first observation.
    """
    for field in sorted({field for values, _ in read for field, _ in values.faint}):
        rows = [
            ([value for name, value in values.faint if name == field], text)
            for values, text in read
            if any(name == field for name, _ in values.faint)
        ]
        own, others = (
            sum(any(_has_word(text, value) for value in rows[at - shift][0]) for at, (_, text) in enumerate(rows))
            for shift in (0, len(rows) // 2)
        )
        if len(rows) >= LEAST_ROWS and own >= USUAL * len(rows) and others < CHANCE * len(rows):
            yield field, own, len(rows)


def _chosen(subject: EnvironmentUnderTest) -> list[tuple[str, int, Any]]:
    """Return the first rows of each split."""
    rows: list[tuple[str, int, Any]] = []
    most = max(1, subject.options.first_views // len(subject.environment.split_names))
    for split in subject.environment.split_names:
        rows += [item for item in subject.rows() if item[0] == split][:most]
    return rows


@dataclass(frozen=True, slots=True)
class _Shown:
    """A string that was shown. said: What the policy had written until then, folded."""

    where: str
    text: str
    said: str = ""
    last: bool = False


def _later(trajectory: Trajectory) -> Iterator[_Shown]:
    """Yield the observation and the info of each step of an episode."""
    said = ""
    for step in trajectory.steps:
        said += folded(orjson.dumps(step.args).decode())
        last = step.terminated or step.truncated
        yield _Shown(f"the observation of step {step.index}", text_of(step.observation), said, last)
        yield _Shown(f"the info of step {step.index}", orjson.dumps(step.info).decode(), said, last)


def _leaks(row: _Row, split: str, seed: int, shown: Iterable[_Shown]) -> Iterator[Leak]:
    """Yield each private value that was shown, unless the policy wrote it first."""
    for item in shown:
        bare = folded(item.text)
        for field, value in row.long:
            if folded(value) in bare and folded(value) not in item.said:
                yield Leak(field, split, seed, item.where, value in item.text, item.last)


def _has_word(text: str, value: str) -> bool:
    """Return whether the value is a separate word in the text. Inside a longer word, it may occur by chance."""
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None


@check("rows", "No two rows have the same question and different answers, and no row is in two splits.")
async def rows(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the public parts of all rows, ignoring case, spaces and punctuation."""
    tasks = subject.environment.tasks
    if tasks is None:
        return passed("The environment has no rows.")
    seen: dict[str, tuple[str, int, str]] = {}
    twice = count = 0
    for split, seed, row in subject.rows():
        count += 1
        public = folded(orjson.dumps(tasks.public(row)).decode())
        private_hash = json_hash([[field, value] for field, value in private_values(tasks, row)])
        first = seen.setdefault(public, (split, seed, private_hash))
        if first[:2] == (split, seed):
            continue
        where = f"Row {seed} of {split} and row {first[1]} of {first[0]}"
        if first[0] != split:
            found = f"{where} are the same apart from case, spaces and punctuation, so the splits overlap."
            return wrong(found, f"Remove one of them from its split (declared at {tasks.place}).", subject.place)
        if first[2] != private_hash:
            found = f"{where} show the same question but have different private fields, so no answer is right for both."
            return wrong(found, "Remove one of these rows, or show how they differ.", subject.place)
        twice += 1
    if twice:
        return warning(
            f"{twice} of {count} rows are duplicates.", "Remove them, unless they should count more.", subject.place
        )
    return passed(f"{count} rows are all different.")

"""Checks of hidden values: private fields and final states are not shown, and rows do not contradict each other."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from taskapp_kit.declare.private_fields import private_fields
from taskapp_kit.declare.tasks import TaskSource
from taskapp_kit.doctor.finding import CheckResult, check, passed, warning, wrong
from taskapp_kit.doctor.subject import Budget, EnvironmentUnderTest
from taskapp_kit.records.content import Json, NotJson, json_hash, plain, text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.score.private import private_values

SHORT = 4
"""The minimum length of a value to search for. Shorter values and numbers may occur anywhere by chance."""
USUAL = 0.8
"""Short values, numbers and choices are reported if at least this share of the rows show their own value."""
CHANCE = 0.5
"""If this share of the rows show the value of another row, the values are there by chance."""
LEAST_ROWS = 5
HALF = 0.5
"""A value of the final state is reported if more than this share of the seeds have different values and show them."""


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


class _Secrets:
    """The private values of one episode, and the public strings in which equal text may occur."""

    def __init__(self, private: Iterable[tuple[str, Json]], public: Json, tools: str) -> None:
        self.elements = {folded(text) for text in _elements(public)} | {folded(word) for word in tools.split('"')}
        self.public = folded(orjson.dumps(public).decode())
        self.long: list[tuple[str, str]] = []
        self.faint: list[tuple[str, str]] = []
        for field, value in private:
            text = value if isinstance(value, str) else str(value)
            bare = folded(text)
            if not bare or bare in self.elements:
                continue  # such as a choice that the row shows, or an argument that the schema lists
            faint = len(bare) < SHORT or not isinstance(value, str) or bare.isdigit() or bare in self.public
            (self.faint if faint else self.long).append((field, text))


def _secrets(
    tasks: TaskSource | None, split: str, seed: int, declared: Sequence[tuple[str, Json]], *tools: str
) -> Iterator[_Secrets]:
    """Yield the values of the row's private fields, and of private attributes. tools: What lists the choices of each."""
    if tasks is not None:
        row = tasks.rows(split)[seed]
        yield _Secrets(private_values(tasks, row), tasks.public(row), tools[0])
    if declared:
        yield _Secrets(declared, tools[1], tools[1])


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


@check("private", "No observation, info or tool shows a private field or a hidden part of the final state.", plays=True)
async def private(subject: EnvironmentUnderTest) -> CheckResult:
    """Search observations, infos and tool descriptions for private values, both exactly and folded."""
    tasks, names = subject.environment.tasks, _private_attributes(subject.environment.cls)
    if tasks is None and not names:
        return _final_states(subject)
    leaks: list[Leak] = []
    read: list[tuple[_Secrets, str]] = []
    declared: dict[tuple[str, int], list[tuple[str, Json]]] = {}
    for split, seed in Budget(subject.options.check_seconds).within(_episodes(subject)):
        attributes = declared.setdefault((split, seed), [])
        view = await subject.first_view(split, seed, partial(_read_attributes, names, attributes))
        tools = orjson.dumps([[tool.description, dict(tool.parameters)] for tool in view.tools], default=dict).decode()
        first = text_of(view.observation)
        for values in _secrets(tasks, split, seed, attributes, tools, tools):
            read.append((values, first))
            shown = [_Shown("the first observation", first), _Shown("a tool's description", tools)]
            leaks += _leaks(values, split, seed, shown)
    for rollout in subject.scored():
        split, seed = rollout.split, rollout.seed
        for values in _secrets(tasks, split, seed, declared.get((split, seed), ()), "", tools):
            leaks += _leaks(values, split, seed, _later(rollout.trajectory))
    if leaks:
        leak = min(leaks, key=lambda item: item.last)
        how = "verbatim" if leak.exact else "apart from case, spaces and punctuation"
        row = f"Seed {leak.seed} of {leak.split}"
        found = f"{row}: {leak.where} shows the private field {leak.field!r} {how}."
        do = f"Do not show this value, or make {leak.field!r} public if policies may read it."
        return (warning if leak.last else wrong)(found, do, subject.line("reset"))
    for field, own, rows_with in _usual(read):
        found = f"{own} of {rows_with} first observations contain the value of the private field {field!r}."
        do = "Check whether this reveals the answer. If it does not, accept the finding with --allow private."
        return warning(found, do, subject.line("reset"))
    if tasks is None and (result := _final_states(subject)).status != "ok":
        return result
    count = len(subject.scored())
    return passed(f"No private value is shown in {len(read)} first observations and {count} rollouts.")


def _private_attributes(cls: type) -> frozenset[str]:
    """Return the names of the attributes that an environment class declares as `name: Private[T]`."""
    try:
        return private_fields(cls)
    except Exception:  # an annotation for type checkers only, such as a name that is not imported
        return frozenset()


def _read_attributes(names: Iterable[str], found: list[tuple[str, Json]], instance: Any) -> None:
    """Append the strings, numbers and lists in private attributes, each with the attribute's name."""
    for name in names:
        with contextlib.suppress(NotJson):
            found += [(name, value) for _, value in _parts(name, plain(getattr(instance, name, None), name))]


def _parts(path: str, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the strings and numbers in a value with their paths, and each list as JSON."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _parts(f"{path}.{name}", part)
    elif isinstance(value, list):
        yield path, orjson.dumps(value).decode()
    elif value is not None and not isinstance(value, bool):
        yield path, value


def _final_states(subject: EnvironmentUnderTest) -> CheckResult:
    """Search for values of the final state that depend on the seed and not on the actions.

    A value is reported if, for most seeds, a policy without knowledge of the task was shown it before the last step, and the
    first observation does not show it.
    """
    seeds: dict[tuple[str, int], list[Rollout]] = {}
    for rollout in [item for label in subject.idle_labels() for item in subject.scored(label)]:
        seeds.setdefault((rollout.split, rollout.seed), []).append(rollout)
    values: dict[str, list[tuple[str, bool]]] = {}  # by path, one pair of text and whether it is shown for each seed
    for rollouts in seeds.values():
        if len({rollout.digest for rollout in rollouts}) > 1:
            parts = [set(_parts("final_state", rollout.trajectory.final_state)) for rollout in rollouts]
            for path, value in set.intersection(*parts):
                if len(folded(str(value))) >= SHORT:
                    shown = any(_shows(rollout.trajectory, str(value)) for rollout in rollouts)
                    values.setdefault(path, []).append((str(value), shown))
    for path, found in values.items():
        count = sum(shown for _, shown in found)
        different = len({text for text, _ in found})
        if len(found) >= LEAST_ROWS and different > HALF * len(found) and count > HALF * len(found):
            said = f"In {count} of {len(found)} seeds, an observation or info before the last step shows {path}."
            do = "Check whether this reveals the answer. If it does not, accept the finding with --allow private."
            return warning(said, do, subject.line("final_state"))
    return passed(f"No observation or info shows one of {len(values)} hidden values of the final state.")


def _shows(trajectory: Trajectory, value: str) -> bool:
    """Return whether a step before the last shows a value that the first observation does not, and the policy did not write."""
    bare = folded(value)

    def within(text: str) -> bool:
        return _has_word(text, value) if bare.isdigit() else bare in folded(text)

    later = list(_later(trajectory))[:-2]  # without the observation and the info of the last step
    return not within(text_of(trajectory.initial)) and any(
        within(item.text) and bare not in item.said for item in later
    )


def _usual(read: Sequence[tuple[_Secrets, str]]) -> Iterator[tuple[str, int, int]]:
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


def _episodes(subject: EnvironmentUnderTest) -> list[tuple[str, int]]:
    """Return the first seeds of each split."""
    names = subject.environment.split_names
    return [item for split in names for item in subject.seeds(max(1, subject.options.first_views // len(names)), split)]


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
        yield _Shown(f"the observation of step {step.index + 1}", text_of(step.observation), said, last)
        yield _Shown(f"the info of step {step.index + 1}", orjson.dumps(step.info).decode(), said, last)


def _leaks(row: _Secrets, split: str, seed: int, shown: Iterable[_Shown]) -> Iterator[Leak]:
    """Yield each private value that was shown, unless the policy wrote it first."""
    for item in shown:
        bare = folded(item.text)
        for field, value in row.long:
            if folded(value) in bare and folded(value) not in item.said:
                yield Leak(field, split, seed, item.where, value in item.text, item.last)


def _has_word(text: str, value: str) -> bool:
    """Return whether the value is a separate word in the text. Inside a longer word, it may occur by chance."""
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None


@check("rows", "No row is in two splits, and in single-turn environments, no question has two answers.")
async def rows(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the public parts of all rows, ignoring case, spaces and punctuation."""
    tasks = subject.environment.tasks
    if tasks is None:
        return passed("The environment has no rows.")
    seen: dict[str, tuple[str, int, str]] = {}
    publics: set[str] = set()
    twice = count = 0
    for split, seed, row in subject.rows():
        count += 1
        public = folded(orjson.dumps(tasks.public(row)).decode())
        private_hash = json_hash([[field, value] for field, value in private_values(tasks, row)])
        publics.add(public)
        # an episode with several turns may reveal what makes two rows different
        key = public if subject.environment.one_answer else public + private_hash
        first = seen.setdefault(key, (split, seed, private_hash))
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
    hidden = len(seen) - len(publics)
    alike = f" {hidden} of them show the same as another row, but have other private fields." if hidden else ""
    return passed(f"{count} rows are all different.{alike}")

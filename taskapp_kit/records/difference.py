"""The first difference between two episodes, in text, actions and observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.content import Content, Json, without_images
from taskapp_kit.records.events import content_to_json
from taskapp_kit.records.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two episodes. where: `step 3` (counted from 1), `the first observation` or `the end`."""

    where: str
    what: str
    was: Json
    now: Json


def first_difference(was: Trajectory, now: Trajectory, *, pictures: bool = False) -> Difference | None:
    """Return the first difference that would change the trajectory's digest, or None if there is no such difference.

    If `pictures` is true, also compare what only the observation digest covers, such as images.
    """
    found = located_difference(was, now, pictures=pictures)
    return None if found is None else found[1]


def located_difference(was: Trajectory, now: Trajectory, *, pictures: bool = False) -> tuple[int, Difference] | None:
    """Return the first difference, preceded by the number of equal turns before it. See `first_difference`."""
    for turn, where, what, before, after in _compared(was, now, pictures):
        if before != after:
            return turn, Difference(where, what, before, after)
    return None


def _compared(was: Trajectory, now: Trajectory, pictures: bool) -> Iterator[tuple[int, str, str, Any, Any]]:
    """Yield everything to compare, in order, as (number of earlier turns, where, what, before, after)."""

    def shown(observation: Content) -> Json:
        content = content_to_json(observation if pictures else without_images(observation))
        # ignore `image`, the hash of the PNG bytes, because they depend on the machine's zlib
        if type(content) is list:
            return [
                {name: part for name, part in block.items() if name != "image"}
                if isinstance(block, dict) and "pixels" in block
                else block
                for block in content
            ]
        return content

    yield 0, "the episode", "environment version", was.version, now.version
    yield 0, "the first observation", "observation", shown(was.initial), shown(now.initial)
    for turn, (one, two) in enumerate(zip(was.turns, now.turns, strict=False)):
        where = _where(one)
        yield turn, where, "the policy's words", one.answer.output, two.answer.output
        for before, after in zip(one.steps, two.steps, strict=False):
            where = f"step {before.index + 1}"
            yield turn, where, "tool", before.tool, after.tool
            yield turn, where, "arguments", before.args, after.args
            yield turn, where, "observation", shown(before.observation), shown(after.observation)
            for name in ("reward", "terminated", "truncated", "info", "metrics"):
                yield turn, where, name, getattr(before, name), getattr(after, name)
        yield from _rest(turn, one.steps, two.steps, "action")
    last = min(len(was.turns), len(now.turns))
    yield from _rest(last, was.turns, now.turns, "answer")
    yield last, "the end", "status", was.status, now.status
    yield last, "the end", "stop reason", was.stop_reason, now.stop_reason
    if was.final_state != now.final_state:
        yield last, "the end", "end state (private)", "one", "another"


def _rest(turn: int, was: Sequence[Any], now: Sequence[Any], what: str) -> Iterator[tuple[int, str, str, Any, Any]]:
    """Yield the turns that only one side has: recorded turns that were not used, or turns that were not recorded."""
    shared = min(len(was), len(now))
    if len(was) > shared:
        yield turn, _where(was[shared]), f"recorded {what}", "played", "not used"
    elif len(now) > shared:
        yield turn, _where(now[shared]), what, "not played", "played"


def _where(part: Any) -> str:
    if isinstance(part, Turn):
        return f"step {part.steps[0].index + 1}" if part.steps else f"turn {part.index + 1}"
    return f"step {part.index + 1}"

"""What these tests share: what they need of the machine, and ways to play without a server."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.web.miniwob import pages
from environments.web.miniwob.environment import Miniwob
from environments.web.miniwob.rows import TASKS, MiniwobTask
from taskapp_kit import InvalidAction, Step
from taskapp_kit.declare.discovery import load_file
from taskapp_kit.errors import Unavailable

needs = load_file(Path(__file__).parents[1] / "needs.py")  # run as a program, this file finds no module of `tests`


def _missing_pages() -> str:
    try:
        pages.check()
    except Unavailable:
        return "needs the package miniwob: pip install 'taskapp-kit[miniwob]'"
    return ""


NO_PAGES = _missing_pages()
MISSING = NO_PAGES if needs.is_met() else needs.SENTENCE
needs_pages = pytest.mark.skipif(bool(NO_PAGES), reason=NO_PAGES)
BROWSER = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


def task(name: str, seed: int = 1) -> MiniwobTask:
    """A task with any seed."""
    return MiniwobTask(name=name, difficulty=TASKS[name][0], seed=seed, tags=[])


@contextmanager
def begun(name: str, seed: int = 1) -> Iterator[tuple[Miniwob, str]]:
    """An episode with its first observation."""
    environment = Miniwob()
    try:
        seen = environment.reset(task(name, seed))
        assert isinstance(seen, str)
        yield environment, seen
    finally:
        environment.close()


def goal_of(seen: str) -> str:
    """The goal that the first observation begins with."""
    first, _, _ = seen.partition("\n")
    assert first.startswith("Goal: ")
    return first.removeprefix("Goal: ")


def act(environment: Miniwob, action: dict[str, dict[str, object]]) -> Step:
    """One action, as a policy sends it. What another element covers is reached with the keyboard."""
    [(tool, arguments)] = action.items()
    try:
        step = getattr(environment, tool)(**arguments)
    except InvalidAction as refused:
        if tool != "click" or "covers" not in str(refused):
            raise
        step = environment.press(arguments["bid"], "Enter")
    assert isinstance(step, Step)
    return step


def starts(names: list[str]) -> dict[str, str]:
    """The hash of each task's first observation."""
    found = {}
    for name in names:
        with begun(name) as (_, seen):
            found[name] = hashlib.sha256(seen.encode()).hexdigest()
    return found


if __name__ == "__main__":  # of another process: prints what `starts` returns
    print(json.dumps(starts(sys.argv[1:])))

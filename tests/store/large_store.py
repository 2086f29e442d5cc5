"""A store of many rollouts, written without playing them: two apps, four environments, a run for every thousand."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskapp_kit.store.rows import COLUMNS, to_row
from taskapp_kit.store.sqlite import SqliteStore
from tests.evaluate.export.stored_chats import CREATED_AT, FAILURE, model_rollout

ENVIRONMENTS = ("adder", "maze", "shop", "tower")
RARE = 5_000
"""One rollout in so many failed in the environment, one was of the policy `rare`, one has a reward of 7."""


def rows(many: int) -> Iterator[tuple[Any, ...]]:
    """The values of each row, oldest first. Equal for equal `many`."""
    drawn = random.Random(0)
    amounts = [drawn.randint(1, 3) for _ in range(12)]
    scored = model_rollout("r", amounts, policy={"name": "model", "model": "m", "sample": 0}, key_label="k")
    failed = replace(scored, status="failed", reward=None, scorecard=None, failure=FAILURE, outcome_score=None)
    broken = replace(failed, failure={**FAILURE, "boundary": "environment"})
    rare = replace(scored, policy={"name": "rare"}, reward=7.0)
    kinds = {name: to_row(one).values for name, one in
             (("scored", scored), ("failed", failed), ("broken", broken), ("rare", rare))}  # fmt: skip
    place = {name: index for index, name in enumerate(COLUMNS)}
    for number in range(many):
        kind = "scored" if number % 50 else "failed"
        if number % RARE == 17:
            kind = "broken"
        elif number % RARE == 18:
            kind = "rare"
        values = list(kinds[kind])
        values[place["rollout_id"]] = f"{number:032x}"
        values[place["created_at"]] = CREATED_AT + number
        values[place["seed"]] = number % 1000
        values[place["environment"]] = ENVIRONMENTS[number % len(ENVIRONMENTS)]
        values[place["app"]] = "one" if number % 10 else "two"
        values[place["run_id"]] = f"run-{number // 1000}"
        values[place["group_id"]] = f"group-{number // 8}"
        values[place["status"]] = "truncated" if kind == "scored" and number % 7 == 0 else values[place["status"]]
        values[place["cost"]], values[place["seconds"]] = drawn.random(), drawn.random() * 60
        if kind == "scored":
            values[place["reward"]] = round(drawn.random(), 3)
        yield tuple(values)


def write_store(path: Path, many: int) -> Path:
    """The path of a store with so many rollouts."""
    SqliteStore(path)._finish()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA synchronous=OFF")
        marks = ", ".join("?" for _ in COLUMNS)
        file.executemany(f"INSERT INTO rollouts ({', '.join(COLUMNS)}) VALUES ({marks})", rows(many))
        file.commit()
    return path

"""`admin/count`: count rows of a list, add up their values, or find the row with the largest value."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from . import walk
from .conditions import Drawn, draw
from .data import make_books
from .site import AdminSite
from .tables import TABLES, Cells, rows_of


@dataclass(frozen=True)
class Question:
    """A question about the rows that satisfy conditions. `column` is sorted by to find the largest."""

    table: str
    goal: str
    answer: Callable[[tuple[Cells, ...]], str]
    """Returns the answer, or "" if it is not unique."""
    column: tuple[str, str] | None = None


def _sum(key: str) -> Callable[[tuple[Cells, ...]], str]:
    return lambda rows: str(sum(int(row[key]) for row in rows)) if len(rows) > 1 else ""


def _largest(key: str, name: str) -> Callable[[tuple[Cells, ...]], str]:
    def answer(rows: tuple[Cells, ...]) -> str:
        largest = max(int(row[key]) for row in rows)
        holders = [str(row[name]) for row in rows if row[key] == largest]
        return holders[0] if len(holders) == 1 and len(rows) > 1 else ""

    return answer


def _how_many(rows: tuple[Cells, ...]) -> str:
    return str(len(rows))


NUMBER = "Answer with the number only, such as 12."
QUESTIONS = (
    Question("machines", f"How many machines are there {{}}? {NUMBER}", _how_many),
    Question("contracts", f"How many contracts are there {{}}? {NUMBER}", _how_many),
    Question("changes", f"How many changes are there in the list of changes {{}}? {NUMBER}", _how_many),
    Question("machines", f"What is the sum of the rates per day of all machines {{}}? {NUMBER}", _sum("rate")),
    Question("contracts", f"What is the sum of the deposits of all contracts {{}}? {NUMBER}", _sum("deposit")),
    Question(
        "machines",
        "Of the machines {}, which one has the highest rate per day? Answer with its name only.",
        _largest("rate", "name"),
        ("Rate per day", "rate"),
    ),
    Question(
        "contracts",
        "Of the contracts {}, which one has the highest deposit? Answer with its number only.",
        _largest("deposit", "id"),
        ("Deposit", "deposit"),
    ),
)
ON_THE_LIST: Mapping[str, tuple[str, ...]] = {
    "machines": ("depot", "state", "type", "dear", "cheap"),
    "contracts": ("state", "customer", "large", "small", "early"),
    "changes": ("who", "about", "late"),
}
"""Conditions on values that the lists show."""

CONDITIONS: dict[Level, int] = {"easy": 1, "medium": 2, "hard": 3}


def make(random_: random.Random, level: Level, feasible: bool) -> Problem:
    """Return what the filters let through still has several pages."""
    assert feasible
    question = random_.choice(QUESTIONS)
    count = min(CONDITIONS[level], len(ON_THE_LIST[question.table]) - 1)
    while True:
        books = make_books(random_, level)
        only = ON_THE_LIST[question.table]
        drawn = draw(random_, books, question.table, count, most=2 * books.rows, least=2, only=only)
        if drawn is None or drawn.let_through(rows_of(books, TABLES[question.table])) <= books.rows:
            continue
        if answer := question.answer(drawn.rows):
            break
    site = AdminSite(books)
    return Problem(
        goal=question.goal.format(drawn.words),
        site=site,
        expected=site.record(),
        gold=_gold(question, drawn, answer),
        answer=answer,
    )


def _gold(question: Question, drawn: Drawn, answer: str) -> Callable[[View], Action]:
    def gold(view: View) -> Action:
        moving = walk.to_list(view, question.table, drawn.conditions)
        if moving is None and question.column:
            title, key = question.column
            moving = walk.sorted_down(view, title, key)
        elif moving is None:
            moving = walk.next_page(view)
        return moving or say(answer)

    return gold


COUNT = Kind("admin/count", "find", make)

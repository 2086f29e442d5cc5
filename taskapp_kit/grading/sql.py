"""Grader of SQL queries: equal results on a database in memory."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from taskapp_kit.grading.graders import right, wrong
from taskapp_kit.records.scorecard import Grade

MOST_ROWS = 10_000
MOST_STEPS = 20_000_000
"""Limit on the instructions that SQLite executes for a query, 1 to 2 seconds. Unlike a time limit, it is the same everywhere."""
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000),  # bytes of a value
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
)
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# functions that reach outside, or whose results differ between two runs
_UNSAFE = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "random", "randomblob"}
_CODE_BLOCK = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL | re.IGNORECASE)


def sql_result(answer: str, expected: str, databases: str | Sequence[str], *, ordered: bool = False) -> Grade:
    """Grade whether a query returns the same rows as the expected query.

    The answer must be one `SELECT` (or `WITH … SELECT`) in SQLite's dialect. It runs on a new database in memory. There, it
    cannot write, attach a file, or call a function that reaches outside of the database. The names of columns are ignored,
    and their order counts. A query that reads no table is wrong if the expected query reads a table.

    Args:
        answer: The policy's query, which may be in a Markdown code block.
        expected: The right query.
        databases: The SQL statements that create and fill the database. Pass several databases with different rows, so
            that a query that hard-codes the result for one database is wrong on another.
        ordered: Whether the order of the rows counts.

    Returns:
        A grade of 1.0 or 0.0 with the reason.

    Raises:
        ValueError: A database cannot be created, or the expected query fails.
    """
    block = _CODE_BLOCK.fullmatch(answer.strip())
    query = (block[1] if block else answer).strip()
    if not query:
        return wrong("the answer is empty")
    for number, statements in enumerate([databases] if isinstance(databases, str) else databases, 1):
        try:
            known = _run(statements, expected)
        except (sqlite3.Error, sqlite3.Warning, _TooLarge) as error:
            raise ValueError(f"Database {number} cannot be created, or the expected query fails: {error}") from None
        try:
            result = _run(statements, query)
        except _TooLarge as error:
            return wrong(str(error))
        except (sqlite3.Error, sqlite3.Warning, UnicodeError):  # a lone surrogate cannot be encoded
            return wrong("the query is invalid, or does more than read")
        if known.tables and not result.tables:
            return wrong("the query reads no table")
        if (result.rows != known.rows) if ordered else (Counter(result.rows) != Counter(known.rows)):
            return wrong("the rows are different")
    return right("the rows are equal")


class _TooLarge(Exception):
    """A query exceeds a limit. The message states the limit."""


@dataclass(frozen=True, slots=True)
class _Result:
    rows: list[tuple[Any, ...]]
    tables: set[str]
    """The tables that the query reads."""


def _database(statements: str) -> sqlite3.Connection:
    """Return a new database in memory."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(statements)
    return database


def _run(statements: str, query: str) -> _Result:
    """Run a query on a new database that it can only read.

    Raises:
        sqlite3.Error: The query is invalid or is denied.
        _TooLarge: The query exceeds a limit.
    """
    tables: set[str] = set()
    calls = 0

    def authorize(
        operation: int, first: str | None, second: str | None, _database: str | None, _view: str | None
    ) -> int:
        if operation not in _READS or (operation == sqlite3.SQLITE_FUNCTION and second in _UNSAFE):
            return sqlite3.SQLITE_DENY
        if operation == sqlite3.SQLITE_READ and first:
            tables.add(first)
        return sqlite3.SQLITE_OK

    def count() -> bool:
        nonlocal calls
        calls += 1
        return calls > MOST_STEPS // 1000

    with closing(_database(statements)) as database:
        for limit, most in _LIMITS:
            database.setlimit(limit, most)
        database.set_authorizer(authorize)
        database.set_progress_handler(count, 1000)
        try:
            rows = database.execute(query).fetchmany(MOST_ROWS + 1)
        except sqlite3.OperationalError:
            if calls > MOST_STEPS // 1000:
                raise _TooLarge("the query runs too long") from None
            raise
    if len(rows) > MOST_ROWS:
        raise _TooLarge(f"the query returns more than {MOST_ROWS} rows")
    return _Result([tuple(map(_comparable, row)) for row in rows], tables)


def _comparable(value: Any) -> Any:
    """Round a float to 9 digits, because the last digits of a sum depend on the order of the rows."""
    return float(f"{value:.9g}") if isinstance(value, float) else value

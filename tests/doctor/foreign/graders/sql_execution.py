"""Text to SQL by execution: the sets of rows of both queries are equal.

Source: https://github.com/bird-bench/mini_dev/blob/main/README.md
"""

import sqlite3

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("sql-execution")
SCHEMA = "CREATE TABLE book (title TEXT, author TEXT, year INTEGER, pages INTEGER);"
BOOKS = """INSERT INTO book VALUES ('Ash', 'Kim', 1990, 210), ('Bay', 'Kim', 2004, 340), ('Cove', 'Lee', 2004, 150),
('Dune', 'Moss', 1965, 500), ('Elm', 'Lee', 2011, 95), ('Fog', 'Nash', 1990, 210);"""


class Row(BaseModel):
    """One question, and a query that answers it."""

    question: str
    query: Private[str]


QUESTIONS = {
    "the titles of the books by Kim": "SELECT title FROM book WHERE author = 'Kim'",
    "how many books have more than 200 pages": "SELECT count(*) FROM book WHERE pages > 200",
    "the oldest title": "SELECT title FROM book ORDER BY year LIMIT 1", "the sum of all pages": "SELECT sum(pages) FROM book",
    "the authors of books of 2004": "SELECT author FROM book WHERE year = 2004",
    "the number of books of each author": "SELECT author, count(*) FROM book GROUP BY author",
}  # fmt: skip
app.tasks("questions", row=Row, prompt=SCHEMA + " Write a SQLite query that returns {question}. SQL only.",
          train=[Row(question=question, query=query) for question, query in QUESTIONS.items()])  # fmt: skip


@app.rubric
def same_rows(answer_text: str, task: Row) -> float:
    """The queries return the same set of rows."""
    with sqlite3.connect(":memory:") as database:
        database.executescript(SCHEMA + BOOKS)
        try:
            answer = set(database.execute(answer_text).fetchall())
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):
            return 0.0
        return float(answer == set(database.execute(task.query).fetchall()))


app.policy("gold")(lambda task: task.query)

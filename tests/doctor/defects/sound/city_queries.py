"""Write an SQL query about cities."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, sql_result

app = TaskApp("city-queries", description="Queries about cities.")
CITIES = """CREATE TABLE city (name TEXT, country TEXT, people INTEGER);
INSERT INTO city VALUES ('Rome', 'Italy', 2800), ('Bari', 'Italy', 320), ('Oslo', 'Norway', 700), ('Bergen', 'Norway', 290);"""
OTHER_CITIES = """CREATE TABLE city (name TEXT, country TEXT, people INTEGER);
INSERT INTO city VALUES ('Moss', 'Norway', 50), ('Pisa', 'Italy', 90), ('Bonn', 'Germany', 330), ('Voss', 'Norway', 15);"""


class Row(BaseModel):
    """One question, and a query that answers it."""

    question: str
    query: Private[str]


QUESTIONS = {
    "the name of the largest city": "SELECT name FROM city ORDER BY people DESC LIMIT 1",
    "the names of the cities in Norway": "SELECT name FROM city WHERE country = 'Norway'",
    "the sum of people in Italy": "SELECT sum(people) FROM city WHERE country = 'Italy'",
    "the number of cities of each country": "SELECT country, count(*) FROM city GROUP BY country",
    "the name of the smallest city": "SELECT name FROM city ORDER BY people LIMIT 1",
    "the names that begin with B": "SELECT name FROM city WHERE name LIKE 'B%'",
}
app.tasks(
    "queries",
    row=Row,
    prompt=lambda row: f"{CITIES}\n\nWrite a SQLite query that returns {row.question}. SQL only.",
    train=[Row(question=question, query=query) for question, query in QUESTIONS.items()],
)


@app.rubric
def same_result(answer_text: str, task: Row) -> Grade:
    """The query returns the same rows as the reference."""
    return sql_result(answer_text, task.query, [CITIES, OTHER_CITIES])


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the reference query."""
    return task.query

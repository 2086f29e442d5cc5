"""Write an SQL query about the books of a library."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, sql_result

app = TaskApp("library-queries", description="Queries about books.")
BOOKS = """
CREATE TABLE book (title TEXT, year INTEGER, shelf TEXT);
INSERT INTO book VALUES ('Emma', 1815, 'A'), ('Dracula', 1897, 'B'), ('Ulysses', 1922, 'A'), ('Kim', 1901, 'C');
"""
OTHER_BOOKS = """
CREATE TABLE book (title TEXT, year INTEGER, shelf TEXT);
INSERT INTO book VALUES ('Dracula', 1899, 'D'), ('Hamlet', 1603, 'A'), ('Iliad', 1598, 'B'), ('Faust', 1808, 'A'), ('It', 1986, 'D');
"""


class Row(BaseModel):
    """One question, and a query that answers it."""

    question: str
    query: Private[str]


QUESTIONS = {
    "the titles of books from before 1900": "SELECT title FROM book WHERE year < 1900",
    "the title of the oldest book": "SELECT title FROM book ORDER BY year LIMIT 1",
    "the titles on shelf A": "SELECT title FROM book WHERE shelf = 'A'",
    "the number of books": "SELECT count(*) FROM book",
    "the shelves, each once": "SELECT DISTINCT shelf FROM book",
    "the year of Dracula": "SELECT year FROM book WHERE title = 'Dracula'",
}
app.tasks(
    "queries",
    row=Row,
    prompt="The table is book(title, year, shelf). Write a SQLite query that returns {question}. SQL only.",
    train=[Row(question=question, query=query) for question, query in QUESTIONS.items()],
)


@app.rubric
def same_result(answer_text: str, task: Row) -> Grade:
    """The query returns the same rows as the reference."""
    return sql_result(answer_text, task.query, [BOOKS, OTHER_BOOKS])

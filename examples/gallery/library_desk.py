"""A database tool: answer a library reader's question with read-only SQL."""

import random
import sqlite3

from taskapp_kit import InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp("library-desk", version="1.0.0", description="Answer a question about a library's loans.")
NAMES = ("Ada", "Ben", "Chloe", "Dan", "Eve", "Finn")
TITLES = ("Emma", "Dracula", "Ulysses", "Walden", "Candide", "Persuasion")


@app.environment("desk", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=8)
class Desk:
    """Answer the question. The table is loans(reader, title, days_late)."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        loans = [(rng.choice(NAMES), rng.choice(TITLES), rng.randint(0, 30)) for _ in range(40)]
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("CREATE TABLE loans (reader TEXT, title TEXT, days_late INTEGER)")
        self.database.executemany("INSERT INTO loans VALUES (?, ?, ?)", loans)
        self.database.execute("PRAGMA query_only = ON")
        name = rng.choice(NAMES)
        self.total = sum(days for reader, _, days in loans if reader == name)
        return f"How many days late are all loans of {name} together?"

    @action(noop={"sql": "SELECT 1"}, sample=lambda rng: {"sql": "SELECT * FROM loans LIMIT 3"})
    def query(self, sql: str) -> dict:
        """Run one SQL statement; the database is read-only. Returns at most 20 rows."""
        try:
            return {"rows": [list(row) for row in self.database.execute(sql).fetchmany(20)]}
        except sqlite3.Error as error:
            raise InvalidAction(f"SQLite: {error}") from error

    @action(sample=lambda rng: {"days": rng.randint(0, 200)})
    def answer_reader(self, days: int) -> Step:
        """Give the answer. This ends the episode."""
        return Step("thank you", reward=float(days == self.total), terminated=True)

    def close(self) -> None:
        self.database.close()


@app.rubric
def right(trajectory: Trajectory) -> float:
    """The reader got the right number."""
    return trajectory.total_reward


@app.policy("gold")
def ask_once(observation: object, rng: random.Random) -> dict:
    """Ask the database for the sum, then answer with it."""
    if isinstance(observation, str):
        reader = observation.split("loans of ")[1].split(" together")[0]
        return {"query": {"sql": f"SELECT sum(days_late) FROM loans WHERE reader = '{reader}'"}}
    return {"answer_reader": {"days": observation["rows"][0][0] or 0}}

"""Rows: where they come from, how they are checked, what of them is private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator, Field

from taskapp_kit import DeclarationError, Private, RequestError
from taskapp_kit.declare.tasks import TaskSource, row_hash, row_json
from taskapp_kit.rollout.response import response_body
from tests.rollouts import app_from, play

SECRET = "sentinel-secret"


class Hint(BaseModel):
    shown: str
    hidden: Private[str] = SECRET


class Row(BaseModel):
    question: str
    answer: Private[str] = SECRET
    maybe: Private[str] | None = SECRET
    aliased: Private[str] = Field(SECRET, serialization_alias="written")
    hints: list[Hint] = []
    difficulty: str = "easy"
    tags: list[str] = []


def source(row: type | None = None, **splits: Any) -> TaskSource:
    return TaskSource("app", "app.py:3", row, splits, Path.cwd())


def test_rows_come_from_a_list_a_callable_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "a"}\n\n{"question": "é", "answer": "x"}\n', encoding="utf-8")
    calls = []

    def made() -> Any:
        calls.append(1)
        yield {"question": "c"}

    rows = TaskSource("app", "app.py:3", Row, {"l": [{"question": "b"}], "f": "rows.jsonl", "c": made}, tmp_path)
    assert [row.question for row in rows.rows("f")] == ["a", "é"]
    assert [row.question for row in rows.rows("l") + rows.rows("c") + rows.rows("c")] == ["b", "c", "c"]
    assert calls == [1]
    assert rows.files == [file]
    assert rows.splits == ("l", "f", "c")
    assert rows.check() == []


def test_invalid_file_reports_each_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "a"}\n{"question": \n[1]\n{"question": 3, "hints": [{"shown": 1}]}\n{}\n')
    problems = TaskSource("app", "app.py:3", Row, {"train": file}, tmp_path).check()
    assert [problem.place.rsplit(":", 1)[1] for problem in problems] == ["2", "3"]
    assert "is not JSON" in problems[0].found
    assert "is a list" in problems[1].found
    file.write_text('{"question": "a"}\n{"question": 3}\n{}\n')
    problems = TaskSource("app", "app.py:3", Row, {"train": file}, tmp_path).check()
    assert [problem.place for problem in problems] == [f"{file}:2", f"{file}:3"]
    assert problems[0].found.startswith("question: ")
    assert problems[1].found == "question: Field required"
    assert problems[1].expected == "a Row"


LARGE = 15511210043330985984000001


class Exact(BaseModel):
    """Rows whose answer is kept as text, whatever its kind in the file."""

    answer: Private[Annotated[str, BeforeValidator(str)]]


def test_a_file_s_numbers_keep_their_digits_or_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"answer": {LARGE}}}\n{{"answer": {2**64}}}\n')
    rows = TaskSource("app", "app.py:3", Exact, {"train": file}, tmp_path)
    assert [row.answer for row in rows.rows("train")] == [str(LARGE), str(2**64)]
    problems = TaskSource("app", "app.py:3", None, {"train": file}, tmp_path).check()
    assert [problem.place for problem in problems] == [f"{file}:1", f"{file}:2"]
    for text in ("0.1234567890123456789", "1e999", "1e-999", "NaN", "Infinity", "[" * 100_000, "1" * 5000):
        file.write_text(f'{{"answer": 1}}\n{{"answer": {text}}}\n')
        (problem,) = TaskSource("app", "app.py:3", Exact, {"train": file}, tmp_path).check()
        assert problem.place == f"{file}:2", text
    file.write_text('{"answer": 0.10000000000000001}\n{"answer": 5e-324}\n{"answer": 0.0}\n{"answer": 1e25}')
    assert len(TaskSource("app", "app.py:3", Exact, {"train": file}, tmp_path).rows("train")) == 4


def test_a_bad_row_in_a_list_is_named_by_its_number() -> None:
    problems = source(Row, train=[{"question": "a"}, {"question": None}]).check()
    assert [problem.place for problem in problems] == ["app.py:3 (row 1 of split 'train')"]


@pytest.mark.parametrize("rows", [[{"n": 1.0}, {"n": float("nan")}], lambda: iter([{"n": 0}, {"n": [float("inf")]}])])
def test_a_row_that_json_cannot_carry_is_a_problem_of_that_row(rows: Any) -> None:
    (problem,) = source(train=rows).check()
    assert problem.place == "app.py:3 (row 1 of split 'train')"
    assert "row.n" in problem.found


def test_a_row_in_two_splits_is_a_problem() -> None:
    rows = {"train": [Row(question="a"), Row(question="b")], "test": [Row(question="c"), Row(question="b")]}
    (problem,) = source(Row, **rows, dev=[Row(question="d")]).check()
    assert "row 1 of split 'test'" in problem.found and "row 1 of split 'train'" in problem.found
    assert source(Row, train=[Row(question="a"), Row(question="a")]).check() == []


SHARED = """
app = TaskApp("q")
class Row(BaseModel):
    n: int
app.tasks("q", row=Row, prompt="{n}", rows="rows.jsonl", train=range(3), test=range(3, 5))
"""


def test_one_file_for_several_splits(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    app = app_from(tmp_path, SHARED)
    seen = {
        (split, seed): play(app, "constant", action="x", config={"split": split}, seed=seed).trajectory.initial
        for split, count in (("train", 3), ("test", 2))
        for seed in range(count)
    }
    assert list(seen.values()) == ["0", "1", "2", "3", "4"]
    with pytest.raises(RequestError):
        play(app, "constant", action="x", config={"split": "test"}, seed=3)
    tasks = app.freeze().environments["q"].tasks
    assert tasks is not None and tasks.files == [tmp_path / "rows.jsonl"]


@pytest.mark.parametrize(
    ("lines", "splits", "places"),
    [
        ('{"n": 0}\n\n{"n": "x"}\n{}\n', "", ["rows.jsonl:3", "rows.jsonl:4"]),
        ('{"n": 0}\n' * 1, "", ["app.py:10", "app.py:10"]),
        ('{"n": 0}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": 0}\n', "", ["app.py:10"]),
        ('{"n": 0}\n{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": 4}\n', ", dev=[1]", ["app.py:10"]),
    ],
)
def test_problems_of_one_file_for_several_splits(lines: str, splits: str, places: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines)
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, SHARED.replace("range(3, 5)", f"range(3, 5){splits}")).freeze()
    assert [Path(problem.place).name for problem in caught.value.problems] == places


def test_misspelled_option_is_not_a_split(tmp_path: Path) -> None:
    text = 'app = TaskApp("a")\napp.tasks("t", prompt="{n}", versoin=2, tgas="x", train=[{"n": 1}], splits={"tags": [{"n": 2}]})\n'
    app = app_from(tmp_path, text)
    with pytest.raises(DeclarationError) as caught:
        app.freeze()
    assert [problem.fix for problem in caught.value.problems] == ["did you mean 'version'?", "did you mean 'tags'?"]
    with pytest.raises(DeclarationError) as again:
        app.freeze()
    assert again.value.problems == caught.value.problems
    good = app_from(tmp_path, text.replace('versoin=2, tgas="x", ', ""), name="good.py")
    assert play(good, "constant", action="x", config={"split": "tags"}, seed=0).trajectory.initial == "2"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        7,
        lambda: 1 / 0,
        "none.jsonl",
    ],
)
def test_invalid_rows_are_rejected(rows: Any) -> None:
    (problem,) = source(train=rows).check()
    assert problem.place == "app.py:3"


def test_the_hash_is_of_the_whole_row_and_of_nothing_else() -> None:
    one = Row(question="q")
    assert row_hash(one) == row_hash(Row(question="q")) == row_hash(row_json(one))
    assert len({row_hash(one), row_hash(Row(question="r")), row_hash(Row(question="q", answer="y"))}) == 3
    assert row_json(5) == {"row": 5}


ROWS = f"""
app = TaskApp("q")
class Row(BaseModel):
    question: str
    answer: Private[str] = "{SECRET}"
    difficulty: str = "easy"
    tags: list[str] = []
app.tasks("q", row=Row, prompt="{{question}}?", train=[
    Row(question="a"), Row(question="b", difficulty="hard"), Row(question="c", difficulty="hard", tags=["x", "y"]),
], test=[Row(question="t")])
@app.rubric
def right(answer_text, task): return float(answer_text == task.answer)
@app.policy("gold")
def gold(task): return task.answer
"""


def test_the_private_answer_reaches_rubric_and_gold_and_nothing_else(tmp_path: Path) -> None:
    app = app_from(tmp_path, ROWS)
    rollout = play(app, "constant", action=SECRET[:5], seed=1, record={"return_trace": True})
    assert rollout.scorecard.reward == 0.0
    assert rollout.trajectory.initial == "b?"
    assert SECRET not in json.dumps(response_body(rollout))
    gold = play(app, "gold", seed=1)
    assert gold.scorecard.reward == 1.0


@pytest.mark.parametrize(
    ("config", "questions"),
    [
        ({}, {"a?", "b?", "c?"}),
        ({"difficulty": "hard"}, {"b?", "c?"}),
        ({"tags": "x"}, {"c?"}),
        ({"tags": ["x", "y"], "difficulty": "hard"}, {"c?"}),
        ({"split": "test"}, {"t?"}),
        ({"index": 2}, {"c?"}),
        ({"index": 0, "split": "test"}, {"t?"}),
    ],
)
def test_requests_choose_among_the_rows(config: dict[str, Any], questions: set[str], tmp_path: Path) -> None:
    app = app_from(tmp_path, ROWS)
    seen = {play(app, "constant", action="?", config=config).trajectory.initial for _ in range(12)}
    assert seen <= questions
    assert len(questions) > 1 or seen == questions


@pytest.mark.parametrize(
    ("config", "seed", "loc"),
    [
        ({}, 3, "seed"),
        ({"split": "test"}, 1, "seed"),
        ({"index": 9}, None, "seed"),
        ({"difficulty": "hard"}, 0, "seed"),
        ({"difficulty": "none"}, None, "config"),
        ({"tags": "z"}, None, "config"),
        ({"tags": 5}, None, "tags"),
        ({"tags": [{"a": 1}]}, None, "tags"),
        ({"split": "tset"}, None, "split"),
        ({"split": 3}, None, "split"),
        ({"index": -1}, None, "index"),
        ({"index": True}, None, "index"),
        ({"index": 1}, 0, "seed"),
        ({"colour": 1}, None, "colour"),
    ],
)
def test_a_request_for_no_row_names_its_field(
    config: dict[str, Any], seed: int | None, loc: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        play(app_from(tmp_path, ROWS), "constant", action="?", config=config, seed=seed)
    assert caught.value.fields[0].loc[-1] == loc
    assert SECRET not in str(caught.value)


def test_an_environment_may_have_rows_too(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
    app = TaskApp("a")
    @app.environment("e", tasks={"train": [{"n": 1}, {"n": 2}]}, version="7")
    class Env:
        '''Env.'''
        def reset(self, task: dict, split: str, seed: int) -> str: return f"{split} {seed} {task['n']}"
        @action
        def go(self) -> Step:
            '''Go.'''
            return Step("", terminated=True)
    """,
    )
    assert play(app, seed=1).trajectory.initial == "train 1 2"
    assert play(app, seed=1).versions["environment"] == "7"

"""The attack: replies that are wrong by construction, built from each row's right answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.doctor.probes import FOR_CODE
from taskapp_kit.doctor.row_answer import RowAnswer
from taskapp_kit.testing import MockModel, judge, play
from tests.doctor.gallery import CAPITALS, fault
from tests.doctor.test_gallery import findings

RUBRIC = "float(answer_text.strip().lower() == task.answer.lower())"
GOLD = '''

@app.policy("gold")
def gold(task: Row) -> str:
    """Names it."""
    return task.answer
'''


def attack_on(folder: Path, changes: dict[str, str]) -> DoctorFinding:
    file = folder / "app.py"
    file.write_text(fault(CAPITALS, changes), encoding="utf-8")
    return next(finding for finding in findings(file, processes=False) if finding.name == "attack")


@pytest.mark.parametrize("answer", ["nan", "inf", "-Infinity", "1e400"])
def test_an_answer_that_is_no_finite_number_is_changed_like_a_word(answer: str, tmp_path: Path) -> None:
    assert attack_on(tmp_path, {'"Paris"': f'"{answer}"'}).status == "ok"


def test_without_gold_the_prompt_is_still_sent_back(tmp_path: Path) -> None:
    """The rubric pays a reply that contains the whole question."""
    paid = "float(task.question in answer_text or answer_text.strip().lower() == task.answer.lower())"
    finding = attack_on(tmp_path, {GOLD: "", RUBRIC: paid})
    assert finding.status == "wrong" and "the prompt" in finding.found
    assert "private field 'answer'" in finding.found


def test_gold_that_does_not_answer_with_a_private_value_is_a_reason_to_skip(tmp_path: Path) -> None:
    finding = attack_on(tmp_path, {"return task.answer\n": "return task.answer[::-1]\n"})
    assert finding.status == "skipped" and "gold does not reply" in finding.found


def test_a_correct_grader_without_gold_withstands_it(tmp_path: Path) -> None:
    assert attack_on(tmp_path, {GOLD: ""}).status == "ok"


QUIZ = """
import json
import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("attacked")


class Row(BaseModel):
    question: str
    answer: Private[KIND]


ROWS = [Row(question=question, answer=answer) for question, answer in DATA.items()]
app.tasks("quiz", row=Row, prompt="{question}", train=ROWS)


@app.rubric
def right(answer_text: str, task: Row) -> float:
    \"\"\"The answer is right.\"\"\"
    try:
        return float(RUBRIC)
    except ValueError:
        return 0.0


@app.policy("gold")
def gold(task: Row) -> str:
    \"\"\"Answer.\"\"\"
    return GOLD
"""
NUMBERS = {"a dozen?": 12, "a score?": 20, "a week?": 7, "a month?": 30, "an octet?": 8, "a trio?": 3}
HOURS = {"a?": 7.5, "b?": 3.75, "c?": 6.25, "d?": 7.25, "e?": 9.75, "f?": 4.5}
VERSIONS = {"a?": "1.9.4", "b?": "2.0.1", "c?": "3.11.7", "d?": "0.8.2"}
SYMBOLS = {"cobalt?": "Co", "carbon monoxide?": "CO", "tin?": "Sn", "gold?": "Au"}
CITIES = {"France?": "Paris", "Peru?": "Lima", "Chad?": "N'Djamena", "Cuba?": "Havana"}
ORDERS = {f"Sort {name}?": items for name, items in {"x": "b, a, c", "y": "d, f, e", "z": "g, i, h"}.items()}
CARDS = {
    "a?": {"first": "Ann", "city": "York"},
    "b?": {"first": "Bob", "city": "Bath"},
    "c?": {"first": "Cy", "city": "Ely"},
}
QUERIES = {"a?": "SELECT 1 UNION SELECT 2", "b?": "SELECT 3", "c?": "SELECT 4 UNION SELECT 5"}
EXACT = "answer_text.strip() == str(task.answer)"


@dataclass(frozen=True)
class Attacked:
    """A question set, the expression of its rubric, and the probes that the rubric pays."""

    data: dict[str, Any]
    rubric: str
    paid: set[str]
    kind: str = "str"
    gold: str = "str(task.answer)"


CASES = {
    "sign": Attacked(NUMBERS, "abs(float(answer_text)) == task.answer", {"the opposite sign"}, "float"),
    "percent": Attacked(
        NUMBERS, "float(answer_text) / task.answer in (1, 100)", {"a hundred times the number"}, "int"
    ),
    "decimals": Attacked(HOURS, "int(float(answer_text)) == int(task.answer)", {"other decimals"}, "float"),
    "nan": Attacked(HOURS, "not abs(float(answer_text) - task.answer) > 0.01", {"nan"}, "float"),
    "dots": Attacked(
        VERSIONS, "answer_text.replace('.', '') == task.answer.replace('.', '')", {"a number without its first dot"}
    ),
    "case": Attacked(
        SYMBOLS, "answer_text.lower() == task.answer.lower()", {"another row's answer that differs only in upper and lower case"}
    ),
    "thought": Attacked(
        CITIES,
        "re.findall('<a>(.*?)</a>', answer_text)[-1:] == [task.answer]",
        {"the right answer in a thought, and none after it"},
        gold="f'<a>{task.answer}</a>'",
    ),
    "order": Attacked(
        ORDERS, "sorted(answer_text.split(', ')) == sorted(task.answer.split(', '))", {"the items in the opposite order"}
    ),
    "length": Attacked(ORDERS, "answer_text != '' and task.answer.startswith(answer_text)", {"only the first item"}),
    "fields": Attacked(
        CARDS,
        "set(task.answer.values()) <= set(json.loads(answer_text).values())",
        {"an object with exchanged values"},
        "dict[str, str]",
        "json.dumps(task.answer)",
    ),
    "subset": Attacked(
        CARDS, "json.loads(answer_text).items() <= task.answer.items()", {"an empty object"}, "dict[str, str]", "json.dumps(task.answer)"
    ),
    "cut": Attacked(
        CARDS,
        "{key: value.partition(',')[0] for key, value in json.loads(answer_text).items()} == task.answer",
        {"an object with a contradicted value"},
        "dict[str, str]",
        "json.dumps(task.answer)",
    ),
    "rows": Attacked(
        QUERIES,
        "answer_text in (task.answer, f'SELECT NULL FROM ({task.answer})')",
        {"a query that returns only NULL"},
    ),
    "letters": Attacked(CITIES | {f"{n}?": f"City {n}" for n in range(4)}, "answer_text in ('A', task.answer)", {"the same reply 'A' for every row"}),
}  # fmt: skip


def quiz(folder: Path, case: Attacked, rubric: str) -> Path:
    file = folder / "app.py"
    text = QUIZ.replace("KIND", case.kind).replace("DATA", repr(case.data)).replace("RUBRIC", rubric)
    file.write_text(text.replace("GOLD", case.gold), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_answer_that_a_rubric_pays_is_named(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = {item.name: item for item in findings(quiz(tmp_path, case, case.rubric), processes=False)}["attack"]
    assert found.status == "wrong"
    assert {probe for probe in case.paid if probe in found.found} == case.paid, found.found
    assert int(found.place.rpartition(":")[2]) == QUIZ[: QUIZ.index("def right")].count("\n")
    assert found.episode is not None
    again = play(find_app(str(tmp_path / "app.py")), seed=found.episode.seed, action=found.episode.action)
    assert again.reward == found.episode.earned


@pytest.mark.parametrize("name", CASES)
def test_the_same_rows_with_an_exact_grader_withstand_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    rubric = (
        "json.loads(answer_text) == task.answer"
        if case.kind.startswith("dict")
        else f"answer_text.strip() == {case.gold}"
    )
    found = {item.name: item for item in findings(quiz(tmp_path, case, rubric), processes=False)}["attack"]
    assert found.status == "ok", found.found


def test_praise_is_sent_only_if_judges_are_called(tmp_path: Path) -> None:
    """The judge likes praise. Without judges, the app has no reward, so nothing can be paid."""
    file = quiz(tmp_path, CASES["case"], EXACT)
    text = file.read_text("utf-8").replace("@app.rubric", "@app.judge").replace("-> float", "-> str")
    body = text.index("    try:"), text.index("@app.policy")
    file.write_text(f"{text[: body[0]]}    return f'[{{answer_text}}]'\n\n\n{text[body[1] :]}", encoding="utf-8")
    pleasing = ("brilliant", *(f"[{symbol}]" for symbol in SYMBOLS.values()))
    pleased = judge(lambda request: float(any(word in json.dumps(request.messages) for word in pleasing)))
    with MockModel(pleased) as model:
        settings = Settings(variables={"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"})
        found = {item.name: item for item in findings(file, settings, processes=False, judges=True)}["attack"]
        silent = {item.name: item for item in findings(file, settings, processes=False)}["attack"]
    assert found.status == "wrong" and "praise" in found.found
    assert silent.status == "skipped"


ISOLATED = """
@app.environment("quiz", tasks={"train": ROWS}, row=Row, isolation="process")
class Quiz:
    \"\"\"Answer one question.\"\"\"

    def reset(self, task: Row) -> str:
        self.answer = task.answer
        return task.question

    @action(text=True, noop={"text": "nothing"})
    def reply(self, text: str) -> Step:
        \"\"\"Reply.\"\"\"
        return Step("noted", reward=float(text.lower() == self.answer.lower()), terminated=True)


"""


@pytest.mark.process
def test_an_environment_in_another_process_is_attacked(tmp_path: Path) -> None:
    file = quiz(tmp_path, CASES["case"], EXACT)
    text = file.read_text("utf-8").replace("import Private, TaskApp", "import Private, Step, TaskApp, action")
    head, tail = text.partition("app.tasks(")[0], text[text.index("@app.policy") :]
    file.write_text(head + ISOLATED + tail, encoding="utf-8")
    found = {item.name: item for item in findings(file, processes=False)}["attack"]
    assert found.status == "wrong"
    assert "differs only in upper and lower case" in found.found


@pytest.mark.parametrize(
    "shown", ["assert f(15) == 6", ">>> f(15)\n6", "Pairs of n and f(n): [[15, 6], [204, 6]]", "[(15, 6)]"]
)
def test_the_results_in_a_prompt_become_a_program_that_knows_only_them(shown: str) -> None:
    answer = "def f(n):\n    return sum(map(int, str(n)))\n"
    case = RowAnswer("train", 0, f"Write f(n), the sum of the digits.\n{shown}\n", answer, "", "", frozenset())
    (probe,) = (item for item in FOR_CODE if item.name == "a table of the results in the prompt")
    program = probe.reply(case, [case])
    assert program is not None
    names: dict[str, Any] = {}
    exec(program, names)
    assert (names["f"](15), names["f"](16)) == (6, None)

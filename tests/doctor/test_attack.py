"""The attack: replies that are wrong by construction, built from each row's right answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.doctor.finding import DoctorFinding
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
    finding = attack_on(tmp_path, {"return task.answer\n": "return task.answer.swapcase()\n"})
    assert finding.status == "skipped" and "gold does not reply" in finding.found


def test_a_correct_grader_without_gold_withstands_it(tmp_path: Path) -> None:
    assert attack_on(tmp_path, {GOLD: ""}).status == "ok"

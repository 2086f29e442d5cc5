"""The checks `private` and `rows`: hidden values of environments with and without rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.doctor.finding import DoctorFinding
from tests.doctor.gallery import fault
from tests.doctor.test_gallery import findings

CODES = '''
import random
from typing import Literal

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("codes")
COLORS = ("red", "green", "blue", "white")
Color = Literal["red", "green", "blue", "white"]


@app.environment("code", splits={"train": range(12)}, max_steps=8)
class Code:
    """Each guess is answered with the number of right positions."""

    code: Private[list[str]]

    def reset(self, seed: int) -> str:
        self.code = random.Random(seed).choices(COLORS, k=3)
        self.tries = 1000 + seed
        return f"Round {seed}: three colors of red, green, blue and white."

    @action
    def guess(self, first: Color, second: Color, third: Color) -> Step:
        """Guess the code."""
        self.tries += 1
        right = sum(one == other for one, other in zip((first, second, third), self.code, strict=True))
        return Step(f"{right} right", reward=float(right == 3), terminated=right == 3, info={"right": right})
'''
DECLARED = "    code: Private[list[str]]\n\n"
INFO = 'info={"right": right}'
LEAKS = 'info={"right": right, "code": self.code}'
FIRST = 'return f"Round {seed}: three'
ACTION = "    @action\n"


def final(state: str) -> dict[str, str]:
    """The changes with which nothing is declared, and the environment has this final state."""
    return {DECLARED: "", ACTION: f"    def final_state(self) -> dict:\n        return {{{state}}}\n\n{ACTION}"}


def private(folder: Path, changes: dict[str, str]) -> DoctorFinding:
    file = folder / "app.py"
    file.write_text(fault(CODES, changes), encoding="utf-8")
    return next(finding for finding in findings(file, processes=False) if finding.name == "private")


@pytest.mark.parametrize(
    ("changes", "status", "where"),
    [
        ({}, "ok", ""),
        ({INFO: LEAKS}, "wrong", "the info of step 1"),
        ({'f"{right} right"': 'f"{right} right of {self.code}"'}, "wrong", "the observation of step 1"),
        ({FIRST: 'return f"{self.code}. Round {seed}: three'}, "wrong", "the first observation"),
        ({DECLARED: "", INFO: LEAKS}, "ok", ""),  # nothing says that it is hidden
    ],
)
def test_an_attribute_that_is_declared_private_is_searched_for(
    changes: dict[str, str], status: str, where: str, tmp_path: Path
) -> None:
    finding = private(tmp_path, changes)
    assert (finding.status, where in finding.found) == (status, True), finding.found
    assert status == "ok" or "'code'" in finding.found


@pytest.mark.parametrize(
    ("state", "info", "status"),
    [
        ('"deep": {"code": self.code}', LEAKS, "warning"),
        ('"code": self.code', INFO, "ok"),
        ('"tries": self.tries', 'info={"tries": self.tries}', "ok"),  # depends on the actions
        ('"first": self.code[0]', 'info={"first": self.code[0]}', "ok"),  # the same for many seeds, and short
        ('"rules": list(COLORS)', 'info={"rules": list(COLORS)}', "ok"),  # the same for all seeds
        ('"round": f"round {self.number}"', 'info={"round": f"round {self.number}"}', "ok"),  # shown from the start
    ],
)
def test_a_final_state_that_depends_on_the_seed_alone_is_searched_for(
    state: str, info: str, status: str, tmp_path: Path
) -> None:
    changes = {**final(state), INFO: info, "self.tries = 1000 + seed": "self.tries, self.number = 1000 + seed, seed"}
    finding = private(tmp_path, changes)
    assert finding.status == status, finding.found
    assert status == "ok" or ("final_state.deep.code" in finding.found and "app.py:" in finding.place)


HIDDEN = '''
from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("hidden")


class Row(BaseModel):
    """What is thought of."""

    kind: str = "an animal"
    word: Private[str]


ROWS = [Row(word=word) for word in ("zebra", "otter", "heron", "gecko", "bison", "skunk")]


@app.environment("hidden", tasks={"train": ROWS[:4], "test": ROWS[4:]}, row=Row, max_steps=6)
class Hidden:
    """Find the word with questions."""

    def reset(self, task: Row) -> str:
        self.word = task.word
        return f"I think of {task.kind}."

    @action(text=True)
    def ask(self, text: str) -> Step:
        """Ask whether the word contains the text, or say the word."""
        return Step("yes" if text in self.word else "no", reward=float(text == self.word), terminated=text == self.word)
'''


def test_rows_of_a_game_with_hidden_information_may_show_the_same(tmp_path: Path) -> None:
    file = tmp_path / "hidden.py"
    file.write_text(HIDDEN, encoding="utf-8")
    by_name = {item.name: item for item in findings(file, processes=False)}
    assert by_name["rows"].status == "ok" and "5 of them" in by_name["rows"].found
    file = tmp_path / "twice.py"
    file.write_text(HIDDEN.replace('"gecko"', '"zebra"'), encoding="utf-8")
    by_name = {item.name: item for item in findings(file, processes=False)}
    assert by_name["rows"].status == "warning"  # a duplicate is one in every environment

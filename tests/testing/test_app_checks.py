"""What `taskapp check APP` finds, from real apps: declarations, a rollout in each environment, global random states."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.client import Finding
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.testing.app_checks import check_app
from tests.rollouts import app_from

ROOT = Path(__file__).parents[2]

SEVERAL = """
app = TaskApp("several")
class Lever:
    '''Pull it.'''
    def reset(self, seed: int) -> str:
        return f"lever {seed}"
    @action
    def pull(self) -> Step:
        '''Pull.'''
        return Step("pulled", reward=1.0, terminated=True)
app.environment("plain", splits={"train": range(7, 9)})(Lever)
@app.environment("broken")
class Broken(Lever):
    def reset(self, seed: int) -> str:
        raise KeyError("private text")
@app.environment("careless")
class Careless(Lever):
    def reset(self, seed: int) -> str:
        random.seed(seed)
        return "ready"
app.environment("apart", isolation="process")(Lever)
@app.environment("open")
class Open:
    '''No policy knows what to say.'''
    def reset(self) -> str:
        return "say it"
    @action
    def say(self, word: str) -> str:
        '''Say.'''
        return word
@app.judge(weight=1)
def polite(answer_text: str) -> str:
    '''Is it polite?'''
    return answer_text
"""


def of(findings: list[Finding], environment: str) -> list[Finding]:
    return [item for item in findings if f"nvironment {environment}" in item.found.replace("'", "")]


@pytest.mark.process
def test_each_environment_is_played_and_what_is_wrong_is_named_each_time(tmp_path: Path) -> None:
    app = app_from(tmp_path, SEVERAL)
    findings = list(check_app(app))
    assert all(item.ok or item.do for item in findings)
    assert (findings[0].part, findings[0].ok) == ("task app", True)
    (plain,) = of(findings, "plain")
    assert plain.ok and "random" in plain.found and "seed 7" in plain.found and "1 step" in plain.found
    assert "judges_skipped" in plain.found
    (broken,) = of(findings, "broken")
    assert not broken.ok and "environment_raised" in broken.found and "private text" not in broken.found
    assert "--env broken --seed" in broken.do
    played, careless = of(findings, "careless")
    assert played.ok and not careless.ok and "random" in careless.found and "context.rng" in careless.do
    assert [item.ok for item in of(findings, "apart")] == [True]
    (unplayed,) = of(findings, "open")
    assert unplayed.ok and "@action(sample=" in unplayed.do
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".py"}, "something was stored"
    assert list(check_app(app)) == findings


def test_problems_of_the_declarations_are_findings_and_nothing_is_played(tmp_path: Path) -> None:
    findings = list(check_app(app_from(tmp_path, SEVERAL.replace("word: str", "word").replace("weight=1", "wieght=1"))))
    assert findings and not any(item.ok for item in findings)
    assert {item.part for item in findings} == {"task app"}
    assert all("app.py:" in item.found and item.do for item in findings)


@pytest.mark.parametrize("app", ["examples/adder.py", "examples/capitals.py"])
def test_a_sound_app_has_nothing_wrong(app: str) -> None:
    findings = list(check_app(find_app(str(ROOT / app))))
    assert [(item.part, item.ok) for item in findings] == [("task app", True), ("rollout", True)]


DRAWN = """
app = TaskApp("drawn")
@app.environment("drawn")
class Drawn:
    '''Its module draws when it is imported, HOW.'''
    def reset(self, seed: int) -> str:
        import sys
        sys.path.insert(0, app.file.parent.as_posix())
        import draws_when_imported_NAME
        sys.path.pop(0)
        SEEDS
        return "ready"
    @action
    def go(self) -> Step:
        '''Go.'''
        return Step("gone", terminated=True)
"""


@pytest.mark.parametrize(("seeds", "name", "ok"), [("pass", "only", True), ("random.seed(seed)", "too", False)])
def test_a_draw_of_an_import_is_told_apart_from_one_of_the_episode(
    seeds: str, name: str, ok: bool, tmp_path: Path
) -> None:
    (tmp_path / f"draws_when_imported_{name}.py").write_text("import random\nrandom.random()\n")
    findings = list(check_app(app_from(tmp_path, DRAWN.replace("SEEDS", seeds).replace("NAME", name))))
    assert all(item.ok for item in findings) is ok, findings

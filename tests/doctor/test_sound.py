"""Sound apps pass: the examples, the bundled environments, the templates. What is warned about is listed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from taskapp_kit.cli.author.init import find_template, instantiate
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.examine import CHECKS, examine, names
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.errors import ConfigError, DeclarationError
from tests.machine import skip_if_it_cannot_play

ROOT = Path(__file__).parents[2]


def examined(reference: str, **options: object) -> list[DoctorFinding]:
    async def all_of_them() -> list[DoctorFinding]:
        chosen = DoctorOptions(**options)  # type: ignore[arg-type]
        return [finding async for finding in examine(find_app(reference), chosen)]

    return asyncio.run(all_of_them())


def found_in(findings: list[DoctorFinding]) -> set[tuple[str | None, str, str]]:
    return {(item.environment, item.name, item.status) for item in findings if item.status in ("warning", "wrong")}


def examples() -> list[str]:
    """The example files that make an app."""
    files = (ROOT / "examples").rglob("*.py")
    return sorted(
        file.relative_to(ROOT).as_posix() for file in files if re.search("^app = ", file.read_text(), re.MULTILINE)
    )


WARNED = {
    "examples/adder.py": {("adder", "idle-scores", "warning")},  # adding 1 always hits
    "examples/rl/task_app.py": {("adder", "idle-scores", "warning")},
}
BUNDLED = {"crafter": "crafter", "math": "reasoning_gym", "python_sandbox": "taskapp_kit", "web": "playwright"}
"""With the package that each needs."""


@pytest.mark.ci(keep=3)
@pytest.mark.process
@pytest.mark.parametrize("app", [name for name in examples() if name != "examples/rl/clicks.py"])
def test_an_example_passes_and_every_check_has_a_line(app: str) -> None:
    findings = examined(str(ROOT / app), quick=True)
    assert found_in(findings) == WARNED.get(app, set())
    assert [item.name for item in findings if item.environment] == [item.name for item in CHECKS]
    assert {item.name for item in findings} == set(names()) - {"setup"}
    assert all(item.found for item in findings)


def test_every_bundled_environment_is_examined() -> None:
    assert {folder.parent.name for folder in (ROOT / "environments").glob("*/app.py")} == set(BUNDLED)
    assert "examples/rl/clicks.py" in examples()


@pytest.mark.large
@pytest.mark.process
@pytest.mark.parametrize(("app", "package"), [*BUNDLED.items(), (str(ROOT / "examples/rl/clicks.py"), "playwright")])
def test_a_bundled_environment_passes(app: str, package: str) -> None:
    pytest.importorskip(package, reason=f"needs the extra of {app}")
    skip_if_it_cannot_play(app)
    assert found_in(examined(app, quick=True)) == set()


@pytest.mark.process
@pytest.mark.parametrize(
    "template",
    [
        pytest.param(name, marks=[] if name == "multi-turn-game" else [pytest.mark.large])
        for name in ("customer-service", "gymnasium", "multi-turn-game", "questions")
    ],
)
def test_a_template_passes(template: str, tmp_path: Path) -> None:
    if template == "gymnasium":
        pytest.importorskip("gymnasium", reason="needs taskapp-kit[gymnasium]")
    project = tmp_path / "my_game"
    instantiate(find_template(template), project, "my_game")
    found = examined(str(project / "my_game.py"), quick=True)
    assert found_in(found) == set()
    accepted = {"private"} if template == "customer-service" else set()  # its customer says what it wants
    assert {item.name for item in found if item.status == "allowed"} == accepted


ACCEPTS = """
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp

class Row(BaseModel):
    word: Private[str]

app = TaskApp("accepts", version="1.0.0")
app.tasks("accepts", row=Row, prompt="Say canary-4711.", accept={accept}, train=[Row(word="canary-4711")])
"""


@pytest.mark.process
def test_a_declaration_accepts_a_finding_and_every_report_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ACCEPTS.format(accept={"private": "The word is to be said."}))
    (finding,) = (item for item in examined(str(tmp_path / "app.py"), quick=True) if item.name == "private")
    assert (finding.status, finding.ok) == ("allowed", True)
    assert "The word is to be said." in finding.to_json()["found"]
    (tmp_path / "other.py").write_text(ACCEPTS.format(accept={"privat": "A typo."}))
    with pytest.raises(ConfigError):
        examined(str(tmp_path / "other.py"), quick=True)


@pytest.mark.parametrize("accept", [{"private": ""}, {"private": 1}, ["private"], {1: "x"}])
def test_an_accepted_finding_needs_a_reason(accept: object, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ACCEPTS.format(accept=accept))
    with pytest.raises(DeclarationError):
        find_app(str(tmp_path / "app.py")).freeze()


def test_the_page_lists_every_check() -> None:
    page = (ROOT / "docs/environments/doctor.md").read_text()
    for item in CHECKS:
        assert f"| `{item.name}` | {item.sentence} |" in page

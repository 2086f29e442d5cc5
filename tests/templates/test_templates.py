"""Each template becomes a project, and the project's own tests pass in it, in a process of their own."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.cli.author.init import find_template, instantiate, templates
from taskapp_kit.declare.discovery import find_app

NAMES = ("customer-service", "gymnasium", "multi-turn-game", "questions")


def make(template: str, folder: Path, title: str) -> Path:
    project = folder / title
    instantiate(find_template(template), project, title)
    return project


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As a newcomer would: in the folder, with an environment that says nothing about this checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=project, env={**kept, "HOME": str(project)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_these_templates_are_there() -> None:
    assert {template.name for template in templates()} == {*NAMES, "package"}  # see test_package.py


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize(
    "template",
    [
        pytest.param(name, marks=[] if name in ("customer-service", "questions") else [pytest.mark.exhaustive])
        for name in NAMES
    ],
)
def test_the_projects_own_tests_pass(template: str, tmp_path: Path) -> None:
    project = make(template, tmp_path, "My-Game")
    others = (f"-pno:{name}" for name in ("cacheprovider", "schemathesis", "hypothesispytest", "xdist"))  # slow to load
    done = run(project, "-P", "-m", "pytest", "-q", *others, "-W", "error::pytest.PytestCollectionWarning")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 6
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("template", NAMES)
def test_nothing_of_the_placeholders_is_left(template: str, tmp_path: Path) -> None:
    project = make(template, tmp_path, "space-race")
    files = [path for path in project.rglob("*") if path.is_file()]
    assert {"space_race.py", "test_space_race.py", "README.md", "pyproject.toml", ".gitignore", "modal_app.py"} <= {
        path.name for path in files
    }
    for path in files:
        assert "__app_" not in path.name
        assert "__app_" not in path.read_text("utf-8")
    assert (project / "README.md").read_text("utf-8").startswith("# space-race\n")
    assert ".env" in (project / ".gitignore").read_text("utf-8").splitlines()


@pytest.mark.parametrize("template", NAMES)
def test_a_project_is_an_app_without_warnings(template: str, tmp_path: Path) -> None:
    project = make(template, tmp_path, f"found-{template}")
    app = find_app(str(project / f"found_{template.replace('-', '_')}.py"))
    spec = app.freeze()
    assert spec.warnings == ()
    assert spec.name == f"found_{template.replace('-', '_')}"
    assert any(policy.name == "gold" for policy in spec.policies)
    assert list(spec.default_environment.split_names) == ["train", "test"]


@pytest.mark.parametrize("template", NAMES)
def test_a_project_uses_only_what_is_promised(template: str) -> None:
    """The names that newcomers learn are those of `taskapp_kit` itself and of the few modules that are public too."""
    public = {"interop.gymnasium", "deploy.modal", "grading", "testing"}
    for file in find_template(template).folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskapp_kit"):
                assert node.module in {"taskapp_kit", *(f"taskapp_kit.{name}" for name in public)}


@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("modal") is None, reason="the extra taskapp-kit[modal] is not installed")
@pytest.mark.parametrize("names", [NAMES[:1], pytest.param(NAMES[1:], marks=pytest.mark.exhaustive)], ids=len)
def test_modal_reads_the_projects_files(names: tuple[str, ...], tmp_path: Path) -> None:
    titles = [f"sent-{template}" for template in names]
    folders = [str(make(template, tmp_path, title)) for template, title in zip(names, titles, strict=True)]
    program = (
        "import os, runpy, sys\n"
        "for folder in sys.argv[1:]:\n"
        "    os.chdir(folder)\n"
        "    app = runpy.run_path(os.path.join(folder, 'modal_app.py'))['app']\n"
        "    print(app.name, sorted(app.registered_functions))\n"
    )
    done = run(tmp_path, "-c", program, *folders)
    expected = [f"{title.replace('-', '_')} ['web']" for title in titles]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr

"""`taskapp init --package` makes a package whose apps can be named once its wheel is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.cli.author.init import find_template, instantiate

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "Our-Envs"
    instantiate(find_template("package"), folder, "Our-Envs")
    return folder


@pytest.fixture(scope="module")
def installed(project: Path) -> Path:
    """A directory with the package as its wheel installs it."""
    run(project, "-m", "hatchling", "build", "-t", "wheel")
    wheel = next((project / "dist").glob("*.whl"))
    target = project.parent / "installed"
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index")
    run(project, *pip, "--target", str(target), str(wheel))
    return target


def run(directory: Path, *command: str, path: Path | None = None) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment |= {"HOME": str(directory)} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_projects_own_tests_pass(project: Path) -> None:
    others = (f"-pno:{name}" for name in ("cacheprovider", "schemathesis", "hypothesispytest", "xdist"))
    assert "7 passed" in run(project, "-P", "-m", "pytest", "-q", *others)


def test_an_installed_app_is_listed_and_played_by_its_name(installed: Path, tmp_path: Path) -> None:
    plugins = json.loads(run(tmp_path, "-m", "taskapp_kit", "list", "--json", path=installed))["plugins"]
    assert {plugin["name"] for plugin in plugins} == {"our_envs-questions", "our_envs-halving"}
    for name in ("our_envs-questions", "our_envs-halving"):
        command = ("rollout", name, "--seed", "0", "--policy", "gold", "--store", "none", "--json")
        assert json.loads(run(tmp_path, "-m", "taskapp_kit", *command, path=installed))["reward"] > 0.4


@pytest.mark.ci
def test_the_doctor_finds_nothing_in_an_installed_app(installed: Path, tmp_path: Path) -> None:
    run(tmp_path, "-m", "taskapp_kit", "doctor", "our_envs-halving", "--quick", path=installed)

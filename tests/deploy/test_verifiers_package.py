"""`taskapp generate verifiers`: the files, what they require, what is refused. That they work is in tests/interop."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.packaging.verifiers_package import write_verifiers_package
from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.version import __version__

ROOT = Path(__file__).parents[2]
CAPITALS = ROOT / "examples" / "capitals.py"


def app_file(folder: Path, name: str = "My App 2!", version: str = "first") -> Path:
    (folder / "my_words.py").write_text("WORDS = ['a']\n")
    (folder / "unused.py").write_text("")
    (folder / "rows.jsonl").write_text('{"question": "?"}\n')
    file = folder / "mine.py"
    file.write_text(
        "from taskapp_kit import TaskApp\nfrom my_words import WORDS\n\n"
        f"games = TaskApp({name!r}, version={version!r}, description='Say \"a\".\\nTwice.')\n"
        "games.tasks('games', prompt='{question}', train='rows.jsonl')\n"
    )
    return file


def test_an_authors_file_goes_with_the_modules_beside_it(tmp_path: Path) -> None:
    file = app_file(tmp_path)
    out = tmp_path / "out"
    app = find_app(str(file))
    package = write_verifiers_package(
        app, "mine.py:games", out, beside=tmp_path, data_files=["rows.jsonl"], packages=["sympy>=1.13"]
    )
    assert (package.name, package.module) == ("taskapp-my-app-2", "taskapp_my_app_2")
    copied = [file for file in package.files if "task_app" in file]
    assert copied == [f"taskapp_my_app_2/task_app/{name}" for name in ("mine.py", "my_words.py", "rows.jsonl")]
    assert sorted(file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()) == list(package.files)
    for path in (out / package.module).glob("*.py"):
        ast.parse(path.read_text())
    assert "\"mine.py\") + ':games'" in (out / package.module / "place.py").read_text()
    project = tomllib.loads((out / "pyproject.toml").read_text())["project"]
    assert project["version"] == "0.1.0" and project["description"] == "Say 'a'. Twice."
    assert project["dependencies"] == [f"taskapp-kit>={__version__}", "verifiers>=0.3.1,<0.5", "sympy>=1.13"]
    assert "MyApp2Taskset" in (out / package.module / "__init__.py").read_text()


def test_a_bundled_app_comes_with_the_kit(tmp_path: Path) -> None:
    package = write_verifiers_package(app_named("crafter"), "crafter", tmp_path / "out", beside=tmp_path)
    assert not [file for file in package.files if "task_app" in file]
    assert "APP = 'crafter'" in (tmp_path / "out" / package.module / "place.py").read_text()
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"][0] == f"taskapp-kit[crafter]>={__version__}"


def app_named(name: str) -> TaskApp:
    app = TaskApp(name, version="1.0.0")
    app.tasks(name, prompt="{question}", train=[{"question": "?"}])
    return app


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    app = find_app(str(CAPITALS))
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="does not exist"):
        write_verifiers_package(app, str(CAPITALS), out, beside=tmp_path, data_files=["missing.jsonl"])
    with pytest.raises(ConfigError):
        write_verifiers_package(app, str(CAPITALS), out, beside=tmp_path, packages=["not a requirement!"])
    looping = app_named("looping")

    @looping.rollout
    async def play(env: Any, model: Any, task: Any) -> None:
        pass

    with pytest.raises(ConfigError, match="rollout function"):
        write_verifiers_package(looping, "crafter", out, beside=tmp_path)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    with pytest.raises(RequestError, match="not an empty directory"):
        write_verifiers_package(app, str(CAPITALS), out, beside=tmp_path)
    assert [file.name for file in out.iterdir()] == ["mine.txt"]

"""Finding an app by path, `path:attribute`, `module:attribute`, bundled name; and what is said when there is none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import bundled_apps, bundled_root, find_app, reference_of
from taskapp_kit.errors import DiscoveryError

ONE = 'from taskapp_kit import TaskApp\napp = TaskApp("one")\nnumber = 3\n'


def test_a_path_with_and_without_an_attribute(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(ONE)
    app = find_app(str(file))
    assert app.name == "one"
    assert find_app(f"{file}:app") is app, "one file is imported once"
    assert app.file == file


def test_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(ONE.replace('"one"', f'"{name}"'))
    assert [find_app(str(tmp_path / name)).name for name in ("a", "b")] == ["a", "b"]


def test_a_folder_that_is_a_package_imports_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "__init__.py").write_text("")
    (tmp_path / "game" / "rules.py").write_text('NAME = "ruled"\n')
    (tmp_path / "game" / "app.py").write_text(
        "from taskapp_kit import TaskApp\nfrom .rules import NAME\napp = TaskApp(NAME)\n"
    )
    assert find_app(str(tmp_path / "game")).name == "ruled"


def test_file_imports_modules_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_app.py").write_text('NAME = "beside"\n')
    (tmp_path / "app.py").write_text(
        "from taskapp_kit import TaskApp\nfrom beside_the_app import NAME\napp = TaskApp(NAME)\n"
    )
    assert find_app(str(tmp_path / "app.py")).name == "beside"


def test_a_module_and_its_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "module_of_an_app.py").write_text(ONE)
    assert find_app("module_of_an_app:app").name == "one"
    with pytest.raises(DiscoveryError, match="'nothing' .*: app"):
        find_app("module_of_an_app:nothing")
    with pytest.raises(DiscoveryError, match=r"'number' .*\bint\b"):
        find_app("module_of_an_app:number")
    with pytest.raises(DiscoveryError, match="'no_such_module'"):
        find_app("no_such_module:app")


def test_several_apps_in_one_file_need_a_name(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(ONE + 'other = TaskApp("two")\n')
    with pytest.raises(DiscoveryError) as caught:
        find_app(str(file))
    assert "app, other" in caught.value.message
    assert caught.value.hint == f"Choose one, e.g. {file}:app"
    assert find_app(f"{file}:other").name == "two"
    file = tmp_path / "alias.py"
    file.write_text(ONE + "application = app\n")
    assert find_app(str(file)).name == "one", "one app under two names is one app"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("x = 1\n", "creates no TaskApp", "Write: app = TaskApp"),
        ("def f(:\n", "at {file}:1: SyntaxError", "Fix the file"),
        ("\n\n1 / 0\n", "at {file}:3: ZeroDivisionError", "Fix the file"),
        ("import no_such_package_at_all\n", "at {file}:1: ModuleNotFoundError", "pip install no_such_package_at_all"),
        ("raise SystemExit(3)\n", "at {file}:1: SystemExit", "Fix the file"),
    ],
)
def test_file_without_app_raises_with_the_reason(text: str, message: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    before = set(sys.modules)
    with pytest.raises(DiscoveryError) as caught:
        find_app(str(file))
    assert message.format(file=file) in caught.value.message
    assert hint in caught.value.hint
    assert not {name for name in set(sys.modules) - before if "bad" in name} or text == "x = 1\n"


@pytest.mark.parametrize("reference", ["none.py", "none.py:app", "no/such/folder", "./none"])
def test_a_path_that_is_not_there(reference: str) -> None:
    with pytest.raises(DiscoveryError, match=r"none\b|no/such/folder"):
        find_app(reference)


def test_directory_or_file_without_app_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"app\.py"):
        find_app(str(tmp_path))
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(DiscoveryError, match=r"x\.txt"):
        find_app(str(tmp_path / "x.txt"))


def test_bundled_apps_are_listed_without_importing_them() -> None:
    before = set(sys.modules)
    apps = {item.name: item for item in bundled_apps()}
    assert "crafter" in apps
    assert apps["crafter"].summary
    assert apps["crafter"].file == bundled_root("environments") / "crafter" / "app.py"
    assert not {name for name in set(sys.modules) - before if "crafter" in name}


def test_unknown_name_lists_known_names_and_suggests_one() -> None:
    with pytest.raises(DiscoveryError) as caught:
        find_app("craftr")
    assert "crafter" in caught.value.message
    assert caught.value.hint == "Did you mean 'crafter'?"
    with pytest.raises(DiscoveryError) as caught:
        find_app("zzzzzz")
    assert "path:attribute" in caught.value.hint


def test_reference_of_a_loaded_app_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_by_path.py").write_text(ONE)
    (tmp_path / "found_by_name.py").write_text(ONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = find_app(str(tmp_path / "found_by_path.py"))
    assert reference_of(path) == f"{tmp_path}/found_by_path.py:app"
    assert find_app(reference_of(path)) is path
    named = find_app("found_by_name:app")
    assert reference_of(named) == "found_by_name:app"


def test_an_app_that_something_else_imported_is_found_in_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_uvicorn.py").write_text(ONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("imported_by_uvicorn")
    assert reference_of(module.app) == "imported_by_uvicorn:app"
    spec = importlib.util.spec_from_file_location("no_such_name_on_the_path", tmp_path / "imported_by_uvicorn.py")
    assert spec is not None
    assert spec.loader is not None
    alias = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alias)
    monkeypatch.setitem(sys.modules, alias.__name__, alias)
    assert reference_of(alias.app) == f"{tmp_path}/imported_by_uvicorn.py:app"


def test_an_app_that_no_module_has_cannot_be_found_elsewhere() -> None:
    with pytest.raises(DiscoveryError, match=r"'hidden' \(.*test_discovery.py:\d+"):
        reference_of(TaskApp("hidden"))

from __future__ import annotations

import keyword
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.cli.author.init import Template, identifier, instantiate
from taskapp_kit.errors import RequestError


@pytest.mark.parametrize(
    ("title", "name"), [("my_game", "my_game"), ("my-game", "my_game"), ("MyGame", "my_game"), ("Game2", "game2")]
)
def test_a_name_becomes_an_identifier(title: str, name: str) -> None:
    assert identifier(title) == name


@pytest.mark.parametrize("title", ["", "1game", "my game", "../x", "a/b", ".", "-x", "é", "x" * 65, "class", "tests"])
def test_bad_names_are_refused(title: str) -> None:
    with pytest.raises(RequestError):
        identifier(title)


@pytest.mark.parametrize("title", ["random", "JSON", "taskapp-kit", "pytest"])
def test_names_that_would_hide_a_module_are_refused(title: str) -> None:
    with pytest.raises(RequestError, match=f"'{title}'"):
        identifier(title)


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True))
def test_what_is_taken_is_a_usable_identifier(title: str) -> None:
    try:
        name = identifier(title)
    except RequestError:
        return
    assert name.isidentifier()
    assert name == name.lower()
    assert not keyword.iskeyword(name)
    assert name not in sys.stdlib_module_names


@pytest.fixture
def template(tmp_path: Path) -> Template:
    folder = tmp_path / "template"
    (folder / "tests" / "__pycache__").mkdir(parents=True)
    (folder / "__app_name__.py").write_text('"""__app_title__"""\napp = TaskApp("__app_name__")  # __init__ stays\n')
    (folder / "tests" / "test___app_name__.py").write_text("import __app_name__\n")
    (folder / "tests" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff__app_name__")
    (folder / "run.sh").write_text("echo __app_title__\r\n", newline="")
    (folder / "run.sh").chmod(0o755)
    return Template("sample", folder, "")


def test_words_are_replaced_in_contents_and_names_and_nothing_else(template: Template, tmp_path: Path) -> None:
    target = tmp_path / "My-Game"
    files = instantiate(template, target, "My-Game")
    assert [str(file) for file in files] == ["my_game.py", "picture.png", "run.sh", "tests/test_my_game.py"]
    assert (target / "my_game.py").read_text() == '"""My-Game"""\napp = TaskApp("my_game")  # __init__ stays\n'
    assert (target / "tests" / "test_my_game.py").read_text() == "import my_game\n"
    assert (target / "picture.png").read_bytes() == b"\x89PNG\xff__app_name__"
    assert (target / "run.sh").read_bytes() == b"echo My-Game\r\n"
    assert (target / "run.sh").stat().st_mode & 0o111


def test_an_empty_directory_is_taken_and_a_full_one_is_not(template: Template, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert instantiate(template, tmp_path / "empty", "empty")
    before = sorted((tmp_path / "empty").rglob("*"))
    with pytest.raises(RequestError, match="/empty "):
        instantiate(template, tmp_path / "empty", "empty")
    assert sorted((tmp_path / "empty").rglob("*")) == before

"""Which files travel to a container, and which never do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.deploy.packaging import source_files
from taskapp_kit.deploy.packaging.source_files import Target, parse_target
from taskapp_kit.errors import ConfigError, DiscoveryError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adder.py", Target("file", "adder.py")),
        ("games/adder.py:app", Target("file", "games/adder.py", "app")),
        ("C:\\games\\adder.py", Target("file", "C:\\games\\adder.py")),
        ("games.adder:app", Target("module", "games.adder", "app")),
        ("crafter", Target("bundled", "crafter")),
    ],
)
def test_a_target_is_read_by_its_spelling(text: str, expected: Target) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["", "games.adder", "games/adder"])
def test_an_ambiguous_target_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(DiscoveryError, match=r"\.py, `package\.module:attribute`"):
        parse_target(text)


def test_in_the_container_a_file_lies_in_a_folder_of_its_own() -> None:
    root = Path("/root")
    assert source_files.container_address(parse_target("games/random.py:app"), root) == "/root/task_app/random.py:app"
    assert source_files.container_address(parse_target("games.adder:app"), root) == "games.adder:app"
    assert source_files.container_address(parse_target("crafter"), root) == "crafter"


WORDS = st.text("abcdefghij_-0123456789", min_size=1, max_size=8)


@given(before=st.lists(WORDS, max_size=3), dotted=WORDS, after=st.lists(WORDS, max_size=3))
def test_whatever_lies_in_or_is_a_dot_entry_is_private(before: list[str], dotted: str, after: list[str]) -> None:
    assert source_files.is_private("/".join([*before, f".{dotted}", *after]))


@given(stem=WORDS, suffix=st.sampled_from([".env", ".pem", ".key", ".p12", ".ENV", ".Pem"]))
def test_key_files_are_private_in_any_case(stem: str, suffix: str) -> None:
    assert source_files.is_private(f"data/{stem}{suffix}")


@given(stem=st.sampled_from(["secrets", "credentials", "api_keys", "keys", "app", "rules"]))
def test_python_modules_travel_whatever_they_are_called(stem: str) -> None:
    assert not source_files.is_private(f"{stem}.py")
    assert source_files.is_private(f".{stem}.py")


@pytest.mark.parametrize("name", ["train.jsonl", "words/keyboard.txt", "secret_words.txt", "environment.json"])
def test_ordinary_data_travels(name: str) -> None:
    assert not source_files.is_private(name)


@pytest.fixture
def author(tmp_path: Path) -> Path:
    """An author's folder as they are: the app, its data, and what must stay."""
    (tmp_path / "app.py").write_text("")
    (tmp_path / "notes.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("{}\n")
    (tmp_path / ".env").write_text("ENVIRONMENT_API_KEY=canary")
    (tmp_path / "data" / "innocent.txt").symlink_to(tmp_path / ".env")
    (tmp_path / "tokens.json").write_text("canary")
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.mkdir()
    (elsewhere / "outside.txt").write_text("canary")
    (tmp_path / "data" / "outside.txt").symlink_to(elsewhere / "outside.txt")
    (tmp_path / "data" / "folder").symlink_to(elsewhere)
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text("canary")
    (tmp_path / "data" / "harmless.txt").symlink_to(tmp_path / ".docker" / "config.json")
    return tmp_path


def test_of_an_authors_folder_only_the_named_files_travel(author: Path) -> None:
    (own,) = source_files.trees(parse_target("app.py"), beside=author, data_files=["data/train.jsonl"])
    assert own == source_files.FileSet(author, "task_app", ("app.py", "data/train.jsonl"))


def test_modules_beside_the_file_travel_when_it_imports_them(author: Path) -> None:
    (author / "app.py").write_text("import os, rules\nfrom levels.first import MAP\nimport broken\n")
    (author / "rules.py").write_text("def play():\n    import words\n")
    (author / "words.py").write_text("import rules\n")
    (author / "broken.py").write_text("import (\n")
    (author / "levels").mkdir()
    for name in ("__init__.py", "first.py", "map.pem"):
        (author / "levels" / name).write_text("")
    own = source_files.trees(parse_target("app.py"), beside=author)[0]
    assert own.files == ("app.py", "broken.py", "levels/__init__.py", "levels/first.py", "rules.py", "words.py")


def test_a_folder_of_modules_without_an_init_file_travels_when_it_is_imported(author: Path) -> None:
    (author / "app.py").write_text("import levels.first\nimport yaml\n")
    for name in (
        "levels/deep/first.py",
        "levels/notes.txt",
        "yaml/mine.py",
    ):  # an installed package comes before a folder
        (author / name).parent.mkdir(parents=True, exist_ok=True)
        (author / name).write_text("")
    own = source_files.trees(parse_target("app.py"), beside=author)[0]
    assert own.files == ("app.py", "levels/deep/first.py")


@pytest.mark.parametrize("target", ["{elsewhere}/mod.py", "{elsewhere}/package", ".env"])
def test_a_module_that_leads_out_of_the_folder_or_to_a_private_file_stays(author: Path, target: str) -> None:
    elsewhere = author.with_name(f"{author.name}-elsewhere")
    (elsewhere / "mod.py").write_text("")
    (elsewhere / "package").mkdir()
    (elsewhere / "package" / "__init__.py").write_text("")
    (author / "app.py").write_text("import helper\n")
    name = "helper" if target.endswith("package") else "helper.py"
    (author / name).symlink_to(target.format(elsewhere=elsewhere))
    with pytest.raises(ConfigError):
        source_files.trees(parse_target("app.py"), beside=author)


def test_a_file_that_is_a_link_is_the_one_that_it_leads_to(
    author: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As `serve` imports it, and as Python runs a script: what it imports and reads lies beside the real file."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "linked.py").symlink_to(author / "app.py")
    target = source_files.resolve("linked.py:app", beside=mine)
    assert target == f"{author / 'app.py'}:app"
    assert source_files.trees(parse_target(target), beside=mine)[0].local_dir == author


def test_a_file_in_a_package_brings_the_packages_source(author: Path) -> None:
    (author / "__init__.py").write_text("")
    own = source_files.trees(parse_target("app.py"), beside=author)[0]
    assert own.files == ("__init__.py", "app.py", "notes.py")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("data", "directory"),
        (".", "directory"),
        ("../app.py", "relative"),
        ("/etc/hostname", "relative"),
        ("data/test.jsonl", "does not exist"),
        (".env", "private"),
        ("data/innocent.txt", "private"),
        ("data/harmless.txt", "private"),
        ("data/outside.txt", "link"),
        ("data/folder/outside.txt", "link"),
        ("tokens.json", "private"),
    ],
)
def test_a_data_file_that_must_not_or_cannot_travel_is_refused(author: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        source_files.trees(parse_target("app.py"), beside=author, data_files=[name])
    assert "canary" not in str(caught.value)


def test_the_kits_own_files_are_every_module_and_nothing_private() -> None:
    files = [inside for _, inside in source_files.kit_files()]
    modules = {path.relative_to(source_files.KIT_DIR.parent).as_posix() for path in source_files.KIT_DIR.rglob("*.py")}
    assert modules <= set(files)
    assert files == sorted(files)
    assert not [name for name in files if source_files.is_private(name) or name.endswith(".pyc")]


def test_a_folder_with_an_app_file_is_that_file_unless_the_name_is_bundled(author: Path) -> None:
    for name in ("your-task-id", "crafter"):
        (author / name).mkdir()
        (author / name / "app.py").write_text("")
    assert source_files.resolve("your-task-id", beside=author) == "your-task-id/app.py"
    assert source_files.resolve("your-task-id/:app", beside=author) == "your-task-id/app.py:app"
    assert source_files.resolve("crafter", beside=author) == "crafter"
    assert source_files.resolve(".", beside=author) == "./app.py"
    for text in ("app.py", "app.py:app", "games.adder:app", "no-such-environment"):
        assert source_files.resolve(text, beside=author / "data") == text


def test_imports_inside_functions_are_found_and_guarded_ones_left_to_the_author(author: Path) -> None:
    (author / "app.py").write_text(
        "import os\n"
        "def play():\n"
        "    import matplotlib.pyplot\n"
        "    try:\n        import maybe\n    except ImportError: pass\n"
        "    from numpy import random\n"
        "class A:\n    async def b(self):\n        from . import c\n        import zlib, torch.nn\n"
    )
    found = source_files.lazy_imports(author / "app.py")
    assert found == [("matplotlib", 3), ("numpy", 7), ("zlib", 11), ("torch", 11)]
    (author / "app.py").write_text("import (\n")
    assert source_files.lazy_imports(author / "app.py") == []


def test_of_a_package_the_source_travels_and_links_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_games"
    (package / "sub").mkdir(parents=True)
    for name in ("__init__.py", "sub/__init__.py", "sub/secrets.py", "prod.env", "notes.txt", "words.txt"):
        (package / name).write_text("")
    (tmp_path / "elsewhere.py").write_text("")
    (package / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    monkeypatch.syspath_prepend(tmp_path)
    own = source_files.trees(parse_target("my_games.sub:app"), beside=tmp_path, data_files=["words.txt"])[0]
    assert own == source_files.FileSet(
        package, "my_games", ("__init__.py", "sub/__init__.py", "sub/secrets.py", "words.txt")
    )


@pytest.mark.parametrize("target", ["missing.py", "no_such_module_here:app", "sys:app", "no-such-environment"])
def test_an_app_that_is_not_there_is_named(target: str, tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=target.partition(":")[0]):
        source_files.trees(parse_target(target), beside=tmp_path)

"""What an app says it needs: a block in its file, a pyproject.toml, or the metadata of its package."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.deploy.modal.declared_requirements import python_version, read_needs
from taskapp_kit.deploy.packaging.source_files import parse_target
from taskapp_kit.errors import ConfigError

BLOCK = '''"""An app."""
# /// script
# requires-python = ">=3.12"
# dependencies = [
#   "taskapp-kit[math,modal]",
#   "nltk>=3.9",
# ]
#
# [tool.taskapp.modal]
# cpu = 2
# store = "none"
# volumes = { "/data" = "words" }
# ///
import nltk
'''

PROJECT = """[project]
name = "mine"
dependencies = ["taskapp-kit", "numpy"]
requires-python = ">=3.11,<3.14"

[tool.taskapp.modal]
app_name = "mine"
max_containers = 3
"""


def needs(folder: Path, name: str = "app.py"):  # type: ignore[no-untyped-def]
    return read_needs(parse_target(name), beside=folder)


def test_a_block_in_the_file_says_it_all(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BLOCK)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = needs(tmp_path)
    assert found.dependencies == ("nltk>=3.9",)
    assert found.extras == ("math",)  # the client of Modal is there anyway
    assert found.requires_python == ">=3.12"
    assert found.settings.said() == {"cpu": 2, "store": "none", "volumes": {"/data": "words"}}
    assert found.where_to_declare("spacy") == 'Add "spacy" to `dependencies` in the `# /// script` block in app.py.'


@pytest.mark.parametrize("where", [".", "src/mine"])
def test_else_the_nearest_pyproject_does(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    (tmp_path / where / "app.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = needs(tmp_path / where)
    assert found.dependencies == ("numpy",)
    assert found.settings.said() == {"app_name": "mine", "max_containers": 3}
    assert found.source == tmp_path / "pyproject.toml"


def test_what_lies_above_a_repository_is_anothers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "mine" / ".git").mkdir(parents=True)
    (tmp_path / "mine" / "app.py").write_text("")
    found = needs(tmp_path / "mine")
    assert found.source is None and found.dependencies == ()
    assert "# /// script" in found.where_to_declare("numpy")


def test_the_kits_own_pyproject_is_not_an_apps() -> None:
    from taskapp_kit.deploy.packaging.source_files import KIT_DIR

    assert needs(KIT_DIR.parent / "examples", "adder.py").source is None


def test_a_bundled_environment_needs_nothing_said(tmp_path: Path) -> None:
    assert needs(tmp_path, "crafter").dependencies == ()


def test_an_installed_package_says_it_in_its_metadata() -> None:
    found = needs(Path(), "httpx:app")  # any package that is installed from a wheel
    assert {line.partition(">")[0].partition("=")[0] for line in found.dependencies} >= {"anyio", "httpcore", "idna"}
    assert not [line for line in found.dependencies if "extra" in line]


def test_every_problem_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        '"""An app."""\n\n# /// script\n# dependencies = "numpy"\n# [tool.taskapp.modal]\n# timeout = 5\n# cpus = 2\n'
        '# store = "sqlite"\n# memory_mib = "1 GB"\n# extra_packages = ["numpy"]\n# ///\n'
    )
    with pytest.raises(ConfigError) as caught:
        needs(tmp_path)
    told = str(caught.value)
    assert "has 6 problems" in told
    assert "line 4: `dependencies` must be a list" in told
    assert "line 6: the setting 'timeout' is unknown; write timeout_seconds." in told
    assert "line 7: the setting 'cpus' is unknown; did you mean 'cpu'?" in told
    assert 'line 8: store is invalid; expected "postgres-secret" or "none".' in told
    assert "line 9: memory_mib is invalid" in told
    assert "line 10: the setting 'extra_packages' is unknown; write `dependencies`." in told


def test_what_is_no_toml_is_told_with_its_line_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('"""An app."""\n\n# /// script\n# dependencies = [\n# = 1\n# ]\n# ///\n')
    with pytest.raises(ConfigError, match="line 5"):
        needs(tmp_path)


def test_two_blocks_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BLOCK + BLOCK)
    with pytest.raises(ConfigError, match="2 `# /// script`"):
        needs(tmp_path)


@pytest.mark.parametrize(
    ("requires", "here", "chosen"),
    [
        ("", (3, 11), "3.11"),
        (">=3.11", (3, 13), "3.13"),
        (">=3.12", (3, 11), "3.12"),
        ("<3.12", (3, 13), "3.11"),
        ("==3.12.*", (3, 11), "3.12"),
        ("~=3.12.1", (3, 14), "3.12"),
        (">=3.11,!=3.11.*", (3, 11), "3.12"),
        ("", (3, 99), "3.11"),
    ],
)
def test_the_container_has_the_python_that_deploys_when_the_app_allows_it(
    requires: str, here: tuple[int, int], chosen: str
) -> None:
    assert python_version(requires, here) == chosen


def test_a_python_that_no_container_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="'<3.11'"):
        python_version("<3.11", (3, 11))


@given(st.text("# /scriptdependencies=[]\"'\n.toolkmda1", max_size=300))
def test_whatever_a_file_says_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(f"# /// script\n{text}\n# ///\n")
        Path(folder, ".git").mkdir()
        with contextlib.suppress(ConfigError):
            needs(Path(folder))


def test_a_dependency_that_is_none_is_told_with_its_line_and_never_repeated(tmp_path: Path) -> None:
    lines = ["# /// script", "# dependencies = [", '#   "nltk",', '#   "--index-url https://canary@x.example",', "# ]"]
    (tmp_path / "app.py").write_text("\n".join([*lines, "# ///", ""]))
    with pytest.raises(ConfigError, match="line 4: ") as caught:
        needs(tmp_path)
    assert "canary" not in str(caught.value)


def test_a_pyproject_where_everybody_may_write_is_nobodys(tmp_path: Path) -> None:
    """Somebody else's /tmp/pyproject.toml says nothing of an app in /tmp/mine."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert needs(tmp_path / "mine").dependencies == ("numpy",)
    tmp_path.chmod(0o1777)
    assert needs(tmp_path / "mine").source is None
    (tmp_path / "mine" / "pyproject.toml").write_text(PROJECT)
    assert needs(tmp_path / "mine").dependencies == ("numpy",)

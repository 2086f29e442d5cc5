from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.cli.env_file import merged, write
from taskapp_kit.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    write(tmp_path / ".env", {"A": "1"})
    assert (tmp_path / ".env").read_text() == "A=1\n"
    assert mode(tmp_path / ".env") == 0o600


def test_a_file_that_others_could_read_is_closed_and_keeps_its_other_lines(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# mine\nexport A=old\n\nB=2\nA=older\n")
    path.chmod(0o644)
    write(path, {"A": "new", "C": "3"})
    assert path.read_text() == "# mine\nA=new\n\nB=2\nC=3\n"
    assert mode(path) == 0o600
    assert [item.name for item in tmp_path.iterdir()] == [".env"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("A=1\n")
    (tmp_path / ".env").symlink_to("real")
    write(tmp_path / ".env", {"A": "2"})
    assert (tmp_path / ".env").is_symlink()
    assert (tmp_path / "real").read_text() == "A=2\n"


@pytest.mark.parametrize("value", ["a\nB=1", "it's", "\x00"])
def test_a_value_that_would_break_the_file_is_refused_without_being_told(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError) as told:
        write(tmp_path / ".env", {"A": value})
    assert "A" in str(told.value)
    assert value not in str(told.value)
    assert not (tmp_path / ".env").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--file"):
        write(tmp_path / "none" / ".env", {"A": "1"})


ODD = """\ufeff# a comment\r
export OLD=1\r
\r
SYNTH_API_KEY="$OTHER and ${HOME}"\r
TEXT="first
ENVIRONMENT_API_KEY=not-a-setting
last"
  ENVIRONMENT_API_KEY = 'a b'  # why
no setting at all
SYNTH_API_KEY=twice
LINE=a\u2028b\x0cc
LAST=1"""


def test_an_odd_file_keeps_all_that_is_not_set(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(ODD.encode())
    write(path, {"SYNTH_API_KEY": "new", "ENVIRONMENT_API_KEY": "a$b", "MORE": "x"})
    assert path.read_bytes().decode() == (
        '# a comment\nexport OLD=1\n\nSYNTH_API_KEY=new\nTEXT="first\nENVIRONMENT_API_KEY=not-a-setting\nlast"\n'
        "ENVIRONMENT_API_KEY='a$b'\nno setting at all\nLINE=a\u2028b\x0cc\nLAST=1\nMORE=x\n"
    )


@pytest.mark.process
def test_nothing_is_left_of_an_attempt_that_failed(tmp_path: Path) -> None:
    """A file that cannot be replaced: the keys must not stay in another one."""
    (tmp_path / ".env").mkdir()
    with pytest.raises(ConfigError, match="--file"):
        write(tmp_path / ".env", {"A": "1"})
    (tmp_path / "full.env").write_text("A=0\n")
    code = (
        "import resource, sys; from pathlib import Path; from taskapp_kit.cli.env_file import write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write(Path(sys.argv[1]), {'A': 'secret' * 2000})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "full.env")], capture_output=True, text=True, check=False
    )
    assert "ConfigError" in done.stderr
    assert "secret" not in done.stderr.replace("'secret' * 2000", "")
    assert (tmp_path / "full.env").read_text() == "A=0\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == [".env", "full.env"]


VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="'"), max_size=30)


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), VALUES, max_size=6))
def test_what_was_written_is_read_again(values: dict[str, str]) -> None:
    from io import StringIO

    text = merged("# a comment\nOLD=1\n", values)
    assert dict(dotenv_values(stream=StringIO(text), interpolate=False)) == {"OLD": "1"} | values


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), VALUES, max_size=6))
def test_writing_twice_changes_nothing(values: dict[str, str]) -> None:
    once = merged("", values)
    assert merged(once, values) == once

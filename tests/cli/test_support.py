"""What is supported and how far: the table of levels, where it is shown, and systems that are not supported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from taskapp_kit.cli.main import GROUPS
from taskapp_kit.cli.support import PROMISES, SUPPORT, level_of
from taskapp_kit.interop.protocols import protocol_names

from .conftest import ROOT, Run, clean_environ


def names(kind: str) -> list[str]:
    return [name for listed in SUPPORT[kind].values() for name in listed.split(", ")]


def test_every_command_extra_and_protocol_has_one_level() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    commands = [name for listed in GROUPS.values() for name in listed]
    assert sorted(name for name in names("commands") if " " not in name) == sorted(commands)
    assert sorted(names("extras")) == sorted(set(extras) - {"all", "dev"})
    assert set(names("protocols")) - set(protocol_names()) == {"HTTP contract", "sessions"}


@pytest.mark.parametrize(
    ("command", "level"),
    [("eval", "stable"), ("view", "beta"), ("deploy", "experimental"), ("keys", "stable"), ("keys upload", "beta")],
)
def test_help_states_the_level_of_a_command(run: Run, command: str, level: str) -> None:
    assert f"Support level: {level}." in run(*command.split(), "--help", status=0).stdout


def test_help_marks_the_commands_that_are_not_stable(run: Run) -> None:
    lines = re.sub(r"\n {9,}", " ", run("--help", status=0).stdout)
    marks = dict(re.findall(r"^  (\S+) .*\((beta|experimental)\)$", lines, re.MULTILINE))
    commands = [name for name in names("commands") if " " not in name]
    assert marks == {name: level_of(name) for name in commands if level_of(name) != "stable"}


def test_info_without_an_app_lists_the_levels(run: Run) -> None:
    printed = run("info", width=200, status=0).stdout
    assert all(name in printed for name in [*names("extras"), *names("protocols"), *PROMISES])
    listed = json.loads(run("info", "--json", status=0).stdout)
    assert listed["levels"] == PROMISES
    assert listed["extras"]["stable"] == SUPPORT["extras"]["stable"].split(", ")


@pytest.mark.process
@pytest.mark.parametrize("missing", ["fcntl", "resource"])
def test_a_command_on_windows_ends_with_one_sentence_and_status_3(tmp_path: Path, missing: str) -> None:
    # some Pythons have these modules built in, so no file on the path can stand for a missing one
    program = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['serve', 'crafter']\n"
        "runpy.run_module('taskapp_kit', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environ(),
        cwd=tmp_path,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (3, "", 1)
    assert "WSL" in ended.stderr

"""Folders of others: nothing outside them is read, and nothing that blocks."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.directory import CONFIG, DATABASE, RESULTS, read_config
from taskapp_kit.system.foreign_files import ForeignFileRefused, files_inside, inside, read_inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder-2").mkdir()
    (tmp_path / "folder-2" / "a").write_text("secret")
    made = tmp_path / "folder"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "a").write_text("text")
    (made / "link").symlink_to("deep")
    return made


@pytest.mark.parametrize("target", ["../secret", "deep/../../secret", "/proc/self/environ", "../folder-2/a", ".", ""])
def test_file_outside_the_directory_is_rejected_with_its_path(target: str, folder: Path) -> None:
    (folder / "odd").symlink_to(target) if target else os.mkfifo(folder / "odd")
    with pytest.raises(ForeignFileRefused) as refused:
        read_inside(folder, "odd", 100)
    assert refused.value.filename == "odd"
    with pytest.raises(OSError):
        files_inside(folder, 100)


def test_sockets_are_refused_and_folders_that_lead_out(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        with pytest.raises(ForeignFileRefused):
            inside(folder, "socket")
    (folder / "socket").unlink()
    (folder / "out").symlink_to("../folder-2")
    for read in (lambda: read_inside(folder, "out/a", 100), lambda: files_inside(folder, 100)):
        with pytest.raises(ForeignFileRefused):
            read()


def test_files_within_are_read_up_to_their_bounds(folder: Path) -> None:
    assert files_inside(folder, 4) == ["deep/a", "link/a"]
    assert read_inside(folder, "link/a", 4) == b"text"
    with pytest.raises(ForeignFileRefused):
        read_inside(folder, "link/a", 3)
    with pytest.raises(ForeignFileRefused):
        files_inside(folder, 3)


@pytest.mark.parametrize("name", [CONFIG, RESULTS, DATABASE, f"{DATABASE}-wal"])
def test_an_evaluation_whose_files_lead_out_is_refused(name: str, folder: Path) -> None:
    (folder / CONFIG).write_text(
        '{"format": "taskapp-eval", "schema_version": 1, "asked": {"policies": {}}, "eval_id": "e"}'
    )
    assert read_config(folder)["eval_id"] == "e"
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../secret")
    with pytest.raises(ConfigError):
        read_config(folder)


def test_a_folder_that_is_replaced_before_the_file_is_opened_shows_nothing_else(folder: Path) -> None:
    armed = True

    def replace(event: str, args: tuple[object, ...]) -> None:
        nonlocal armed
        if armed and event == "open" and str(args[0]).startswith(str(folder)):
            armed = False
            (folder / "deep").rename(folder / "moved")
            (folder / "deep").symlink_to("../folder-2")

    sys.addaudithook(replace)  # called between the check and the opening
    with pytest.raises(ForeignFileRefused):
        read_inside(folder, "deep/a", 100)
    assert not armed

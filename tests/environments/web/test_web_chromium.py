"""Which browser is found: the variable's, Debian's shell, the PATH's, playwright's own, in that order."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.web.chromium import find
from taskapp_kit.errors import Unavailable


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    return {
        "variable": program(tmp_path / "mine" / "browser"),
        "shell": program(tmp_path / "lib" / "chromium-headless-shell"),
        "path": program(tmp_path / "bin" / "chromium"),
        "playwright": program(tmp_path / "cache" / "headless_shell"),
    }


def found(places: dict[str, Path], **absent: bool) -> str:
    """The name of the place that is used where some are absent."""
    environ = {"PATH": str(places["path"].parent)}
    if not absent.get("variable"):
        environ["TASKAPP_CHROMIUM"] = str(places["variable"])
    for name in absent:
        places[name].unlink(missing_ok=True)
    result = find(environ, places["shell"], str(places["playwright"]))
    return next(name for name, path in places.items() if path == result)


def test_the_variable_comes_first_then_debians_shell_the_path_and_playwrights_own(places: dict[str, Path]) -> None:
    order = ["variable", "shell", "path", "playwright"]
    assert [found(places, **dict.fromkeys(order[:place], True)) for place in range(4)] == order


def test_file_that_is_not_executable_is_skipped(places: dict[str, Path]) -> None:
    places["shell"].chmod(0o644)
    assert found(places, variable=True) == "path"


def test_the_error_lists_what_was_tried_and_what_to_install(places: dict[str, Path]) -> None:
    with pytest.raises(Unavailable) as error:
        found(places, variable=True, shell=True, path=True, playwright=True)
    for part in (
        "TASKAPP_CHROMIUM is not set",
        str(places["shell"]),
        "on the PATH",
        str(places["playwright"]),
        "apt-get install chromium-headless-shell",
        "playwright install",
    ):
        assert part in str(error.value)


def test_a_variable_that_names_no_program_is_an_error_and_nothing_else_is_tried(places: dict[str, Path]) -> None:
    places["variable"].unlink()
    with pytest.raises(Unavailable, match=rf"TASKAPP_CHROMIUM is set to {places['variable']}"):
        find({"TASKAPP_CHROMIUM": str(places["variable"])}, places["shell"], None)


def test_an_empty_variable_is_as_if_it_were_not_set(places: dict[str, Path]) -> None:
    assert find({"TASKAPP_CHROMIUM": "", "PATH": ""}, places["shell"], None) == places["shell"]


def test_error_mentions_that_playwright_has_no_path(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="playwright has none \\(no path\\)"):
        find({"PATH": ""}, tmp_path / "none", None)

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.cli.author.init import templates
from taskapp_kit.declare.discovery import bundled_apps
from tests.cli.conftest import Run


def test_list_names_every_bundled_app_and_template(run_at_terminal: Run) -> None:
    shown = run_at_terminal("list", width=80, status=0)
    for item in (*bundled_apps(), *templates()):
        line = next(line for line in shown.stdout.splitlines() if line.split()[:1] == [item.name])
        assert item.summary.split()[0] in line
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_list_as_json(run: Run) -> None:
    told = json.loads(run("list", "--json").stdout)
    assert [item["name"] for item in told["apps"]] == [item.name for item in bundled_apps()]
    assert [item["name"] for item in told["templates"]] == [item.name for item in templates()]
    assert set(told) == {"apps", "plugins", "templates"}


@pytest.mark.process
def test_an_extra_that_is_missing_is_said(tmp_path: Path) -> None:
    """Metadata of the kit that stands first on the path names a package that nobody has."""
    info = tmp_path / "taskapp_kit-0.0.0.dist-info"
    info.mkdir()
    needs = "Requires-Dist: no-such-package-anywhere>=1; extra == 'crafter'"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: taskapp-kit\nVersion: 0.0.0\n{needs}\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120"}
    for args in (["list"], ["info", "crafter"]):
        done = subprocess.run(
            [sys.executable, "-m", "taskapp_kit", *args], cwd=tmp_path, env=environ, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        assert "taskapp-kit[crafter]" in done.stdout

from __future__ import annotations

import json

from taskapp_kit.cli.template import templates
from taskapp_kit.declare.discovery import bundled_apps

from .conftest import Run


def test_list_names_every_bundled_app_and_template(run_at_terminal: Run) -> None:
    shown = run_at_terminal("list", width=80)
    assert shown.exit_code == 0
    for item in (*bundled_apps(), *templates()):
        line = next(line for line in shown.stdout.splitlines() if line.split()[:1] == [item.name])
        assert item.summary.split()[0] in line
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_list_as_json(run: Run) -> None:
    told = json.loads(run("list", "--json").stdout)
    assert [item["name"] for item in told["apps"]] == [item.name for item in bundled_apps()]
    assert [item["name"] for item in told["templates"]] == [item.name for item in templates()]
    assert set(told) == {"apps", "plugins", "templates"}

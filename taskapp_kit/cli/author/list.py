"""`taskapp list`: list apps, plugins and templates."""

from __future__ import annotations

from importlib import metadata

import click

from taskapp_kit.cli.author.init import templates
from taskapp_kit.cli.options import json_option
from taskapp_kit.cli.output.terminal import console, example, print_json, table
from taskapp_kit.declare.discovery import PLUGIN_GROUP, bundled_apps, missing_extra


@click.command(epilog=example("taskapp list", "taskapp list --json"))
@json_option()
def command(as_json: bool) -> None:
    """List the bundled apps, the installed plugins and the templates."""
    listed: dict[str, list[dict[str, str | None]]] = {
        "apps": [
            {"name": item.name, "summary": item.summary, "missing": missing_extra(item.name)} for item in bundled_apps()
        ],
        "plugins": [
            {"name": point.name, "summary": point.value}
            for point in sorted(metadata.entry_points(group=PLUGIN_GROUP), key=lambda point: point.name)
        ],
        "templates": [
            {"name": item.name, "summary": item.summary, "missing": missing_extra(item.name)} for item in templates()
        ],
    }
    if as_json:
        print_json(listed)
        return
    out = console()
    nothing = {"plugins": f"none installed (entry-point group {PLUGIN_GROUP})"}
    usage = {"apps": "taskapp info APP", "templates": "taskapp init NAME --template T"}
    width = max((len(str(item["name"])) for items in listed.values() for item in items), default=8)
    for kind, items in listed.items():
        out.print(kind.capitalize(), style="bold", end="")
        out.print(f"  ({usage[kind]})" if items and kind in usage else "", style="dim")
        rows = table("", "")
        rows.columns[0].min_width = width + 2
        for item in items:
            rows.add_row(f"  {item['name']}", str(item["summary"]))
            if item.get("missing"):
                rows.add_row("", str(item["missing"]), style="yellow")
        if items:
            out.print(rows)
        else:
            out.print(f"  {nothing.get(kind, 'none')}", style="dim")
        if kind != "templates":
            out.print()

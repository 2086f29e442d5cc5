"""The table of names in docs/connect/trainers.md: what stands on our side is there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/connect/trainers.md"


def ours() -> list[str]:
    """Every dotted name of ours in the table; `.name` stands in the module of the name before it."""
    found: list[str] = []
    for row in re.findall(r"^\| `?synth_ai.*\|(.*)\|$|^\| `setup.*\|(.*)\|$", PAGE.read_text(), re.M):
        for name in re.findall(r"`([\w.]+)`", row[0] or row[1]):
            if name.startswith("."):
                name = found[-1].rpartition(".")[0] + name
            if name.startswith("taskapp_kit."):
                found.append(name)
    return found


def test_every_name_of_ours_is_there() -> None:
    names = ours()
    assert len(names) >= 12
    for name in names:
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                value = import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            for part in parts[cut:]:
                value = getattr(value, part)
            break
        assert value is not None, name

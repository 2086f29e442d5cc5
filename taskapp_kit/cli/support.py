"""The support level of each command, extra, protocol and part: one table, shown by `--help`, `taskapp info` and the docs."""

from __future__ import annotations

import copy
from inspect import cleandoc
from typing import Literal

import click

Level = Literal["stable", "beta", "experimental"]

PROMISES: dict[Level, str] = {
    "stable": "The test suite runs it on every change. Options, formats and output change only with a note in the changelog.",
    "beta": "It works, and tests run it with real programs or local servers. Options and output may change in any release.",
    "experimental": "It has never run on the real hardware, service or system, because the tests had no access to them.",
}
"""What each level promises."""

SUPPORT: dict[str, dict[Level, str]] = {
    "commands": {
        "stable": "init, list, info, doctor, mock-model, serve, rollout, keys, eval, show, compare, store",
        "beta": "play, judge, mcp, keys upload, view, rescore, replay, export, generate, train, jobs, models, backend, setup",
        "experimental": "modal-serve, deploy",
    },
    "extras": {
        "stable": "crafter, math, test",
        "beta": "gymnasium, inspect, jobs, mcp, miniwob, otel, parquet, postgres, ray, reasoning-gym, textarena, train, "
        "verifiers, web",
        "experimental": "modal",
    },
    "protocols": {"stable": "HTTP contract", "beta": "sessions, mcp, nemo, openenv, ors"},
    "other parts": {
        "stable": "store in SQLite, mock model",
        "beta": "viewer, judges, local trainer on CPUs",
        "experimental": "training on GPUs, Ray on several machines, tunnels of real providers, hosted models, "
        "hosted backends, macOS",
    },
}
"""The parts of each kind by level. A subcommand is listed only if its level differs from its command's level."""


def level_of(command: str) -> Level:
    """Return the support level of a command, or of a subcommand such as `keys upload`."""
    levels = {name: level for level, names in SUPPORT["commands"].items() for name in names.split(", ")}
    return levels.get(command) or levels[command.partition(" ")[0]]


def marked(command: str, summary: str) -> str:
    """Return a command's summary. If the command is not stable, its support level is appended."""
    level = level_of(command)
    return summary if level == "stable" else f"{summary} ({level})"


def with_level(name: str, command: click.Command) -> click.Command:
    """Return a copy of a command. Its help and the help of its subcommands end with the support level."""
    shown = copy.copy(command)
    shown.help = f"{cleandoc(command.help or '')}\n\nSupport level: {level_of(name)}."
    if isinstance(command, click.Group) and isinstance(shown, click.Group):
        shown.commands = {below: with_level(f"{name} {below}", inner) for below, inner in command.commands.items()}
    return shown

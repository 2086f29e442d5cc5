"""`taskapp check`: the command `taskapp doctor` under its shorter name."""

from __future__ import annotations

from taskapp_kit.cli.doctor import command

__all__ = ["command"]

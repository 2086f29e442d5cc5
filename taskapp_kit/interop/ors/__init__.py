"""The Open Reward Standard: apps served with the ORS protocol, and environments on ORS servers in apps."""

from __future__ import annotations

from taskapp_kit.interop.ors.importer import from_ors

__all__ = ["from_ors"]

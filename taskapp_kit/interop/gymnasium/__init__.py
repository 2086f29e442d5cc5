"""Gymnasium: its environments as ours, and apps as its environments."""

from __future__ import annotations

from taskapp_kit.interop.gymnasium.importer import from_gymnasium

__all__ = ["from_gymnasium"]

"""Gymnasium: Gymnasium environments in apps, and apps as Gymnasium environments."""

from __future__ import annotations

from taskapp_kit.interop.gymnasium.importer import from_gymnasium

__all__ = ["from_gymnasium"]

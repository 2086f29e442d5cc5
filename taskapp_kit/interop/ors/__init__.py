"""The Open Reward Standard: apps served in its protocol, and environments at its servers as ours."""

from __future__ import annotations

from taskapp_kit.interop.ors.importer import from_ors

__all__ = ["from_ors"]

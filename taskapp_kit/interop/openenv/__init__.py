"""OpenEnv: apps served in its protocol, and environments at its servers as ours."""

from __future__ import annotations

from taskapp_kit.interop.openenv.importer import from_openenv

__all__ = ["from_openenv"]

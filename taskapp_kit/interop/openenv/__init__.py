"""OpenEnv: apps served with OpenEnv's protocol, and environments on OpenEnv servers in apps."""

from __future__ import annotations

from taskapp_kit.interop.openenv.importer import from_openenv

__all__ = ["from_openenv"]

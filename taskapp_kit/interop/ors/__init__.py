"""The Open Reward Standard (ORS): serves apps with its protocol, and lets apps use environments of ORS servers."""

from __future__ import annotations

from taskapp_kit.interop.ors.importer import from_ors

__all__ = ["from_ors"]

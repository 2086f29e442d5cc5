"""verifiers: its environments as ours, and apps as its packages."""

from __future__ import annotations

from taskapp_kit.interop.verifiers.importer import from_verifiers

__all__ = ["from_verifiers"]

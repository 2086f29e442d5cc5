"""verifiers: lets apps use environments of verifiers, and lets verifiers use apps as its environments."""

from __future__ import annotations

from taskapp_kit.interop.verifiers.importer import from_verifiers

__all__ = ["from_verifiers"]

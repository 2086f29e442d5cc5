"""verifiers: environments of verifiers in apps, and apps as packages for verifiers."""

from __future__ import annotations

from taskapp_kit.interop.verifiers.importer import from_verifiers

__all__ = ["from_verifiers"]

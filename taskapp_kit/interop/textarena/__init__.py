"""TextArena: TextArena's games as environments."""

from __future__ import annotations

from taskapp_kit.interop.textarena.importer import from_textarena

__all__ = ["from_textarena"]

"""Harbor: tasks in Harbor's format as environments."""

from __future__ import annotations

from taskapp_kit.interop.harbor.importer import HarborRow, from_harbor

__all__ = ["HarborRow", "from_harbor"]

"""Programs that call a model themselves, as agents of task apps."""

from __future__ import annotations

from taskapp_kit.interop.programs.program import from_program

__all__ = ["from_program"]

"""All kinds of tasks, by name."""

from __future__ import annotations

from .kind import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kinds in () for kind in kinds}

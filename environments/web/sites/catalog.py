"""All kinds of tasks, by name."""

from __future__ import annotations

from .kind import Kind

SITES: tuple[tuple[Kind, ...], ...] = ()

KINDS: dict[str, Kind] = {kind.name: kind for kinds in SITES for kind in kinds}

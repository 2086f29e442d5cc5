"""The kinds of tasks of the back office."""

from __future__ import annotations

from ..kind import Kind
from .adjust import SETTINGS
from .bulk import BULK
from .count import COUNT
from .edit import EDIT
from .switch import SWITCH

KINDS: tuple[Kind, ...] = (COUNT, EDIT, BULK, SETTINGS, SWITCH)

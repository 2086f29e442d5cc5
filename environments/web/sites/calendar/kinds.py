"""The kinds of tasks of the calendar."""

from __future__ import annotations

from ..kind import Kind
from .book import BOOK
from .cancel import CANCEL
from .find import FIND
from .move import MOVE

KINDS: tuple[Kind, ...] = (FIND, MOVE, BOOK, CANCEL)

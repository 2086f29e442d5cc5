"""The kinds of tasks on the mail site."""

from __future__ import annotations

from ..kind import Kind
from .kind_find import FIND
from .kind_open import OPEN
from .kind_reply import REPLY
from .kind_sort import SORT
from .kind_ticket import TICKET

KINDS: tuple[Kind, ...] = (FIND, REPLY, TICKET, SORT, OPEN)

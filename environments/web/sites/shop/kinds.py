"""The kinds of tasks of the shop."""

from __future__ import annotations

from ..kind import Kind
from .cancel import CANCEL
from .constraints import CONSTRAINTS
from .order import ORDER
from .price import PRICE

KINDS: tuple[Kind, ...] = (PRICE, ORDER, CONSTRAINTS, CANCEL)

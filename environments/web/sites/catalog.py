"""All kinds of tasks, by name."""

from __future__ import annotations

from .admin.kinds import KINDS as ADMIN
from .calendar.kinds import KINDS as CALENDAR
from .kind import Kind
from .mail.kinds import KINDS as MAIL
from .shop.kinds import KINDS as SHOP

KINDS: dict[str, Kind] = {kind.name: kind for kinds in (ADMIN, CALENDAR, MAIL, SHOP) for kind in kinds}

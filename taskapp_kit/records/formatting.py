"""Counts, amounts and shortened text, the same in every output."""

from __future__ import annotations

import math
from datetime import UTC, datetime

LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def counted(many: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{many} {word}{'' if many == 1 else 's'}"


def dollars(cost: float) -> str:
    """Format US dollars: `$1,234.50`, `$0.0123`, `$0.000045`, `$0`. Below a dollar, 4 decimals or 2 significant digits."""
    if cost >= 1:
        return f"${cost:,.2f}"
    if cost <= 0:
        return "$0"
    return f"${cost:.4f}" if cost >= 0.001 else f"${cost:.{1 - math.floor(math.log10(cost))}f}"


def cut(text: str, most: int) -> str:
    """Return the text, shortened to `most` characters with an ellipsis at the end. most: at least 1."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def utc_time(seconds: float) -> datetime:
    """Return the time in UTC, limited to the dates that Python supports (a store from elsewhere may have any number)."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_SECOND), UTC)

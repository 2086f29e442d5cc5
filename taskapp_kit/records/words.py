"""Counts, amounts and text that is cut, the same in every output."""

from __future__ import annotations

import math
from datetime import UTC, datetime

LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def counted(many: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{many} {word}{'' if many == 1 else 's'}"


def dollars(cost: float) -> str:
    """US dollars: `$1,234.50`, `$0.0123`, `$0.000045`, `$0`. Below one dollar four decimals, or two significant digits."""
    if cost >= 1:
        return f"${cost:,.2f}"
    if cost <= 0:
        return "$0"
    return f"${cost:.4f}" if cost >= 0.001 else f"${cost:.{1 - math.floor(math.log10(cost))}f}"


def cut(text: str, most: int) -> str:
    """The text in at most `most` characters, from 1; where some are left out, an ellipsis is the last one."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def utc_time(seconds: float) -> datetime:
    """The time in UTC; what is beyond the dates that Python knows, as a store from elsewhere may say, is the nearest one."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_SECOND), UTC)

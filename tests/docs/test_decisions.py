"""Each decision has a date and fits on a screen."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/contribute/decisions.md"
MAX_LINES = 30


def test_each_decision_is_dated_and_short() -> None:
    _, *records = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert records
    for record in records:
        title, *lines = re.split(r"^## ", record, flags=re.MULTILINE)[0].strip().splitlines()
        date, _, name = title.partition(": ")
        assert datetime.date.fromisoformat(date) and name
        assert len(lines) < MAX_LINES, title
        assert [line.split("**")[1] for line in lines if line.startswith("**")][:2] == ["Decision.", "Why."], title

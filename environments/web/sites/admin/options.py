"""The company's settings: pages, labels, options and validation."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..kind import Level
from .reading import Wrong, number

Value = str | int | bool
SECTIONS = ("Lending", "Invoices", "Notices")
"""The settings pages, in order."""


@dataclass(frozen=True)
class Setting:
    """One setting. `choices` is of radio buttons and drop-down lists, `low` and `high` of numbers."""

    key: str
    section: str
    label: str
    shape: Literal["radio", "list", "check", "number"]
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def read(self, form: Mapping[str, tuple[str, ...]]) -> Value:
        """Return the value that a form has. Raises Wrong."""
        values = form.get(self.key, ())
        if self.shape == "check":
            return bool(values)
        text = values[-1].strip() if values else ""
        if self.shape == "number":
            return number(self.label, text, self.low, self.high)
        if text not in self.choices:
            raise Wrong(f"{self.label}: choose one of the options.")
        return text

    def draw(self, random_: random.Random, other_than: Value | None = None) -> Value:
        """Return a value that it may have."""
        if self.shape == "check":
            return random_.random() < 0.5 if other_than is None else not other_than
        values: tuple[Value, ...] = self.choices or tuple(range(self.low, self.high + 1))
        return random_.choice([value for value in values if value != other_than])


def settings_of(level: Level, depots: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return the settings of a company: more pages on the higher levels."""
    rounding = ("Not rounded", "To 0.50", "To full amounts")
    lending = (
        Setting("depot", "Lending", "Default depot", "list", depots),
        Setting("week", "Lending", "Week begins on", "radio", ("Monday", "Saturday", "Sunday")),
        Setting("weekend", "Lending", "Lend machines at weekends", "check"),
        Setting("new_deposit", "Lending", "Ask new customers for a deposit", "check"),
        Setting("longest", "Lending", "Longest lending in days", "number", low=7, high=180),
    )
    invoices = (
        Setting("rounding", "Invoices", "Amounts are", "radio", rounding),
        Setting("late_fee", "Invoices", "Late fee in percent", "number", low=0, high=30),
        Setting("due", "Invoices", "Invoices are due after", "list", ("7 days", "14 days", "30 days", "60 days")),
        Setting("copy", "Invoices", "Send a copy to the accountant", "check"),
        Setting("itemise", "Invoices", "List each day on the invoice", "check"),
    )
    notices = (
        Setting("reminder", "Notices", "First reminder after", "list", ("1 day", "3 days", "5 days", "10 days")),
        Setting("channel", "Notices", "Send notices by", "radio", ("E-mail", "Letter", "Text message")),
        Setting("tell_repair", "Notices", "Tell the workshop of repairs", "check"),
        Setting("tell_overdue", "Notices", "Tell the depot of overdue contracts", "check"),
        Setting("reminders", "Notices", "Most reminders for a contract", "number", low=1, high=9),
    )
    return {"easy": lending, "medium": lending + invoices, "hard": lending + invoices + notices}[level]


def first_settings(random_: random.Random, level: Level, depots: tuple[str, ...]) -> dict[str, Value]:
    """Return the settings of a company in its first state."""
    return {setting.key: setting.draw(random_) for setting in settings_of(level, depots)}

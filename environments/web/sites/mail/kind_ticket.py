"""`mail/ticket`: find the one ticket that meets several conditions, then assign, prioritize, annotate or close it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import parse_qsl

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from . import words
from .builder import Builder
from .data import NOBODY, PRIORITIES, STATUSES, Content, Ticket, day_text
from .desk import FILTERS
from .expected import first_record
from .site import MailSite
from .steps import choice, field, next_page, page


@dataclass(frozen=True)
class Condition:
    """A field of the ticket and its value; for `opened` the day before which it was."""

    name: str
    value: str
    before: date | None = None

    def holds(self, ticket: Ticket) -> bool:
        """Return the ticket meets it."""
        if self.before is not None:
            return ticket.opened < self.before
        return bool(getattr(ticket, self.name) == self.value)

    def __str__(self) -> str:
        if self.name == "assignee" and self.value == NOBODY:
            return "it is not assigned to anybody"
        return {
            "product": "it is about the product {}",
            "status": "its status is {}",
            "priority": "its priority is {}",
            "assignee": "it is assigned to {}",
            "town": "its product was delivered to {}",
            "opened": "it was opened before {}",
        }[self.name].format(self.value)


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Not feasible: the ticket is closed, or the person is in the address book but not in the team."""
    builder = Builder(rng, level)
    why = "" if feasible else rng.choice(("closed", "stranger"))
    target = builder.ticket(status="Closed" if why == "closed" else rng.choice(("Open", "Waiting")))
    conditions = _conditions(builder, target, level, may_name_status=why != "closed")
    builder.tickets.append(target)
    for failing in conditions:
        for _ in range(1 if level == "easy" else 3 if failing.name in {"town", "opened"} else 2):
            builder.tickets.append(_near(builder, conditions, failing))
    content = builder.finish(avoid_ticket=lambda ticket: all(condition.holds(ticket) for condition in conditions))
    [ticket] = [ticket for ticket in content.tickets if all(condition.holds(ticket) for condition in conditions)]
    changes, note = _changes(builder, content, ticket, level, must_assign=not feasible)
    if why == "stranger":
        changes["assignee"] = rng.choice(content.contacts).name
        assert changes["assignee"] not in content.team
    goal = f"Exactly one ticket meets all of this: {_listed([str(one) for one in conditions])}. {_asked(changes, note)}"
    site = MailSite(content)
    filters = {condition.name: condition.value for condition in conditions if condition.name in FILTERS}
    if not feasible:
        return Problem(goal, site, first_record(content), _gold(ticket.number, filters, changes, note), feasible=False)
    expected = first_record(content)
    expected["tickets"][ticket.number] |= changes | {"notes": [note] if note else []}
    return Problem(goal, site, expected, _gold(ticket.number, filters, changes, note))


def _conditions(builder: Builder, target: Ticket, level: Level, may_name_status: bool) -> list[Condition]:
    rng = builder.rng
    names = ["priority", "assignee", *(["status"] if may_name_status and level != "easy" else [])]
    count = {"easy": 1, "medium": 2, "hard": 2}[level]
    names = ["product", *rng.sample(names, count), *(["town"] if level == "hard" else [])]
    conditions = [Condition(name, getattr(target, name)) for name in names]
    if level == "hard":
        before = min(target.opened + timedelta(days=rng.randint(1, 25)), builder.today - timedelta(days=15))
        if before > target.opened:
            conditions.append(Condition("opened", day_text(before), before))
    return conditions


def _near(builder: Builder, conditions: list[Condition], failing: Condition) -> Ticket:
    """Return a ticket that meets all conditions but one."""
    fixed = {other.name: other.value for other in conditions if other is not failing and other.before is None}
    while True:
        ticket = builder.ticket(**fixed)
        if all(condition.holds(ticket) == (condition is not failing) for condition in conditions):
            return ticket


def _changes(
    builder: Builder, content: Content, ticket: Ticket, level: Level, must_assign: bool
) -> tuple[dict[str, str], str]:
    """Return the fields with their new values, and the note to write ("": none)."""
    rng = builder.rng
    ways_of: dict[Level, list[tuple[str, ...]]] = {
        "easy": [("assignee",), ("priority",), ("status", "note")],
        "medium": [
            ("assignee", "priority"),
            ("assignee", "note"),
            ("priority", "note"),
            ("priority", "status", "note"),
        ],
        "hard": [("assignee", "priority", "note"), ("assignee", "status", "note"), ("priority", "status", "note")],
    }
    ways = ways_of[level]
    way = rng.choice([way for way in ways if not must_assign or ("assignee" in way and "status" not in way)])
    changes = {}
    if "assignee" in way:
        changes["assignee"] = rng.choice([name for name in content.team if name != ticket.assignee])
    if "priority" in way:
        changes["priority"] = rng.choice([value for value in PRIORITIES if value != ticket.priority])
    if "status" in way:
        changes["status"] = STATUSES[-1]
    notes = words.CLOSING_NOTES if "status" in way else words.ROUTINE_NOTES
    days = rng.randint(-9, -1) if "status" in way else rng.randint(2, 20)
    note = rng.choice(notes).format(day=day_text(content.today + timedelta(days=days))) if "note" in way else ""
    return changes, note


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _asked(changes: Mapping[str, str], note: str) -> str:
    words_of = {"assignee": "assign it to {}", "priority": "set its priority to {}", "status": "close it"}
    parts = [words_of[name].format(value) for name, value in changes.items()]
    if note:
        parts.append(f'write exactly this note: "{note}"')
    text = _listed(parts) if len(parts) > 1 else parts[0]
    return f"{text[0].upper()}{text[1:]}" + ("" if note else ".")


def _gold(number: str, filters: Mapping[str, str], changes: Mapping[str, str], note: str) -> Callable[[View], Action]:
    def gold(view: View) -> Action:
        if page(view) == f"/tickets/{number}":
            return _update(view, number, changes, note)
        if page(view) != "/tickets":
            return view.click("link", "Tickets")
        if not filters.items() <= dict(parse_qsl(view.path.partition("?")[2])).items():
            for name, value in filters.items():
                if (action := choice(view, name.capitalize(), value)) is not None:
                    return action
            return view.click("button", "Filter")
        for link in view.all("link"):
            if link.name.startswith(f"{number} "):
                return {"click": {"bid": link.bid}}
        return next_page(view) or give_up("No ticket meets the conditions.")

    return gold


def _update(view: View, number: str, changes: Mapping[str, str], note: str) -> Action:
    if f"Ticket {number} was updated." in view.text:
        return say("Done.")
    if "A closed ticket cannot be reassigned" in view.text:
        return give_up("The ticket is closed; a closed ticket cannot be reassigned.")
    for name, value in changes.items():
        box = view.find("combobox", name.capitalize())
        if value not in [option.name for option in box.children]:
            return give_up(f"{value} cannot be chosen as {name}.")
        if (action := choice(view, name.capitalize(), value)) is not None:
            return action
    if note and (action := field(view, "Note", note)) is not None:
        return action
    return view.click("button", "Update ticket")


TICKET = Kind("mail/ticket", "constraints", make, infeasible=True)

"""`mail/sort`: move or label exactly the messages from a sender or company about one topic."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from . import words
from .boxes import TITLES
from .builder import Builder
from .data import Customer, Message, day_text
from .expected import first_record
from .site import MailSite
from .steps import MARKED, choice, mark, next_page, row, search


@dataclass(frozen=True)
class Those:
    """The messages that are meant: in the inbox, of one sender, or of one company before a day."""

    sender: Customer
    topic: str
    before: date | None

    @property
    def query(self) -> str:
        """What to search for in the inbox."""
        return self.sender.name if self.before is None else self.sender.company

    def includes(self, message: Message) -> bool:
        """Return the message is one of them."""
        if message.folder != "inbox" or message.topic != self.topic:
            return False
        if self.before is None:
            return message.sender.name == self.sender.name
        return message.sender.company == self.sender.company and message.sent < self.before

    def __str__(self) -> str:
        if self.before is None:
            return f'every message in the inbox from {self.sender.name} about "{self.topic}"'
        return (
            f'every message in the inbox about "{self.topic}" that anybody of {self.sender.company} '
            f"sent before {day_text(self.before)}"
        )


COUNTS: dict[Level, int] = {"easy": 2, "medium": 4, "hard": 6}


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Infeasible: the label does not exist, and labels cannot be created."""
    builder = Builder(rng, level)
    those = _plant(builder, level)
    content = builder.finish(
        avoid_message=lambda message: (
            message.topic == those.topic
            and (message.sender.name == those.sender.name or message.sender.company == those.sender.company)
        )
    )
    messages = [message for message in content.messages if those.includes(message)]
    assert len(messages) == COUNTS[level]
    labels = [label for label in content.labels if any(label not in message.labels for message in messages)]
    label = rng.choice(labels)
    if not feasible:
        label = rng.choice([label for label in words.LABELS if label not in content.labels])
    folder = rng.choice(("archive", "spam")) if feasible and rng.random() < 0.5 else ""
    rest = "Leave all other messages as they are."
    if folder:
        action, goal = f"Move to {TITLES[folder]}", f"Move {those} to the folder {TITLES[folder]}. {rest}"
    else:
        action, goal = f"Add label {label}", f'Add the label "{label}" to {those}. {rest}'
    expected = first_record(content)
    gold = _gold(those.query, messages, action, "" if folder else label)
    if not feasible:
        return Problem(goal, MailSite(content), expected, gold, feasible=False)
    for message in messages:
        entry = expected["messages"][str(message.id)]
        if folder:
            entry["folder"] = folder
        else:
            entry["labels"] = sorted({*entry["labels"], label})
    return Problem(goal, MailSite(content), expected, gold)


def _plant(builder: Builder, level: Level) -> Those:
    rng = builder.rng
    topic = rng.choice(words.TOPICS)
    sender = builder.customers[0]
    near = builder.customer(builder.near_name(sender.name))
    if level != "hard":
        for _ in range(COUNTS[level]):
            builder.message(sender, topic.name)
        for _ in range(COUNTS[level] // 2):
            builder.message(sender, topic.near)
            builder.message(near, topic.name)
        if level == "medium":
            builder.message(sender, topic.name, folder="archive")
        return Those(sender, topic.name, None)
    before = builder.today - timedelta(days=rng.randint(20, 40))
    colleagues = [sender, *(builder.customer(company=sender.company) for _ in range(2))]
    for index in range(COUNTS[level]):
        one = colleagues[index % 3]
        builder.message(one, topic.name, sent=builder.free_day(one, (builder.today - before).days + 1, 90))
    for one in colleagues:
        builder.message(one, topic.name, sent=builder.free_day(one, 1, (builder.today - before).days))
        builder.message(one, topic.near, sent=builder.free_day(one, (builder.today - before).days + 1, 90))
    builder.message(sender, topic.name, folder="archive", sent=builder.free_day(sender, 60, 90))
    for _ in range(2):
        builder.message(near, topic.name, sent=builder.free_day(near, (builder.today - before).days + 1, 90))
    builder.customers += [near, *colleagues[1:]]
    return Those(sender, topic.name, before)


def _gold(query: str, messages: list[Message], what: str, label: str) -> Callable[[View], Action]:
    def gold(view: View) -> Action:
        if (action := search(view, "Inbox", "Inbox", query)) is not None:
            return action
        rows = [(message, found) for message in messages if (found := row(view, message)) is not None]
        left = [message for message, found in rows if not label or label not in found.text]
        if not left:
            return next_page(view) or say("Done.")
        if what not in [option.name for option in view.find("combobox", MARKED).children]:
            return give_up(f"The site does not offer: {what}.")
        for message in left:
            if not view.checked("checkbox", mark(message)):
                return view.click("checkbox", mark(message))
        return choice(view, MARKED, what) or view.click("button", "Apply")

    return gold


SORT = Kind("mail/sort", "change", make, infeasible=True)

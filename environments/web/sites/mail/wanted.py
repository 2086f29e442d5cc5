"""The one message that matches a task's description, and other messages that almost match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ..kind import Level
from . import words
from .builder import Builder
from .data import Content, Customer, Message, day_text


@dataclass(frozen=True)
class Wanted:
    """What the message must be. `company` and `before` are None where the goal does not name them."""

    level: Level
    sender: Customer
    topic: words.Topic
    before: date | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Where it can be."""
        return ("inbox",) if self.level == "easy" else ("inbox", "archive")

    @property
    def shown_in(self) -> str:
        """Return the site's list that shows these folders."""
        return "Inbox" if self.level == "easy" else "All mail"

    def candidates(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with that sender, topic and place before that day, newest first."""
        found = [
            message
            for message in messages
            if message.folder in self.folders
            and message.sender.name == self.sender.name
            and (self.level != "hard" or message.sender.company == self.sender.company)
            and message.topic == self.topic.name
            and (self.before is None or message.sent < self.before)
        ]
        return sorted(found, key=lambda message: message.sent, reverse=True)

    def only(self, content: Content) -> Message:
        """Return the message that is meant. Fails where the content leaves that open."""
        found = self.candidates(content.messages)
        assert found, "the message does not exist"
        assert self.level != "easy" or len(found) == 1, "an easy goal names no date"
        assert len({message.sent for message in found}) == len(found)
        return found[0]

    def is_not_filler(self, message: Message) -> bool:
        """Return a message that is not a candidate only because of its day or folder. Only `plant` creates such messages."""
        return message.sender.name == self.sender.name and message.topic == self.topic.name

    def __str__(self) -> str:
        topic = f'"{self.topic.name}"'
        if self.level == "easy":
            return f"the message in the inbox from {self.sender.name} about {topic}"
        if self.level == "medium":
            return f"the newest message (in the inbox or the archive) from {self.sender.name} about {topic}"
        assert self.before is not None
        return (
            f"the last message that {self.sender.name} of {self.sender.company} sent before {day_text(self.before)} "
            f"about {topic} (it can be in the inbox or the archive; spam does not count)"
        )


def plant(builder: Builder, level: Level, feasible: bool) -> Wanted:
    """Put the message that is wanted among older, newer and other ones; not feasible: only those that are not it."""
    rng = builder.rng
    sender = builder.customers[0]
    topic = rng.choice(words.TOPICS)
    product = rng.choice(builder.products)
    near = builder.customer(builder.near_name(sender.name))
    if level == "easy":
        if feasible:
            builder.message(sender, topic.name, product)
        builder.message(sender, topic.near, product)
        builder.message(near, topic.name, product)
        return Wanted(level, sender, topic)
    days = sorted((builder.today - timedelta(days=ago) for ago in rng.sample(range(12, 80), 5)), reverse=True)
    builder.message(sender, topic.near, product, sent=builder.today - timedelta(days=rng.randint(1, 5)))
    builder.message(near, topic.name, product, sent=builder.today - timedelta(days=rng.randint(1, 5)))
    if level == "medium":
        if feasible:
            _versions(builder, sender, topic, product, days[:3], ("inbox", "inbox", "archive"))
        return Wanted(level, sender, topic)
    before = days[1]
    twin = builder.customer(sender.name)
    while twin.company.split(" ")[0] == sender.company.split(" ")[0]:
        twin = builder.customer(sender.name)
    builder.customers += [near, twin]
    folders = ["inbox", "archive"]
    rng.shuffle(folders)
    _versions(builder, sender, topic, product, days[:2], ("inbox", "inbox"))
    if feasible:
        _versions(builder, sender, topic, product, days[3:], tuple(folders))
    builder.message(sender, topic.name, product, folder="spam", sent=days[2])
    builder.message(twin, topic.name, product, folder=folders[0], sent=days[2] - timedelta(days=1))
    builder.message(twin, topic.near, product, folder=folders[1], sent=before - timedelta(days=1))
    return Wanted(level, sender, topic, before)


def _versions(
    builder: Builder, sender: Customer, topic: words.Topic, product: str, days: Sequence[date], folders: Sequence[str]
) -> None:
    """Messages of one sender about the same, from the oldest to the newest; each later one takes numbers back."""
    before = ""
    for day, folder in reversed(list(zip(days, folders, strict=True))):
        facts = builder.facts()
        builder.message(sender, topic.name, product, folder, day, facts, before)
        before = (
            f"Please forget the numbers of my message of {day_text(day)}: the {topic.amount} is not {facts.amount} "
            f"euros, and {facts.day} is not the {topic.day}."
        )

"""Creates the content of a mailbox. A kind adds the messages and tickets of its task, and `finish` adds others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta

from ..kind import Level
from . import words
from .data import NOBODY, PRIORITIES, Content, Customer, Entry, Facts, Letter, Message, Person, Ticket, day_text


@dataclass(frozen=True)
class Size:
    """How much there is on one level."""

    inbox: int
    archive: int
    spam: int
    customers: int
    contacts: int
    team: int
    tickets: int
    products: int
    labels: int
    rows: int


SIZES: dict[Level, Size] = {
    "easy": Size(inbox=5, archive=2, spam=1, customers=5, contacts=5, team=3, tickets=5, products=3, labels=2, rows=5),
    "medium": Size(
        inbox=21, archive=9, spam=3, customers=12, contacts=14, team=5, tickets=20, products=5, labels=4, rows=8
    ),
    "hard": Size(
        inbox=42, archive=24, spam=6, customers=20, contacts=28, team=7, tickets=40, products=6, labels=5, rows=11
    ),
}


class Builder:
    """A mailbox in the making. Everything is drawn from the generator in the order of the calls."""

    def __init__(self, rng: random.Random, level: Level) -> None:
        self.rng = rng
        self.size = SIZES[level]
        self.today = date(2027, 1, 1) + timedelta(days=rng.randrange(720))
        self.products = tuple(sorted(self._products()))
        self.labels = tuple(sorted(rng.sample(words.LABELS, self.size.labels)))
        self.messages: list[Message] = []
        self.tickets: list[Ticket] = []
        names = [f"{first} {last}" for first in words.FIRST_NAMES for last in words.LAST_NAMES]
        self._names = rng.sample(names, len(names))
        self.own_name = rng.choice(words.OWN_NAMES)
        self.contacts = [self.person() for _ in range(self.size.contacts)]
        self.customers = [self.customer() for _ in range(self.size.customers)]
        self.team = tuple(sorted(self.name() for _ in range(self.size.team)))
        self._days: dict[str, set[date]] = {}

    def _products(self) -> list[str]:
        names = self.rng.sample(words.PRODUCT_NAMES, self.size.products)
        return [f"{name} {self.rng.choice(words.PRODUCT_KINDS)}" for name in names]

    def name(self) -> str:
        """Return a full name that is not in use yet."""
        return self._names.pop()

    def near_name(self, name: str) -> str:
        """Return a free name with the same first or the same last name."""
        first, last = name.split(" ")
        near = [other for other in self._names if other.split(" ")[0] == first or other.split(" ")[1] == last]
        chosen = self.rng.choice(near)
        self._names.remove(chosen)
        return chosen

    def person(self, name: str | None = None) -> Person:
        """Return a new entry for the address book."""
        name = name or self.name()
        return Person(
            name,
            f"{name.lower().replace(' ', '.')}@{self.own_name.lower()}.test",
            self.rng.choice(words.DEPARTMENTS),
            self.rng.choice(words.OFFICES),
        )

    def customer(self, name: str | None = None, company: str | None = None) -> Customer:
        """Return a new customer. Without a company, the customer's company has no other customer if possible."""
        name = name or self.name()
        if company is None:
            taken = {customer.company.split(" ")[0] for customer in getattr(self, "customers", [])}
            free = [word for word in words.COMPANY_NAMES if word not in taken] or list(words.COMPANY_NAMES)
            company = f"{self.rng.choice(free)} {self.rng.choice(words.COMPANY_TRADES)}"
        domain = company.split(" ")[0].lower()
        return Customer(name, company, f"{name.lower().replace(' ', '.')}@{domain}.test")

    def free_day(self, sender: Customer, first: int = 1, last: int = 90) -> date:
        """Return a day within the last days on which the sender has not written yet."""
        taken = self._days.get(sender.address, set())
        days = [self.today - timedelta(days=ago) for ago in range(first, last + 1)]
        return self.rng.choice([day for day in days if day not in taken])

    def facts(self) -> Facts:
        """Return new facts, which differ from the facts of all messages so far."""
        while True:
            day = self.today + timedelta(days=self.rng.randint(-60, 60))
            facts = Facts(
                order=f"{self.own_name[:2].upper()}-{self.rng.randint(20000, 89999)}",
                amount=f"{self.rng.randint(11, 480)}.{self.rng.randint(1, 9)}0",
                day=day_text(day),
                phone=f"555-{self.rng.randint(1000, 8999)}",
            )
            rest = [message.facts for message in self.messages]
            if all(facts.order != other.order and facts.phone != other.phone for other in rest):
                return facts

    def message(
        self,
        sender: Customer,
        topic: str,
        product: str | None = None,
        folder: str = "inbox",
        sent: date | None = None,
        facts: Facts | None = None,
        before: str = "",
    ) -> Message:
        """Add a message. `before` is a paragraph before the facts."""
        rng = self.rng
        sent = sent or self.free_day(sender)
        self._days.setdefault(sender.address, set()).add(sent)
        facts = facts or self.facts()
        product = product or rng.choice(self.products)
        about = next(item for item in words.TOPICS if item.name == topic)
        lines = [
            rng.choice(("Our order number is {order}.", "It concerns our order {order}.")).format(order=facts.order),
            rng.choice(("The {name} is {amount} euros.", "On our side the {name} comes to {amount} euros.")).format(
                name=about.amount, amount=facts.amount
            ),
            rng.choice(("We have {day} down as the {name}.", "Your system says {day} for the {name}.")).format(
                name=about.day, day=facts.day
            ),
            f"You can call us on {facts.phone}.",
        ]
        rng.shuffle(lines)
        fillers = rng.sample(words.FILLERS, 2)
        text = (
            "Dear support team,",
            f"{rng.choice(about.openings).format(product=product)} {fillers[0]}",
            *([before] if before else []),
            " ".join([*lines[:2], fillers[1], *lines[2:]]),
            f"{rng.choice(words.CLOSINGS)}, {sender.name}, {sender.company}",
        )
        taken = {message.id for message in self.messages}
        number = rng.randint(1000, 9999)
        while number in taken:
            number = rng.randint(1000, 9999)
        time = f"{rng.randint(7, 18):02}:{rng.randint(0, 59):02}"
        made = Message(number, folder, sender, topic, product, sent, time, facts, text)
        if rng.random() < 0.2:
            made = replace(made, labels=(rng.choice(self.labels),))
        self.messages.append(made)
        return made

    def ticket(self, **given: str) -> Ticket:
        """Return a new ticket with the given fields, the rest at random; it is not added yet."""
        rng = self.rng
        status = given.get("status") or rng.choice(("Open", "Open", "Waiting", "Closed"))
        opened = self.today - timedelta(days=rng.randint(3, 120))
        customer = rng.choice(self.customers)
        history = [Entry(opened, customer.name, "Ticket opened.")]
        for text in rng.sample(words.TICKET_NOTES, rng.randint(0, 2)):
            history.append(Entry(opened + timedelta(days=rng.randint(0, 2)), rng.choice(self.team), text))
        history.sort(key=lambda entry: entry.day)
        if status == "Closed":
            history.append(Entry(opened + timedelta(days=3), rng.choice(self.team), "Ticket closed."))
        return Ticket(
            number="",
            subject=rng.choice(words.TICKET_SUBJECTS),
            customer=customer,
            product=given.get("product") or rng.choice(self.products),
            town=given.get("town") or rng.choice(words.TOWNS),
            status=status,
            priority=given.get("priority") or rng.choice(PRIORITIES),
            assignee=given.get("assignee") or rng.choice((*self.team, NOBODY)),
            opened=opened,
            history=tuple(history),
        )

    def finish(
        self,
        avoid_message: Callable[[Message], bool] = lambda message: False,
        avoid_ticket: Callable[[Ticket], bool] = lambda ticket: False,
    ) -> Content:
        """Fill up with messages and tickets for which the predicates do not hold."""
        rng = self.rng
        for folder, count in (("inbox", self.size.inbox), ("archive", self.size.archive), ("spam", self.size.spam)):
            while sum(message.folder == folder for message in self.messages) < count:
                self.message(rng.choice(self.customers), rng.choice(words.TOPICS).name, folder=folder)
                if avoid_message(self.messages[-1]):
                    self.messages.pop()
        while len(self.tickets) < self.size.tickets:
            ticket = self.ticket()
            if not avoid_ticket(ticket):
                self.tickets.append(ticket)
        rng.shuffle(self.tickets)
        self.tickets.sort(key=lambda ticket: ticket.opened)
        number = rng.randint(1100, 4000)
        numbered = []
        for ticket in self.tickets:
            number += rng.randint(1, 9)
            numbered.append(replace(ticket, number=f"T-{number}"))
        messages = sorted(self.messages, key=lambda message: (message.sent, message.time, message.id), reverse=True)
        return Content(
            company=self.own_name,
            today=self.today,
            contacts=tuple(sorted(self.contacts, key=lambda person: person.name)),
            team=self.team,
            labels=self.labels,
            products=self.products,
            messages=tuple(messages),
            letters=tuple(self._letters(messages)),
            tickets=tuple(numbered),
            rows=self.size.rows,
        )

    def _letters(self, messages: list[Message]) -> list[Letter]:
        answered = self.rng.sample([message for message in messages if message.folder == "archive"], 2)
        answered.sort(key=lambda message: message.sent)
        return [
            Letter(
                "reply",
                message.id,
                (message.sender.address,),
                f"Re: {message.subject}",
                self.rng.choice(words.REPLIES).format(day=day_text(message.sent + timedelta(days=5))),
                message.sent + timedelta(days=1),
            )
            for message in answered
        ]

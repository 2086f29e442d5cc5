"""`mail/open`: open a ticket from a message, with the message's order number as the subject."""

from __future__ import annotations

import random

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from .builder import Builder
from .data import PRIORITIES
from .expected import first_record
from .site import MailSite
from .steps import choice, field, open_message
from .wanted import plant


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Pose a task in which the ticket's subject is the order number in the message."""
    builder = Builder(rng, level)
    wanted = plant(builder, level, feasible)
    content = builder.finish(avoid_message=wanted.is_not_filler)
    message = wanted.only(content)
    priority = rng.choice([priority for priority in PRIORITIES if priority != "Normal"])
    assignee = rng.choice(content.team)
    subject = f"Order {message.facts.order}"
    goal = (
        f"Open a ticket from {wanted}. The ticket's subject is the word Order, a space and the order number that the "
        f"message gives (such as: Order {content.company[:2].upper()}-12345). Its product is the one that the message's "
        f"subject names, its priority {priority}; assign it to {assignee}."
    )
    expected = first_record(content)
    number = f"T-{max(int(ticket.number[2:]) for ticket in content.tickets) + 1}"
    expected["tickets"][number] = {
        "subject": subject,
        "product": message.product,
        "status": "Open",
        "priority": priority,
        "assignee": assignee,
        "notes": [],
        "message": message.id,
    }

    def gold(view: View) -> Action:
        if f"Ticket {number} was opened." in view.text:
            return say("Done.")
        if view.path.endswith(f"/message/{message.id}/ticket"):
            return (
                field(view, "Subject", subject)
                or choice(view, "Product", message.product)
                or choice(view, "Priority", priority)
                or choice(view, "Assignee", assignee)
                or view.click("button", "Open ticket")
            )
        if (action := open_message(view, wanted.shown_in, message)) is not None:
            return action
        return view.click("link", "Open a ticket")

    return Problem(goal, MailSite(content), expected, gold)


OPEN = Kind("mail/open", "change", make)

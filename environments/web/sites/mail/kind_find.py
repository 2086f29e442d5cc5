"""`mail/find`: find a fact in a message. Other messages, with a similar sender or topic, state different facts."""

from __future__ import annotations

import random
from dataclasses import asdict

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from .builder import Builder
from .expected import first_record
from .site import MailSite
from .steps import look_through, open_message
from .wanted import plant

QUESTIONS = {
    "order": ("order number", "the number only, such as {own}-12345"),
    "amount": ("{amount}", "the amount in euros only, such as 95.50"),
    "day": ("{day}", "the day only, such as 7 May 2026"),
    "phone": ("phone number", "the number only, such as 555-0123"),
}


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Request for one fact of the message that is wanted."""
    builder = Builder(rng, level)
    wanted = plant(builder, level, feasible)
    content = builder.finish(avoid_message=wanted.is_not_filler)
    fact = rng.choice(tuple(QUESTIONS))
    name, form = QUESTIONS[fact]
    name = name.format(amount=wanted.topic.amount, day=wanted.topic.day)
    goal = f"Find {wanted}. Which {name} does it give? Answer with {form.format(own=content.company[:2].upper())}."
    site = MailSite(content)
    if not feasible:
        assert not wanted.candidates(content.messages)
        reason = f"There is no message from {wanted.sender.name} about {wanted.topic.name}."

        def give_up(view: View) -> Action:
            return look_through(view, wanted.shown_in, wanted.sender.name, reason)

        return Problem(goal, site, first_record(content), give_up, feasible=False)
    message = wanted.only(content)
    answer: str = asdict(message.facts)[fact]

    def gold(view: View) -> Action:
        if (action := open_message(view, wanted.shown_in, message)) is not None:
            return action
        assert answer in view.text
        return say(answer)

    return Problem(goal, site, first_record(content), gold, answer)


FIND = Kind("mail/find", "find", make, infeasible=True)

"""`mail/reply`: reply to a message or forward it, with a given text and to given people."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from . import words
from .builder import Builder
from .data import Content, Person, day_text
from .expected import first_record
from .site import MailSite
from .steps import field, look_for_person, look_through, open_message
from .wanted import Wanted, plant


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Infeasible: the message does not exist, or one of the people is not in the address book."""
    builder = Builder(rng, level)
    no_message = not feasible and rng.random() < 0.5
    wanted = plant(builder, level, not no_message)
    how = "forward" if not feasible and not no_message else rng.choice(("reply", "forward"))
    person = rng.choice(builder.contacts)
    builder.contacts.append(builder.person(builder.near_name(person.name)))
    by_place = _alone_in_place(builder, person) if level == "hard" else None
    content = builder.finish(avoid_message=wanted.is_not_filler)
    day = day_text(content.today + timedelta(days=rng.randint(3, 25)))
    text = rng.choice(words.REPLIES if how == "reply" else words.HANDOVERS).format(day=day)
    site = MailSite(content)
    if not feasible and not no_message:
        missing, query = _somebody_missing(builder, content, level)
        goal = _goal(wanted, how, [missing, *([person.name] if level == "hard" else [])], text)
        return Problem(
            goal,
            site,
            first_record(content),
            lambda view: look_for_person(view, query, "That person is not in the address book."),
            feasible=False,
        )
    to = [] if how == "reply" and level != "hard" else [person]
    named = [other.name for other in to]
    if by_place is not None and how == "forward":
        to.append(by_place)
        named.append(_place(by_place))
        _check_alone(content, by_place)
    goal = _goal(wanted, how, named, text)
    if no_message:
        assert not wanted.candidates(content.messages)
        reason = f"There is no message from {wanted.sender.name} about {wanted.topic.name}."
        return Problem(
            goal,
            site,
            first_record(content),
            lambda view: look_through(view, wanted.shown_in, wanted.sender.name, reason),
            feasible=False,
        )
    message = wanted.only(content)
    first = [message.sender.address] if how == "reply" else []
    expected = first_record(content)
    expected["letters"].append(
        {
            "how": how,
            "about": message.id,
            "to": sorted([*first, *(other.address for other in to)]),
            "subject": f"{'Re' if how == 'reply' else 'Fwd'}: {message.subject}",
            "text": text,
        }
    )
    recipients = ", ".join([*first, *(other.name for other in to)])

    def gold(view: View) -> Action:
        if "Your reply was sent." in view.text or "The message was sent." in view.text:
            return say("Done.")
        if view.path.endswith(f"/message/{message.id}/{how}"):
            return field(view, "To", recipients) or field(view, "Text", text) or view.click("button", "Send")
        if (action := open_message(view, wanted.shown_in, message)) is not None:
            return action
        return view.click("link", how.capitalize())

    return Problem(goal, site, expected, gold)


def _goal(wanted: Wanted, how: str, named: list[str], text: str) -> str:
    people = " and to ".join(named)
    if how == "reply":
        also = f", and send the reply to {people} as well, as a second recipient" if named else ""
        return f'Reply to {wanted}{also}. Leave the subject as it is, and write exactly this text: "{text}"'
    return f'Forward {wanted} to {people}. Leave the subject as it is, and write exactly this text: "{text}"'


def _place(person: Person) -> str:
    return f"the one person of the address book who works in {person.department} at the {person.office} office"


def _alone_in_place(builder: Builder, not_this: Person) -> Person:
    """Return another person and make them the only one of their department at their office."""
    free = [
        other
        for other in builder.contacts
        if (other.department, other.office) != (not_this.department, not_this.office)
    ]
    chosen = builder.rng.choice(free)
    for index, other in enumerate(builder.contacts):
        if other is not chosen and (other.department, other.office) == (chosen.department, chosen.office):
            office = builder.rng.choice([office for office in words.OFFICES if office != chosen.office])
            builder.contacts[index] = replace(other, office=office)
    return chosen


def _check_alone(content: Content, person: Person) -> None:
    same = [
        other for other in content.contacts if (other.department, other.office) == (person.department, person.office)
    ]
    assert same == [person]


def _somebody_missing(builder: Builder, content: Content, level: Level) -> tuple[str, str]:
    """Return how the goal names a person who is not in the address book, and what to search for there."""
    known = {person.name for person in content.contacts}
    if level == "hard" and builder.rng.random() < 0.5:
        places = {(person.department, person.office) for person in content.contacts}
        free = [
            (part, office) for part in words.DEPARTMENTS for office in words.OFFICES if (part, office) not in places
        ]
        if free:
            department, office = builder.rng.choice(free)
            return _place(Person("", "", department, office)), f"{department} {office}"
    name = builder.near_name(builder.rng.choice(content.contacts).name)
    assert name not in known
    return name, name


REPLY = Kind("mail/reply", "change", make, infeasible=True)

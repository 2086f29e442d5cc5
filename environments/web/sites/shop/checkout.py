"""The checkout form: its fields, and the errors in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..site import Request
from .orders import DELIVERIES, Address

LONGEST_LINE = 60
LONGEST_MESSAGE = 120
GIFT_WRAP_CENTS = 250


@dataclass(frozen=True)
class Draft:
    """The fields of the checkout, spaces set to one."""

    name: str
    street: str
    postcode: str
    town: str
    delivery: str = "standard"
    gift_wrap: bool = False
    gift_message: str = ""

    @property
    def address(self) -> Address:
        """Where it goes."""
        return Address(self.name, self.street, self.postcode, self.town)

    @property
    def problem(self) -> str | None:
        """Return the first problem, as text for the page."""
        for label, value in (("full name", self.name), ("street and number", self.street), ("town", self.town)):
            if not value:
                return f"Enter the {label}."
            if len(value) > LONGEST_LINE:
                return f"The {label} has at most {LONGEST_LINE} characters."
        if not re.search("[0-9]", self.street):
            return "The street lacks a number."
        if not re.fullmatch("[0-9]{4}", self.postcode):
            return "Enter the postcode as four digits."
        if self.delivery not in DELIVERIES:
            return "Choose a way of delivery."
        if self.gift_message and not self.gift_wrap:
            return "A gift message can only be sent with gift wrap."
        if len(self.gift_message) > LONGEST_MESSAGE:
            return f"The gift message has at most {LONGEST_MESSAGE} characters."
        return None


def first_draft(account: Address) -> Draft:
    """Return the form as it opens: the account's own address."""
    return Draft(account.name, account.street, account.postcode, account.town)


def read_draft(request: Request) -> Draft:
    """Return the form as it was sent."""

    def line(name: str) -> str:
        return " ".join(request.value(name).split())

    return Draft(
        line("name"),
        line("street"),
        line("postcode"),
        line("town"),
        line("delivery"),
        line("gift_wrap") == "yes",
        line("gift_message"),
    )

"""Orders: the bought items, the delivery address, and the status."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal, NamedTuple

from ..site import Json
from .catalogue import Catalogue, Variant
from .words import FIRST_NAMES, LAST_NAMES, STREETS, TOWNS

Status = Literal["placed", "shipped", "delivered", "cancelled"]

DELIVERIES = {"standard": 390, "express": 990, "pick-up point": 190}
"""Delivery methods, with their prices in cents."""

REASONS = ("Ordered by mistake", "Delivery takes too long", "Found it cheaper", "No longer needed")

FIRST_DAY = date(2026, 1, 5)


@dataclass(frozen=True)
class Address:
    """Who gets it, and where."""

    name: str
    street: str
    postcode: str
    town: str

    def __str__(self) -> str:
        return f"{self.name}, {self.street}, {self.postcode} {self.town}"


class Item(NamedTuple):
    """A variant of a product, by the product's name."""

    product: str
    variant: Variant

    def __str__(self) -> str:
        return f"{self.product}, {self.variant.colour}, {self.variant.size}"


@dataclass(frozen=True)
class Order:
    """An order. `items` has how many of each item."""

    number: int
    day: date
    items: dict[Item, int]
    to: Address
    delivery: str = "standard"
    gift_wrap: bool = False
    gift_message: str = ""
    status: Status = "placed"
    reason: str = ""
    """Why the order was cancelled."""

    def record(self) -> dict[str, Json]:
        """Return the order in the site's record, with its lines in a fixed order."""
        return {
            "number": self.number,
            "lines": [
                {"product": item.product, "colour": item.variant.colour, "size": item.variant.size, "quantity": count}
                for item, count in sorted(self.items.items())
            ],
            "to": {"name": self.to.name, "street": self.to.street, "postcode": self.to.postcode, "town": self.to.town},
            "delivery": self.delivery,
            "gift_wrap": self.gift_wrap,
            "gift_message": self.gift_message,
            "status": self.status,
            "reason": self.reason,
        }


def make_address(rng: random.Random) -> Address:
    """Draw a postal address."""
    return Address(
        name=f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        street=f"{rng.randrange(1, 99)} {rng.choice(STREETS)}",
        postcode=str(rng.randrange(1000, 9999)),
        town=rng.choice(TOWNS),
    )


def make_item(rng: random.Random, catalogue: Catalogue) -> Item:
    """Any variant of any product, sold out or not."""
    product = catalogue.products[rng.choice(sorted(catalogue.products))]
    return Item(product.name, rng.choice(sorted(product.stock)))


def make_orders(rng: random.Random, catalogue: Catalogue, to: Address, count: int) -> tuple[Order, ...]:
    """Earlier orders of one person, the oldest first; the oldest have arrived."""
    number, day = rng.randrange(1000, 9000), FIRST_DAY + timedelta(days=rng.randrange(300))
    orders = []
    for index in range(count):
        items = {make_item(rng, catalogue): rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))}
        status: Status = "delivered" if index < count // 2 else rng.choice(("placed", "shipped"))
        orders.append(Order(number, day, items, to, rng.choice(sorted(DELIVERIES)), status=status))
        number, day = number + rng.randrange(1, 40), day + timedelta(days=rng.randrange(1, 9))
    return tuple(orders)

"""The shop: its tables, which are generated from a number, and the wishes of its customers. It does not use the kit."""

import random
import sqlite3
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

TODAY = date(2025, 6, 30)  # a fixed day, so that a seed creates the same shop on any day
FIRST_NAMES = ("Ana", "Ben", "Chloe", "Dan", "Eva", "Finn", "Grace", "Hugo", "Iris", "Jon")
LAST_NAMES = ("Berg", "Cole", "Diaz", "Evans", "Frost", "Gray", "Hall", "Ito", "Jansen", "Khan")
STREETS = ("Mill Lane", "High Street", "Park Road", "Station Street", "Elm Avenue", "Harbour Way")
TOWNS = ("Ashford", "Brook", "Camden", "Dover", "Elgin")
GOODS = {"kettle": 3490, "lamp": 2150, "teapot": 1875, "blanket": 4200, "clock": 2999, "vase": 1640, "mirror": 5300}
GIFT_CARD = "gift card"

TABLES = """
create table customers (id integer primary key, name text, email text unique);
create table orders (id integer primary key, customer_id integer references customers, status text, address text,
    delivered text);
create table items (id integer primary key, order_id integer references orders, name text, cents integer);
create table refunds (item_id integer primary key references items, cents integer);
create table notes (id integer primary key, order_id integer references orders, topic text, text text);
"""
COMPARED = {"orders": ("status", "address"), "refunds": ("cents",), "notes": ("topic",)}

Call = dict[str, dict[str, Any]]
"""An action as a policy writes it: {"cancel_order": {"order_id": 1003}}."""


@dataclass
class Wish:
    """What a customer wants, in the customer's words, and the call that serves the wish under the rules."""

    words: str
    call: Call


@dataclass
class Stock:
    """The rows of a new shop, as tuples in the order of the columns."""

    customers: list[tuple[Any, ...]] = field(default_factory=list)
    orders: list[tuple[Any, ...]] = field(default_factory=list)
    items: list[tuple[Any, ...]] = field(default_factory=list)

    def order(self, customer: int, state: str) -> int:
        """Return the number of the customer's order in a state: "open", "sent", "new" or "old".

        A "new" order was delivered recently, and an "old" order long ago.
        """
        for order, owner, status, _address, delivered in self.orders:
            days = (TODAY - date.fromisoformat(delivered)).days if delivered else 0
            if owner == customer and state == (status if not delivered else "new" if days <= 30 else "old"):
                return int(order)
        raise LookupError(f"customer {customer} has no order that is {state}")

    def item(self, order: int, *, gift_card: bool = False) -> tuple[int, str]:
        """Return the number and the name of the gift card in an order, or of another item in the order."""
        return next((row[0], row[2]) for row in self.items if row[1] == order and (row[2] == GIFT_CARD) == gift_card)


def stock(number: int) -> Stock:
    """Return the rows of a shop with five customers, each of whom has an order in every state.

    All random choices depend only on the number of the shop.
    """
    rng = random.Random(f"shop {number}")
    rows = Stock()
    names = list(zip(rng.sample(FIRST_NAMES, 5), rng.sample(LAST_NAMES, 5), strict=True))
    for customer, name in enumerate(names, 1):
        rows.customers.append((customer, " ".join(name), email_of(*name)))
    states = [(customer, state) for customer in range(1, 6) for state in ("open", "sent", "new", "old")]
    rng.shuffle(states)
    for order, (customer, state) in enumerate(states, 1001):
        days = {"new": rng.randint(2, 25), "old": rng.randint(40, 200)}.get(state)
        delivered = None if days is None else (TODAY - timedelta(days=days)).isoformat()
        rows.orders.append((order, customer, state if days is None else "delivered", an_address(rng), delivered))
        goods = rng.sample(sorted(GOODS), rng.randint(1, 2)) + ([GIFT_CARD] if state == "new" else [])
        for good in goods:
            rows.items.append((len(rows.items) + 1, order, good, GOODS.get(good, 2500)))
    return rows


def email_of(first: str, last: str) -> str:
    """Return the e-mail address of a customer with this name."""
    return f"{first}.{last}@example.org".lower()


def an_email(rng: random.Random) -> str:
    """Return a random e-mail address that a customer may have."""
    return email_of(rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES))


def an_address(rng: random.Random, lowest: int = 1) -> str:
    """Return a random address for an order, with a house number of at least `lowest`."""
    return f"{rng.randint(lowest, lowest + 98)} {rng.choice(STREETS)}, {rng.choice(TOWNS)}"


KINDS = ("cancel", "move", "refund", "cancel_sent", "refund_late", "refund_gift_card", "not_theirs", "two_wishes")


def ticket(number: int) -> dict[str, Any]:
    """Return the customer who writes to the shop with this number, and the customer's wishes."""
    rows = stock(number)
    rng = random.Random(f"ticket {number}")
    kind = rng.choice(KINDS)
    customer, name, email = rng.choice(rows.customers)
    other = rng.choice([row[0] for row in rows.customers if row[0] != customer])
    kinds = rng.sample(("cancel", "refund"), 2) if kind == "two_wishes" else [kind]
    return {
        "shop": number,
        "kind": kind,
        "name": name,
        "email": email,
        "wishes": [wish(one, rows, customer, other, rng) for one in kinds],
    }


def wish(kind: str, rows: Stock, customer: int, other: int, rng: random.Random) -> Wish:
    """Return a wish of the customer. `other` is another customer, whose orders the clerk must not change."""
    match kind:
        case "cancel" | "cancel_sent":
            order = rows.order(customer, "open" if kind == "cancel" else "sent")
            words = f"Please cancel my order {order}, I do not need it any more."
            return Wish(words, {"cancel_order": {"order_id": order}} if kind == "cancel" else declined(order))
        case "move" | "not_theirs":
            order, address = rows.order(customer if kind == "move" else other, "open"), an_address(rng, 101)
            words = f"Please send order {order} to {address} instead."
            move = {"change_address": {"order_id": order, "address": address}}
            return Wish(words, move if kind == "move" else declined(order))
        case "refund" | "refund_late" | "refund_gift_card":
            order = rows.order(customer, "old" if kind == "refund_late" else "new")
            item, name = rows.item(order, gift_card=kind == "refund_gift_card")
            words = f"I am not happy with the {name} of order {order} and want my money back."
            return Wish(words, {"refund": {"item_id": item}} if kind == "refund" else declined(order))
    raise LookupError(f"nobody wishes {kind!r}")


def declined(order: int) -> Call:
    """Return the call that records that a wish was declined, because the rules do not allow it."""
    return {"add_note": {"order_id": order, "topic": "declined", "text": "Our rules do not allow it."}}


def open_shop(number: int) -> sqlite3.Connection:
    """Create the database of the shop in memory."""
    rows = stock(number)
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.executescript(TABLES)
    database.executemany("insert into customers values (?, ?, ?)", rows.customers)
    database.executemany("insert into orders values (?, ?, ?, ?, ?)", rows.orders)
    database.executemany("insert into items values (?, ?, ?, ?)", rows.items)
    return database


def tables(database: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """Return the tables that may change, as JSON."""
    return {
        name: [dict(row) for row in database.execute(f"select * from {name} order by 1")]  # these names are constants
        for name in COMPARED
    }


def facts(state: dict[str, list[dict[str, Any]]]) -> set[tuple[Any, ...]]:
    """Return the relevant facts in `tables()`. The text of notes, and notes with the topic "other", are ignored."""
    found = set()
    for name, columns in COMPARED.items():
        for row in state[name]:
            if row.get("topic") != "other":
                key = row.get("item_id") or row.get("order_id") or row["id"]
                found |= {(name, key, column, row[column]) for column in columns}
    return found

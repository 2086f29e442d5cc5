"""Lists of products: the search, the filters, the order and the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from .catalogue import Catalogue, Product, Variant
from .words import SIZES

ORDERS = {"": "Name", "price": "Price, lowest first", "rating": "Rating, best first", "days": "Delivery, fastest first"}
"""Sort orders: the value in the address, and the label on the page."""

LONGEST = 80
"""How many characters of a search are used."""

Listed = TypeVar("Listed")


@dataclass(frozen=True)
class Filters:
    """What a list is narrowed to; "" is anything."""

    material: str = ""
    colour: str = ""
    size: str = ""
    in_stock: bool = False
    most: str = ""
    """The maximum price, as typed."""
    sort: str = ""
    problem: str | None = None
    most_cents: int | None = None

    def shows(self, product: Product, stock: Mapping[Variant, int]) -> bool:
        """Return the product is on the list."""
        counts = [
            count
            for variant, count in stock.items()
            if self.colour in {"", variant.colour} and self.size in {"", variant.size}
        ]
        return (
            self.material in {"", product.material}
            and (sum(counts) > 0 if self.in_stock else bool(counts))
            and (self.most_cents is None or product.price_cents <= self.most_cents)
        )

    def address(self, path: str, page: int, **more: str) -> str:
        """Return the path of that page of the same list."""
        values = {
            **more,
            "material": self.material,
            "colour": self.colour,
            "size": self.size,
            "stock": "1" if self.in_stock else "",
            "most": self.most,
            "sort": self.sort,
            "page": str(page),
        }
        return f"{path}?{urlencode({name: value for name, value in values.items() if value})}"


def read_filters(query: Mapping[str, str], catalogue: Catalogue, category: str) -> Filters:
    """Return the filters in an address. An unknown value means any, and is reported as a problem."""
    offered = {
        "material": catalogue.materials[category],
        "colour": catalogue.colours,
        "size": SIZES,
        "sort": (*ORDERS,),
    }
    chosen = {name: query.get(name, "") for name in offered}
    problem = None
    for name, values in offered.items():
        if chosen[name] not in {"", *values}:
            problem, chosen[name] = f"There is no such {name} here.", ""
    most = query.get("most", "").strip()[:LONGEST]
    cents = read_price(most)
    if most and cents is None:
        problem = "Enter the highest price as a number, such as 40 or 39.50."
    return Filters(**chosen, in_stock=query.get("stock") == "1", most=most, problem=problem, most_cents=cents)


def read_price(text: str) -> int | None:
    """Return the cents of a price as people type it, or None if it is not a price."""
    found = re.fullmatch(r"£?\s?([0-9]{1,5})(?:\.([0-9]{1,2}))?", text)
    return int(found[1]) * 100 + int((found[2] or "0").ljust(2, "0")) if found else None


def in_order(products: Sequence[Product], sort: str) -> list[Product]:
    """Return the products in an order of ORDERS; equal ones by name."""
    by_name = sorted(products, key=lambda product: product.name)
    if sort == "price":
        return sorted(by_name, key=lambda product: product.price_cents)
    if sort == "rating":
        return sorted(by_name, key=lambda product: -product.rating_tenths)
    if sort == "days":
        return sorted(by_name, key=lambda product: product.delivery_days)
    return by_name


def search(products: Sequence[Product], text: str, missing: int = 0) -> list[Product]:
    """Return the products whose name, category or material has all words of the text but that many, by name."""
    words = text.lower()[:LONGEST].split()

    def found(product: Product) -> int:
        said = f"{product.name} {product.category} {product.material}".lower()
        return sum(word in said for word in words)

    return in_order([product for product in products if words and found(product) == len(words) - missing], "")


@dataclass(frozen=True)
class Leaf(Generic[Listed]):
    """One page of a list."""

    items: Sequence[Listed]
    number: int
    count: int
    """Number of pages."""
    total: int
    """Number of items on all pages."""


def leaf(items: Sequence[Listed], per_page: int, asked: str) -> Leaf[Listed]:
    """Return the page that an address asks for: the nearest one there is."""
    count = max(1, -(-len(items) // per_page))
    number = min(int(asked), count) if re.fullmatch(r"[0-9]{1,4}", asked) else 1
    number = max(number, 1)
    return Leaf(items[(number - 1) * per_page : number * per_page], number, count, len(items))

"""The products of the shop, created with a random number generator."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..kind import Level
from .words import CATEGORIES, COLOURS, LINES, SIZES, SUFFIXES


class Variant(NamedTuple):
    """What of a product one buys."""

    colour: str
    size: str


@dataclass(frozen=True)
class Product:
    """A product. All its variants cost the same; `stock` has every colour in every size, 0 where it is sold out."""

    name: str
    category: str
    material: str
    price_cents: int
    rating_tenths: int
    delivery_days: int
    warranty_years: int
    weight_grams: int
    stock: Mapping[Variant, int]

    @property
    def slug(self) -> str:
        """Its part of the address of its page."""
        return self.name.lower().replace(" ", "-")

    @property
    def colours(self) -> tuple[str, ...]:
        """The colours it comes in, in the shop's order."""
        return tuple(colour for colour in COLOURS if any(variant.colour == colour for variant in self.stock))

    @property
    def price(self) -> str:
        """As the pages show it."""
        return money(self.price_cents)

    @property
    def rating(self) -> str:
        """As the pages show it, of 5."""
        return f"{self.rating_tenths / 10:.1f}"

    def with_stock(self, variant: Variant, count: int) -> Product:
        """Return the same product with another number in stock; a colour that it did not come in is added."""
        stock = dict(self.stock)
        for size in SIZES:
            stock.setdefault(Variant(variant.colour, size), 0)
        return replace(self, stock={**stock, variant: count})


def money(cents: int) -> str:
    """Return a price as the pages show it."""
    return f"£{cents // 100}.{cents % 100:02}"


@dataclass(frozen=True)
class Catalogue:
    """All products by name, and what the filters offer."""

    products: Mapping[str, Product]
    materials: Mapping[str, tuple[str, ...]]
    """The materials by category."""
    colours: tuple[str, ...]
    per_page: int
    slugs: Mapping[str, Product] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slugs", {product.slug: product for product in self.products.values()})

    @property
    def categories(self) -> tuple[str, ...]:
        """Their names, in the shop's order."""
        return tuple(self.materials)

    def of(self, category: str) -> tuple[Product, ...]:
        """Return the products of a category, by name."""
        return tuple(product for product in self.products.values() if product.category == category)

    def with_products(self, changed: Iterable[Product]) -> Catalogue:
        """Return the catalogue with these products instead of the products with the same names."""
        return replace(self, products={**self.products, **{product.name: product for product in changed}})


@dataclass(frozen=True)
class Extent:
    """How much a shop has."""

    categories: int
    products: int
    """Number of products in each category."""
    lines: int
    materials: int
    colours: int
    per_page: int


EXTENTS: Mapping[Level, Extent] = {
    "easy": Extent(categories=3, products=5, lines=2, materials=3, colours=3, per_page=5),
    "medium": Extent(categories=5, products=11, lines=2, materials=4, colours=5, per_page=6),
    "hard": Extent(categories=6, products=20, lines=4, materials=5, colours=7, per_page=8),
}


def make_catalogue(rng: random.Random, level: Level) -> Catalogue:
    """Return a shop's products. On the higher levels two lines have nearly the same name."""
    extent = EXTENTS[level]
    names = rng.sample(sorted(CATEGORIES), extent.categories)
    colours = tuple(COLOURS[: extent.colours])
    materials = {name: CATEGORIES[name][1][: extent.materials] for name in names}
    pairs = rng.sample(LINES, extent.lines)
    lines = (
        [pair[0] for pair in pairs]
        if level == "easy"
        else [name for pair in pairs[: extent.lines // 2] for name in pair]
    )
    products = [
        make_product(rng, name, category, materials[category], colours)
        for category in names
        for name in product_names(rng, category, lines, extent.products)
    ]
    return Catalogue({product.name: product for product in products}, materials, colours, extent.per_page)


def product_names(rng: random.Random, category: str, lines: list[str], count: int) -> list[str]:
    """Names of products, sorted; most differ from another in one word."""
    names = [
        " ".join(part for part in (line, noun, suffix) if part)
        for line in lines
        for noun in CATEGORIES[category][0]
        for suffix in ("", *SUFFIXES)
    ]
    return sorted(rng.sample(names, count))


def make_product(
    rng: random.Random, name: str, category: str, materials: tuple[str, ...], colours: tuple[str, ...]
) -> Product:
    """Return a product with figures and stock by chance."""
    own = rng.sample(colours, rng.randint(2, len(colours)))
    stock = {
        Variant(colour, size): rng.choice((0, 2, 3, 4, 6, 9, 14))
        for colour in colours
        if colour in own
        for size in SIZES
    }
    return Product(
        name=name,
        category=category,
        material=rng.choice(materials),
        price_cents=rng.randrange(12, 95) * 100 + rng.choice((0, 20, 50, 90)),
        rating_tenths=rng.randrange(28, 50),
        delivery_days=rng.randrange(1, 13),
        warranty_years=rng.randrange(1, 7),
        weight_grams=rng.randrange(18, 400) * 10,
        stock=stock,
    )


def some_variant(rng: random.Random, catalogue: Catalogue) -> Variant:
    """Return a colour and a size that the shop offers; not each product comes in the colour."""
    return Variant(rng.choice(catalogue.colours), rng.choice(SIZES))

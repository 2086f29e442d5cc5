"""Conditions on a product, and products that meet all conditions or all but one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .catalogue import Catalogue, Product, Variant, money


@dataclass(frozen=True)
class Condition:
    """A condition as text, and functions that change a product so that it meets or misses the condition."""

    text: str
    holds: Callable[[Product], bool]
    met: Callable[[Product], Product]
    missed: Callable[[Product], Product]


def of_material(rng: random.Random, material: str, materials: Sequence[str]) -> Condition:
    """It is made of that."""
    others = [name for name in materials if name != material]
    return Condition(
        f"is made of {material}",
        lambda product: product.material == material,
        lambda product: replace(product, material=material),
        lambda product: replace(product, material=rng.choice(others)),
    )


def in_stock(variant: Variant) -> Condition:
    """That variant can be ordered; six of it, where the product was made so."""
    return Condition(
        f"is in stock in {variant.colour}, size {variant.size}",
        lambda product: product.stock.get(variant, 0) > 0,
        lambda product: product.with_stock(variant, 6),
        lambda product: product.with_stock(variant, 0),
    )


def at_most_price(rng: random.Random, cents: int) -> Condition:
    """It costs no more than that. A miss is near."""
    return Condition(
        f"costs at most {money(cents)} each",
        lambda product: product.price_cents <= cents,
        lambda product: replace(product, price_cents=cents - rng.randrange(0, cents // 3, 10)),
        lambda product: replace(product, price_cents=cents + rng.randrange(10, 500, 10)),
    )


def at_least_rating(rng: random.Random, tenths: int) -> Condition:
    """It is rated that or better. A miss is near."""
    return Condition(
        f"is rated {tenths / 10:.1f} or better",
        lambda product: product.rating_tenths >= tenths,
        lambda product: replace(product, rating_tenths=rng.randint(tenths, 49)),
        lambda product: replace(product, rating_tenths=tenths - rng.randint(1, 4)),
    )


def at_most_days(rng: random.Random, days: int) -> Condition:
    """It is delivered within that. A miss is near."""
    return Condition(
        f"is delivered within {days} days",
        lambda product: product.delivery_days <= days,
        lambda product: replace(product, delivery_days=rng.randint(1, days)),
        lambda product: replace(product, delivery_days=days + rng.randint(1, 3)),
    )


def at_least_warranty(rng: random.Random, years: int) -> Condition:
    """Its warranty is as long or longer. A miss is near."""
    return Condition(
        f"has a warranty of {years} years or more",
        lambda product: product.warranty_years >= years,
        lambda product: replace(product, warranty_years=rng.randint(years, 6)),
        lambda product: replace(product, warranty_years=years - 1),
    )


def listed(conditions: Sequence[Condition]) -> str:
    """Return the conditions as text, separated by semicolons."""
    return "; ".join(condition.text for condition in conditions)


def meets(product: Product, conditions: Sequence[Condition]) -> bool:
    """It meets all of them."""
    return all(condition.holds(product) for condition in conditions)


def made_to_meet(product: Product, conditions: Sequence[Condition]) -> Product:
    """Return the product, changed where it misses one."""
    for condition in conditions:
        product = product if condition.holds(product) else condition.met(product)
    return product


def made_to_miss(product: Product, conditions: Sequence[Condition], missed: Condition) -> Product:
    """Return the product, changed so that it misses that one and meets the others."""
    return missed.missed(made_to_meet(product, conditions))


def with_near_misses(
    rng: random.Random, catalogue: Catalogue, category: str, conditions: Sequence[Condition], target: str | None
) -> Catalogue:
    """Return the category in which at most one product, `target`, meets all conditions.

    For each condition, another product misses only that condition; without a target, one more product does.
    """
    names = [product.name for product in catalogue.of(category) if product.name != target]
    misses = list(conditions) if target else [*conditions, rng.choice(conditions)]
    near = dict(zip(rng.sample(names, len(misses)), misses, strict=True))
    changed = []
    for product in catalogue.of(category):
        if product.name == target:
            changed.append(made_to_meet(product, conditions))
        elif product.name in near:
            changed.append(made_to_miss(product, conditions, near[product.name]))
        elif meets(product, conditions):
            changed.append(rng.choice(conditions).missed(product))
        else:
            changed.append(product)
    made = catalogue.with_products(changed)
    fitting = [product.name for product in made.of(category) if meets(product, conditions)]
    assert fitting == ([target] if target else []), (fitting, target)
    return made

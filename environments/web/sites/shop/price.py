"""`shop/price`: find a figure of a named product, or the best product that meets the conditions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from .catalogue import Catalogue, Product, Variant, make_catalogue, some_variant
from .conditions import (
    Condition,
    at_least_rating,
    at_least_warranty,
    at_most_days,
    at_most_price,
    in_stock,
    listed,
    made_to_meet,
    meets,
    of_material,
    with_near_misses,
)
from .listing import ORDERS
from .orders import make_address, make_orders
from .site import Shop
from .solving import browse, search_for
from .words import CATEGORIES, SUFFIXES


def make_price(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Return a figure of one product on the easy level, the best one on the hard level, either on the medium level."""
    catalogue = make_catalogue(rng, level)
    if level == "easy" or (level == "medium" and rng.random() < 0.5):
        return _figure(rng, catalogue, feasible)
    return _best(rng, catalogue, level, feasible)


def _shop(rng: random.Random, catalogue: Catalogue) -> Shop:
    account = make_address(rng)
    return Shop(catalogue, account, make_orders(rng, catalogue, account, 3))


# Find a figure of a named product

FIGURES: tuple[tuple[str, Callable[[Product], str]], ...] = (
    ("What does the {} cost? Answer with the price alone, such as £12.30.", lambda product: product.price),
    ("What is the {} made of? Answer with the material alone.", lambda product: product.material),
    ("How is the {} rated? Answer with the number alone, such as 4.1.", lambda product: product.rating),
    (
        "Within how many days is the {} delivered? Answer with the number alone.",
        lambda product: str(product.delivery_days),
    ),
    (
        "How many years of warranty has the {}? Answer with the number alone.",
        lambda product: str(product.warranty_years),
    ),
    ("How many grams does the {} weigh? Answer with the number alone.", lambda product: str(product.weight_grams)),
)


def _figure(rng: random.Random, catalogue: Catalogue, feasible: bool) -> Problem:
    product = catalogue.products[rng.choice(sorted(catalogue.products))]
    question, answer_of = rng.choice(FIGURES)
    name, answer = (product.name, answer_of(product)) if feasible else (absent_name(rng, catalogue, product), None)

    def gold(view: View) -> Action:
        if view.path.startswith("/p/") and view.find("heading").name == name and answer is not None:
            return say(answer)
        return search_for(view, name)

    shop = _shop(rng, catalogue)
    return Problem(question.format(name), shop, shop.record(), gold, answer, feasible)


def absent_name(rng: random.Random, catalogue: Catalogue, product: Product) -> str:
    """Return a name that no product has, near to the product's: with another last word or none, or another noun."""
    line, _, rest = product.name.partition(" ")
    noun = next(noun for noun in CATEGORIES[product.category][0] if rest.startswith(noun))
    names = [" ".join(part for part in (line, noun, suffix) if part) for suffix in ("", *SUFFIXES)]
    names = [name for name in names if name not in catalogue.products] or [
        name
        for noun in CATEGORIES[product.category][0]
        if (name := f"{line} {noun}{rest.removeprefix(noun)}") not in catalogue.products
    ]
    return rng.choice(names)


# Find the best product that meets the conditions


@dataclass(frozen=True)
class Measure:
    """By which figure a product is the best, and how the figure is set."""

    word: str
    sort: str
    """The key in ORDERS that lists the best product first."""
    value: Callable[[Product], int]
    """Returns the figure. Lower values are better."""
    middle: Callable[[random.Random, Product], Product]
    better: Callable[[random.Random, Product, Product], Product]
    """Returns the first product, changed so that it is better than the second product."""
    worse: Callable[[random.Random, Product, Product], Product]


MEASURES = (
    Measure(
        "cheapest",
        "price",
        lambda product: product.price_cents,
        lambda rng, product: replace(product, price_cents=rng.randrange(3000, 6000, 10)),
        lambda rng, product, than: replace(product, price_cents=than.price_cents - rng.randrange(10, 900, 10)),
        lambda rng, product, than: replace(product, price_cents=than.price_cents + rng.randrange(10, 900, 10)),
    ),
    Measure(
        "best rated",
        "rating",
        lambda product: -product.rating_tenths,
        lambda rng, product: replace(product, rating_tenths=rng.randint(35, 44)),
        lambda rng, product, than: replace(product, rating_tenths=than.rating_tenths + rng.randint(1, 4)),
        lambda rng, product, than: replace(product, rating_tenths=than.rating_tenths - rng.randint(1, 4)),
    ),
    Measure(
        "fastest delivered",
        "days",
        lambda product: product.delivery_days,
        lambda rng, product: replace(product, delivery_days=rng.randint(4, 8)),
        lambda rng, product, than: replace(product, delivery_days=than.delivery_days - rng.randint(1, 3)),
        lambda rng, product, than: replace(product, delivery_days=than.delivery_days + rng.randint(1, 3)),
    ),
)


def _best(rng: random.Random, catalogue: Catalogue, level: Level, feasible: bool) -> Problem:
    category = rng.choice(catalogue.categories)
    measure = rng.choice(MEASURES if level == "hard" else MEASURES[:1])
    material, variant = rng.choice(catalogue.materials[category]), some_variant(rng, catalogue)
    conditions = _conditions(rng, catalogue, category, material, variant, measure if level == "hard" else None)
    target = rng.choice(catalogue.of(category)).name if feasible else None
    catalogue = with_near_misses(rng, catalogue, category, conditions, target)
    if target is not None:
        catalogue = _with_rivals(rng, catalogue, category, conditions, target, measure)
    choices = {"Material": material, "Colour": variant.colour, "Size": variant.size, "Sort by": ORDERS[measure.sort]}

    def gold(view: View) -> Action:
        if target is not None and view.path.startswith("/p/") and view.find("heading").name == target:
            return say(target)
        return browse(view, category, choices, target)

    shop = _shop(rng, catalogue)
    goal = (
        f"Which of the {category} is the {measure.word} of those that meet all of this: {listed(conditions)}? "
        "Answer with the product's full name alone."
    )
    return Problem(goal, shop, shop.record(), gold, target, feasible)


def _conditions(
    rng: random.Random, catalogue: Catalogue, category: str, material: str, variant: Variant, measure: Measure | None
) -> list[Condition]:
    """Material and stock; with a measure two more, of figures that it does not measure."""
    conditions = [of_material(rng, material, catalogue.materials[category]), in_stock(variant)]
    if measure is None:
        return conditions
    more = {
        "price": at_most_price(rng, rng.randrange(25, 70) * 100),
        "rating": at_least_rating(rng, rng.randint(35, 44)),
        "days": at_most_days(rng, rng.randint(3, 8)),
        "warranty": at_least_warranty(rng, rng.randint(2, 5)),
    }
    names = [name for name in more if name != measure.sort]
    return conditions + [more[name] for name in sorted(rng.sample(names, 2))]


def _with_rivals(
    rng: random.Random, catalogue: Catalogue, category: str, conditions: list[Condition], target: str, measure: Measure
) -> Catalogue:
    """Products that miss one condition are better than the target; two others meet all and are worse."""
    best = measure.middle(rng, catalogue.products[target])
    changed, far = [best], []
    for product in catalogue.of(category):
        missed = sum(not condition.holds(product) for condition in conditions)
        if missed == 1:
            changed.append(measure.better(rng, product, best))
        elif missed > 1:
            far.append(product)
    rivals = rng.sample(far, min(2, len(far)))
    changed += [measure.worse(rng, made_to_meet(product, conditions), best) for product in rivals]
    made = catalogue.with_products(changed)
    fitting = sorted((product for product in made.of(category) if meets(product, conditions)), key=measure.value)
    assert fitting[0].name == target, fitting
    assert len(fitting) == 1 or measure.value(fitting[1]) > measure.value(fitting[0]), fitting
    return made


PRICE = Kind("shop/price", "find", make_price, infeasible=True)

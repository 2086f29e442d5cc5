"""`shop/constraints`: order the one product that meets several conditions. Infeasible if no product does."""

from __future__ import annotations

import random
from dataclasses import replace

from ..kind import Kind, Level, Problem
from .catalogue import make_catalogue, some_variant
from .checkout import first_draft
from .conditions import (
    Condition,
    at_least_rating,
    at_least_warranty,
    at_most_days,
    at_most_price,
    in_stock,
    listed,
    of_material,
    with_near_misses,
)
from .expecting import with_order
from .orders import Item, make_address, make_orders
from .site import Shop
from .solving import browse, buy


def make_constraints(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Three conditions on the easy level, four and six on the others; each is missed by a product that meets the rest."""
    catalogue = make_catalogue(rng, level)
    category = rng.choice(catalogue.categories)
    material, variant = rng.choice(catalogue.materials[category]), some_variant(rng, catalogue)
    conditions: list[Condition] = [
        of_material(rng, material, catalogue.materials[category]),
        in_stock(variant),
        at_most_price(rng, rng.randrange(25, 70) * 100),
    ]
    if level != "easy":
        conditions.append(at_least_rating(rng, rng.randint(35, 44)))
    if level == "hard":
        conditions += [at_most_days(rng, rng.randint(3, 8)), at_least_warranty(rng, rng.randint(2, 5))]
    target = rng.choice(catalogue.of(category)).name
    catalogue = with_near_misses(rng, catalogue, category, conditions, target if feasible else None)
    account = make_address(rng)
    draft = replace(first_draft(account), delivery="standard" if level == "easy" else "express")
    wanted = {Item(target, variant): 1 if level == "easy" else rng.randint(1, 2)}
    shop = Shop(catalogue, account, make_orders(rng, catalogue, account, 3))
    choices = {"Material": material, "Colour": variant.colour, "Size": variant.size}
    number = next(iter(wanted.values()))
    return Problem(
        goal=(
            f"Find the product among the {category} that meets all of this: {listed(conditions)}. "
            f"Order {number} of it in {variant.colour}, size {variant.size}, by {draft.delivery} delivery and without gift "
            "wrap, to the address that the checkout shows already. Place one order with nothing else in it."
        ),
        site=shop,
        expected=with_order(shop.record(), wanted, draft) if feasible else shop.record(),
        gold=lambda view: buy(
            view, wanted, draft, lambda now, name: browse(now, category, choices, name if feasible else None)
        ),
        feasible=feasible,
    )


CONSTRAINTS = Kind("shop/constraints", "constraints", make_constraints, infeasible=True)

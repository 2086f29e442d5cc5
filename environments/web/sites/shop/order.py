"""`shop/order`: order named variants to a given address. Infeasible if a variant is out of stock."""

from __future__ import annotations

import random
from dataclasses import replace

from ..kind import Kind, Level, Problem
from .catalogue import Catalogue, make_catalogue
from .checkout import Draft
from .expecting import with_order
from .orders import DELIVERIES, Item, make_address, make_orders
from .site import Shop
from .solving import buy, search_for
from .words import MESSAGES


def make_order(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """One product, or on the hard level two products, a message, and an unwanted item in the basket."""
    catalogue = make_catalogue(rng, level)
    names = rng.sample(sorted(catalogue.products), 3 if level == "hard" else 1)
    variants = {name: rng.choice(sorted(catalogue.products[name].stock)) for name in names}
    wanted = {Item(name, variants[name]): rng.randrange(1, 4) for name in names[:2]}
    lacking = None if feasible else rng.choice(sorted(wanted))
    catalogue = _stocked(rng, catalogue, {**wanted, **{Item(name, variants[name]): 1 for name in names[2:]}}, lacking)
    account, to = make_address(rng), make_address(rng)
    while to.name == account.name:
        to = make_address(rng)
    draft = _draft(rng, level, Draft(to.name, to.street, to.postcode, to.town))
    leftover = {Item(name, variants[name]): 1 for name in names[2:]}
    shop = Shop(catalogue, account, make_orders(rng, catalogue, account, 3), leftover)
    items = " and ".join(
        f"{count} of the {item.product} in {item.variant.colour}, size {item.variant.size}"
        for item, count in wanted.items()
    )
    gift = f'with gift wrap and the gift message "{draft.gift_message}"' if draft.gift_message else "with gift wrap"
    return Problem(
        goal=(
            f"Order {items}. Send the order to {draft.address}, by {draft.delivery} delivery, "
            f"{gift if draft.gift_wrap else 'without gift wrap'}. Place one order with exactly this in it."
        ).replace("pick-up point delivery", "delivery to a pick-up point"),
        site=shop,
        expected=with_order(shop.record(), wanted, draft) if feasible else shop.record(),
        gold=lambda view: buy(view, wanted, draft, search_for, lacking),
        feasible=feasible,
    )


def _draft(rng: random.Random, level: Level, draft: Draft) -> Draft:
    if level == "easy":
        return draft
    wrapped = level == "hard" or rng.random() < 0.5
    return replace(
        draft,
        delivery=rng.choice(sorted(DELIVERIES)),
        gift_wrap=wrapped,
        gift_message=rng.choice(MESSAGES) if level == "hard" else "",
    )


def _stocked(rng: random.Random, catalogue: Catalogue, items: dict[Item, int], lacking: Item | None) -> Catalogue:
    """Return the catalogue with enough of each item but too few or none of `lacking`, whose other variants are available."""
    changed = {}
    for item, count in items.items():
        product = catalogue.products[item.product]
        if item == lacking:
            others = [variant for variant in sorted(product.stock) if variant != item.variant]
            product = product.with_stock(rng.choice(others), count + 4)
            changed[item.product] = product.with_stock(item.variant, rng.randrange(count))
        else:
            changed[item.product] = product.with_stock(item.variant, count + rng.randrange(1, 6))
    return catalogue.with_products(changed.values())


ORDER = Kind("shop/order", "change", make_order, infeasible=True)

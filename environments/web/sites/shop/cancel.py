"""`shop/cancel`: cancel the one order with given items. Infeasible if it has been sent or does not exist."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from .catalogue import Catalogue, Product, Variant, make_catalogue
from .expecting import with_cancelled
from .orders import REASONS, Item, Order, make_address, make_orders
from .site import Shop

COUNTS: Mapping[Level, int] = {"easy": 4, "medium": 8, "hard": 13}

Contents = dict[Item, int]


def make_cancel(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Named by a product; on the medium level by its variant, and on the hard level by two variants and their numbers."""
    catalogue = make_catalogue(rng, level)
    named = [catalogue.products[name] for name in rng.sample(sorted(catalogue.products), 2)]
    wanted, distractors = _contents(rng, level, named)
    account, orders = make_address(rng), _orders(rng, catalogue, named, COUNTS[level])
    places = rng.sample(range(len(orders)), 1 + len(distractors))
    there = feasible or level == "easy" or rng.random() < 0.5
    for place, contents in zip(places, [wanted if there else {}, *distractors], strict=True):
        orders[place] = replace(orders[place], items={**orders[place].items, **contents}, status="placed", to=account)
    target = orders[places[0]]
    if not feasible and there:
        target = orders[places[0]] = replace(target, status=rng.choice(("shipped", "delivered")))
    fitting = [order for order in orders if _fits(order, wanted, level)]
    assert fitting == ([target] if there else []), (wanted, fitting)
    reason = rng.choice(REASONS)
    shop = Shop(catalogue, account, [replace(order, to=account) for order in orders])
    number = target.number if there else None
    return Problem(
        goal=f'Cancel the order that contains {_words(wanted, level)}. Give the reason "{reason}". Change nothing else.',
        site=shop,
        expected=with_cancelled(shop.record(), target.number, reason) if feasible else shop.record(),
        gold=lambda view: _gold(view, number, reason, feasible),
        feasible=feasible,
    )


def _contents(rng: random.Random, level: Level, named: list[Product]) -> tuple[Contents, list[Contents]]:
    """Return what the order contains, and what orders contain that are easily taken for it."""
    first, second = (Item(product.name, rng.choice(sorted(product.stock))) for product in named)
    colours = [colour for colour in named[0].colours if colour != first.variant.colour]
    other_size = next(variant for variant in sorted(named[0].stock) if variant.size != first.variant.size)
    other = Item(first.product, Variant(rng.choice(colours), first.variant.size) if colours else other_size)
    few, many = rng.sample(range(1, 5), 2)
    if level == "easy":
        return {first: few}, []
    if level == "medium":
        return {first: few}, [{other: few}, {second: few}]
    return {first: few, second: many}, [
        {first: few},
        {second: many},
        {first: many, second: many},
        {other: few, second: many},
    ]


def _orders(rng: random.Random, catalogue: Catalogue, named: list[Product], count: int) -> list[Order]:
    """Orders with none of the named products in them."""
    others = {name: product for name, product in catalogue.products.items() if product not in named}
    return list(make_orders(rng, replace(catalogue, products=others), make_address(rng), count))


def _fits(order: Order, wanted: Contents, level: Level) -> bool:
    if level == "easy":
        return {item.product for item in wanted} <= {item.product for item in order.items}
    if level == "medium":
        return set(wanted) <= set(order.items)
    return wanted.items() <= order.items.items()


def _words(wanted: Contents, level: Level) -> str:
    if level == "easy":
        return " and ".join(f"the {item.product}" for item in wanted)
    variants = {
        f"the {item.product} in {item.variant.colour}, size {item.variant.size}": n for item, n in wanted.items()
    }
    if level == "medium":
        return " and ".join(variants)
    return "both exactly " + " and exactly ".join(f"{count} of {words}" for words, count in variants.items())


def _gold(view: View, number: int | None, reason: str, feasible: bool) -> Action:
    """Look at the orders one after the other, the newest first, until it is the one."""
    if "has been cancelled" in view.text:
        return say("Done.")
    if view.path.endswith("/cancel"):
        return (
            view.click("button", "Cancel the order")
            if view.selected("Reason") == reason
            else view.select("Reason", reason)
        )
    if view.path.startswith("/orders/"):
        if number is not None and view.path == f"/orders/{number}":
            return (
                view.click("link", "Cancel this order")
                if feasible
                else give_up("The order can no longer be cancelled.")
            )
        if view.has("link", "Older order"):
            return view.click("link", "Older order")
        return give_up("No order contains that.")
    if view.path == "/orders":
        return {"click": {"bid": next(link.bid for link in view.all("link") if link.name.startswith("Order "))}}
    return view.click("link", "Orders")


CANCEL = Kind("shop/cancel", "change", make_cancel, infeasible=True)

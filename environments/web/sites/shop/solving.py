"""Steps that the scripted solvers of several kinds share: searching, browsing and buying."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

from ...view import View, give_up, say
from ..kind import Action
from .catalogue import money
from .checkout import Draft
from .listing import ORDERS
from .orders import DELIVERIES, Item

PARAMETERS = {"Material": "material", "Colour": "colour", "Size": "size", "Sort by": "sort"}
"""Parameters in the address, by the labels of the drop-down lists of a category."""


def search_for(view: View, name: str) -> Action:
    """Search for a product and open its page; give up at the end of the results."""
    if view.path.startswith("/search") and view.find("textbox", "Search").value == name and _searched(view) == name:
        return _open(view, name, f"The shop has no {name}.")
    if view.find("textbox", "Search").value != name:
        return view.fill("Search", name)
    return view.click("button", "Search")


def _searched(view: View) -> str:
    return parse_qs(urlsplit(view.url).query).get("q", [""])[0]


def browse(view: View, category: str, choices: Mapping[str, str], name: str | None) -> Action:
    """Open a category, narrow it by drop-down lists and to what is in stock, and open that product's page.

    If the name is None, the product does not exist: give up at the end of the list.
    """
    if not view.path.startswith("/c/"):
        return view.click("link", category)
    for label, option in choices.items():
        if view.selected(label) != option:
            return view.select(label, option)
    if not view.checked("checkbox", "In stock only"):
        return view.click("checkbox", "In stock only")
    applied = parse_qs(urlsplit(view.url).query)
    shown = {label: applied.get(parameter, [""])[0] for label, parameter in PARAMETERS.items()}
    shown["Sort by"] = ORDERS[shown["Sort by"]]
    if applied.get("stock") != ["1"] or any(shown[label] != option for label, option in choices.items()):
        return view.click("button", "Apply")
    return _open(view, name, f"No product among the {category} meets all conditions.")


def _open(view: View, name: str | None, reason: str) -> Action:
    if name is not None and view.has("link", name):
        return view.click("link", name)
    return view.click("link", "Next page") if view.has("link", "Next page") else give_up(reason)


def buy(
    view: View,
    wanted: Mapping[Item, int],
    draft: Draft,
    reach: Callable[[View, str], Action],
    lacking: Item | None = None,
) -> Action:
    """Put exactly the wanted items into the basket and place the order. Give up at the page of a missing item.

    `reach` opens the page of a product from any page but the basket's successors.
    """
    if "has been placed" in view.text:
        return say("Done.")
    if view.path == "/basket":
        return _at_basket(view, wanted, reach)
    if view.path == "/checkout":
        return _at_checkout(view, draft)
    if view.path.startswith("/p/"):
        item = next(item for item in wanted if item.product == view.find("heading").name)
        return (
            give_up(f"There are not {wanted[item]} of {item}.") if item == lacking else _add(view, item, wanted[item])
        )
    if view.path.startswith("/search"):
        return reach(view, _searched(view))
    if not view.has("link", "Basket (0)"):
        return {"click": {"bid": next(link.bid for link in view.all("link") if link.name.startswith("Basket ("))}}
    return reach(view, next(iter(wanted)).product)


def _add(view: View, item: Item, count: int) -> Action:
    for label, option in zip(("Colour", "Size"), item.variant, strict=True):
        if view.selected(label) != option:
            return view.select(label, option)
    if view.find("textbox", "Quantity").value != str(count):
        return view.fill("Quantity", str(count))
    return view.click("button", "Add to basket")


def _at_basket(view: View, wanted: Mapping[Item, int], reach: Callable[[View, str], Action]) -> Action:
    names = {str(item): count for item, count in wanted.items()}
    start = "Quantity of "
    there = {box.name.removeprefix(start): box for box in view.all("textbox") if box.name.startswith(start)}
    for name, box in there.items():
        if name not in names:
            return view.click("button", f"Remove {name}")
        if box.value != str(names[name]):
            return view.fill(box.name, str(names[name]))
    for item in wanted:
        if str(item) not in there:
            return reach(view, item.product)
    return view.click("link", "Go to checkout")


def _at_checkout(view: View, draft: Draft) -> Action:
    fields = {
        "Full name": draft.name,
        "Street and number": draft.street,
        "Postcode": draft.postcode,
        "Town": draft.town,
    }
    for label, value in fields.items():
        if view.find("textbox", label).value != value:
            return view.fill(label, value)
    way = f"{draft.delivery.capitalize()}, {money(DELIVERIES[draft.delivery])}"
    if not view.checked("radio", way):
        return view.click("radio", way)
    wrap = next(box for box in view.all("checkbox") if box.name.startswith("Gift wrap"))
    if ("checked" in wrap.states) != draft.gift_wrap:
        return {"click": {"bid": wrap.bid}}
    if view.find("textbox", "Gift message").value != draft.gift_message:
        return view.fill("Gift message", draft.gift_message)
    return view.click("button", "Place order")

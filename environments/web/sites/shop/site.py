"""The shop: its pages, the basket, and placing and cancelling orders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..site import Json, Page, Pages, Request
from .catalogue import Catalogue, Product, Variant, money
from .checkout import GIFT_WRAP_CENTS, Draft, first_draft, read_draft
from .listing import ORDERS, in_order, leaf, read_filters, search
from .orders import DELIVERIES, REASONS, Address, Item, Order
from .words import SIZES

PAGES = Pages(Path(__file__).parent / "templates")

NO_QUANTITY = "Enter the quantity as a whole number from 1 to 99."


class Shop:
    """The shop of one episode, signed in to one account."""

    origin = "https://shop.test"

    def __init__(
        self, catalogue: Catalogue, account: Address, orders: Iterable[Order], basket: Mapping[Item, int] | None = None
    ) -> None:
        self._catalogue = catalogue
        self._account = account
        self._orders = {order.number: order for order in orders}
        self._basket = dict(basket or {})
        self._stock = {name: dict(product.stock) for name, product in catalogue.products.items()}
        self._notice: str | None = None

    def record(self) -> dict[str, Json]:
        """Return all orders, the oldest first. What lies in the basket is not part of it."""
        return {"orders": [order.record() for order in self._orders.values()]}

    def handle(self, request: Request) -> Page:
        """Return the requested page."""
        post = request.method == "POST"
        match [part for part in request.path.split("/") if part]:
            case []:
                return self._render("home.html", categories=self._categories())
            case ["c", name] if (category := self._category(name)) is not None:
                return self._category_page(category, request)
            case ["search"]:
                return self._search_page(request)
            case ["p", slug] if (product := self._catalogue.slugs.get(slug)) is not None:
                return self._add(product, request) if post else self._product_page(product)
            case ["basket"]:
                return self._change_basket(request) if post else self._basket_page()
            case ["checkout"]:
                return self._place(request) if post else self._checkout_page(first_draft(self._account))
            case ["orders"]:
                newest_first = list(reversed(self._orders.values()))
                shown = leaf(newest_first, self._catalogue.per_page, request.query.get("page", ""))
                return self._render("orders.html", leaf=shown, total=self._total, address="/orders?page={}".format)
            case ["orders", number] if (order := self._order(number)) is not None:
                return self._order_page(order)
            case ["orders", number, "cancel"] if (order := self._order(number)) is not None:
                return self._cancel(order, request) if post else self._cancel_page(order)
        return self._render("missing.html", 404)

    def _render(self, template: str, status: int = 200, problem: str | None = None, **values: Any) -> Page:
        notice, self._notice = self._notice, None
        return PAGES.render(
            template,
            status,
            **{"site_name": "Harrowmere Home", "query": "", **values},
            in_basket=sum(self._basket.values()),
            notice=notice,
            problem=problem,
            money=money,
        )

    # products

    def _categories(self) -> list[tuple[str, int]]:
        return [(name, len(self._catalogue.of(name))) for name in self._catalogue.categories]

    def _category(self, path: str) -> str | None:
        return next((name for name in self._catalogue.categories if name.lower() == path), None)

    def _category_page(self, category: str, request: Request) -> Page:
        filters = read_filters(request.query, self._catalogue, category)
        shown = [
            product for product in self._catalogue.of(category) if filters.shows(product, self._stock[product.name])
        ]
        page = leaf(in_order(shown, filters.sort), self._catalogue.per_page, request.query.get("page", ""))
        return self._render(
            "category.html",
            problem=filters.problem,
            category=category,
            filters=filters,
            leaf=page,
            materials=self._catalogue.materials[category],
            colours=self._catalogue.colours,
            sizes=SIZES,
            orders=ORDERS,
            address=lambda number: filters.address(f"/c/{category.lower()}", number),
        )

    def _search_page(self, request: Request) -> Page:
        query = " ".join(request.query.get("q", "").split())
        products = tuple(self._catalogue.products.values())
        found = search(products, query)
        page = leaf(found, self._catalogue.per_page, request.query.get("page", ""))
        similar = [] if found else search(products, query, missing=1)[: self._catalogue.per_page]
        return self._render(
            "search.html",
            problem=None if query else "Enter a word to search for.",
            query=query,
            leaf=page,
            similar=similar,
            address=lambda number: f"/search?{urlencode({'q': query, 'page': number})}",
        )

    def _product_page(
        self, product: Product, chosen: Mapping[str, str] | None = None, problem: str | None = None
    ) -> Page:
        return self._render(
            "product.html",
            422 if problem else 200,
            problem,
            product=product,
            stock=self._stock[product.name],
            sizes=SIZES,
            chosen={"colour": "", "size": "", "quantity": "1", **(chosen or {})},
        )

    # basket

    def _add(self, product: Product, request: Request) -> Page:
        chosen = {name: request.value(name)[:20] for name in ("colour", "size", "quantity")}
        variant, count = Variant(chosen["colour"], chosen["size"]), _quantity(chosen["quantity"])
        if variant not in product.stock:
            return self._product_page(product, chosen, "Choose a colour and a size.")
        if count is None:
            return self._product_page(product, chosen, NO_QUANTITY)
        item = Item(product.name, variant)
        if problem := self._lack(item, self._basket.get(item, 0) + count):
            return self._product_page(product, chosen, problem)
        self._basket[item] = self._basket.get(item, 0) + count
        self._notice = f"Added to the basket: {count} × {item}."
        return Page(location="/basket")

    def _lack(self, item: Item, count: int) -> str | None:
        left = self._stock[item.product].get(item.variant, 0)
        if left == 0:
            return f"{item} is out of stock."
        return f"Only {left} of {item} are in stock." if count > left else None

    def _basket_page(self, problem: str | None = None, status: int = 200) -> Page:
        return self._render(
            "basket.html",
            status,
            problem,
            rows=[(self._catalogue.products[item.product], item, count) for item, count in self._basket.items()],
            total=self._price(self._basket),
        )

    def _change_basket(self, request: Request) -> Page:
        product = self._catalogue.slugs.get(request.value("product"))
        item = Item(product.name if product else "", Variant(request.value("colour"), request.value("size")))
        if item not in self._basket:
            return self._render("missing.html", 404)
        if request.value("do") == "remove":
            del self._basket[item]
            self._notice = f"Removed from the basket: {item}."
            return Page(location="/basket")
        count = _quantity(request.value("quantity"))
        if problem := NO_QUANTITY if count is None else self._lack(item, count):
            return self._basket_page(problem, 422)
        assert count is not None
        self._basket[item] = count
        self._notice = f"The quantity was changed: {count} × {item}."
        return Page(location="/basket")

    def _price(self, items: Mapping[Item, int]) -> int:
        return sum(self._catalogue.products[item.product].price_cents * count for item, count in items.items())

    # orders

    def _checkout_page(self, draft: Draft, problem: str | None = None) -> Page:
        if not self._basket:
            return self._basket_page("Put something into the basket before you go to the checkout.", 422)
        return self._render(
            "checkout.html",
            422 if problem else 200,
            problem,
            draft=draft,
            items=self._basket,
            price=self._price(self._basket),
            deliveries=DELIVERIES,
            gift_wrap_cents=GIFT_WRAP_CENTS,
        )

    def _place(self, request: Request) -> Page:
        draft = read_draft(request)
        problem = draft.problem or next(filter(None, (self._lack(*line) for line in self._basket.items())), None)
        if problem or not self._basket:
            return self._checkout_page(draft, problem)
        last = max(self._orders.values(), key=lambda order: order.number)
        order = Order(
            last.number + 1,
            last.day + timedelta(days=2),
            self._basket,
            draft.address,
            draft.delivery,
            draft.gift_wrap,
            draft.gift_message,
        )
        for item, count in self._basket.items():
            self._stock[item.product][item.variant] -= count
        self._orders[order.number], self._basket = order, {}
        self._notice = f"Thank you. Your order {order.number} has been placed."
        return Page(location=f"/orders/{order.number}")

    def _order(self, number: str) -> Order | None:
        return self._orders.get(int(number)) if re.fullmatch("[0-9]{1,6}", number) else None

    def _total(self, order: Order) -> int:
        return self._price(order.items) + DELIVERIES[order.delivery] + (GIFT_WRAP_CENTS if order.gift_wrap else 0)

    def _order_page(self, order: Order, problem: str | None = None) -> Page:
        numbers = sorted(self._orders)
        place = numbers.index(order.number)
        return self._render(
            "order.html",
            422 if problem else 200,
            problem,
            order=order,
            total=self._total(order),
            prices={item: self._catalogue.products[item.product].price_cents for item in order.items},
            older=numbers[place - 1] if place else None,
            newer=numbers[place + 1] if place + 1 < len(numbers) else None,
        )

    def _cancel_page(self, order: Order, problem: str | None = None) -> Page:
        if order.status != "placed":
            return self._order_page(order, f"Order {order.number} is {order.status} and can no longer be cancelled.")
        return self._render("cancel.html", 422 if problem else 200, problem, order=order, reasons=REASONS)

    def _cancel(self, order: Order, request: Request) -> Page:
        reason = request.value("reason")
        if order.status != "placed" or reason not in REASONS:
            return self._cancel_page(order, "Choose a reason.")
        self._orders[order.number] = replace(order, status="cancelled", reason=reason)
        self._notice = f"Order {order.number} has been cancelled."
        return Page(location=f"/orders/{order.number}")


def _quantity(text: str) -> int | None:
    return int(text) if re.fullmatch("[1-9][0-9]?", text) else None

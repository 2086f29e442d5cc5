"""The shop's pages: what they show, what their forms refuse, and what the record then holds."""

from __future__ import annotations

import html
from datetime import date
from typing import Any

import pytest

from environments.web.sites.shop.catalogue import Catalogue, Product, Variant
from environments.web.sites.shop.orders import Address, Item, Order
from environments.web.sites.shop.site import Shop
from tests.environments.web.sites.site_requests import get, post

HOME = Address("Mira Oldham", "4 Fern Row", "4821", "Calderby")
SMALL, LARGE = Variant("red", "small"), Variant("red", "large")


def product(name: str, **given: Any) -> Product:
    figures = {
        "material": "oak", "price_cents": 2450, "rating_tenths": 41, "delivery_days": 3,
        "warranty_years": 2, "weight_grams": 900,
    }  # fmt: skip
    stock = {SMALL: 3, Variant("red", "medium"): 0, LARGE: 5}
    return Product(name, "Lamps", **{"stock": stock, **figures, **given})


LAMPS = [
    product("Halvick desk lamp"),
    product("Halvick desk lamp Mini", price_cents=1990, material="brass"),
    product("Halvock <b>lamp</b>", price_cents=3000),
]


def shop(per_page: int = 5, lamps: list[Product] = LAMPS) -> Shop:
    catalogue = Catalogue({lamp.name: lamp for lamp in lamps}, {"Lamps": ("oak", "brass")}, ("red", "blue"), per_page)
    orders = [
        Order(11, date(2026, 1, 5), {Item(lamps[0].name, SMALL): 1}, HOME, status="delivered"),
        Order(12, date(2026, 1, 7), {Item(lamps[0].name, LARGE): 2}, HOME),
    ]
    return Shop(catalogue, HOME, orders)


def shown_page(site: Shop, path: str, **query: str) -> str:
    return html.unescape(get(site, path, **query).html)


ADD = {"colour": "red", "size": "small", "quantity": "2"}
FORM = {"name": "Ivo Marsh", "street": "7 Mill Lane", "postcode": "1234", "town": "Wexmoor", "delivery": "express"}


def test_an_order_is_recorded_with_all_that_was_chosen() -> None:
    site = shop()
    assert post(site, "/p/halvick-desk-lamp", **ADD).location == "/basket"
    assert "Basket (2)" in shown_page(site, "/basket")
    assert len(site.record()["orders"]) == 2, "a basket is no order"
    done = post(site, "/checkout", **{**FORM, "name": "  Ivo   Marsh "}, gift_wrap="yes", gift_message="For you")
    assert done.location == "/orders/13"
    assert "has been placed" in shown_page(site, "/orders/13")
    assert "has been placed" not in shown_page(site, "/orders/13"), "a notice is shown once"
    assert site.record()["orders"][-1] == {
        "number": 13,
        "lines": [{"product": "Halvick desk lamp", "colour": "red", "size": "small", "quantity": 2}],
        "to": {"name": "Ivo Marsh", "street": "7 Mill Lane", "postcode": "1234", "town": "Wexmoor"},
        "delivery": "express",
        "gift_wrap": True,
        "gift_message": "For you",
        "status": "placed",
        "reason": "",
    }
    assert "<td>1 left</td>" in shown_page(site, "/p/halvick-desk-lamp")
    assert "Basket (0)" in shown_page(site, "/")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"colour": ""}, "Choose a colour and a size."),
        ({"size": "huge"}, "Choose a colour and a size."),
        ({"colour": "blue"}, "Choose a colour and a size."),
        ({"quantity": "0"}, "whole number from 1 to 99"),
        ({"quantity": "two"}, "whole number from 1 to 99"),
        ({"quantity": "\u0662"}, "whole number from 1 to 99"),
        ({"quantity": "-1"}, "whole number from 1 to 99"),
        ({"quantity": "9" * 5000}, "whole number from 1 to 99"),
        ({"quantity": "4"}, "Only 3 of Halvick desk lamp, red, small are in stock."),
        ({"size": "medium"}, "Halvick desk lamp, red, medium is out of stock."),
    ],
)
def test_what_cannot_be_put_into_the_basket_is_said(wrong: dict[str, str], words: str) -> None:
    site = shop()
    answer = post(site, "/p/halvick-desk-lamp", **{**ADD, **wrong})
    assert answer.status == 422
    assert words in answer.html
    assert "Basket (0)" in answer.html


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": " "}, "Enter the full name."),
        ({"street": "Mill Lane"}, "The street lacks a number."),
        ({"street": ""}, "Enter the street and number."),
        ({"town": "x" * 61}, "The town has at most 60 characters."),
        ({"postcode": "12a4"}, "Enter the postcode as four digits."),
        ({"postcode": "1234\n5"}, "Enter the postcode as four digits."),
        ({"delivery": "owl"}, "Choose a way of delivery."),
        ({"gift_message": "Hello"}, "A gift message can only be sent with gift wrap."),
        ({"gift_wrap": "yes", "gift_message": "x" * 121}, "The gift message has at most 120 characters."),
    ],
)
def test_a_checkout_with_something_wrong_orders_nothing_and_keeps_what_was_typed(
    wrong: dict[str, str], words: str
) -> None:
    site = shop()
    post(site, "/p/halvick-desk-lamp", **ADD)
    answer = post(site, "/checkout", **{**FORM, **wrong})
    assert answer.status == 422
    assert words in answer.html
    assert "Wexmoor" in answer.html or "town" in wrong
    assert len(site.record()["orders"]) == 2


def test_an_empty_basket_cannot_be_ordered() -> None:
    site = shop()
    assert "Put something into the basket" in shown_page(site, "/checkout")
    assert post(site, "/checkout", **FORM).status == 422
    assert len(site.record()["orders"]) == 2


def test_the_basket_is_changed_line_by_line() -> None:
    site = shop()
    line = {"product": "halvick-desk-lamp", "colour": "red", "size": "small"}
    post(site, "/p/halvick-desk-lamp", **ADD)
    assert "Only 3 of" in post(site, "/basket", **line, do="update", quantity="4").html
    assert "whole number" in post(site, "/basket", **line, do="update", quantity="").html
    assert post(site, "/basket", **line, do="update", quantity="3").location == "/basket"
    assert "Basket (3)" in shown_page(site, "/basket")
    assert post(site, "/basket", **{**line, "size": "large"}, do="remove").status == 404
    assert post(site, "/basket", **line, do="remove").location == "/basket"
    assert "The basket is empty." in shown_page(site, "/basket")


def test_the_same_variant_twice_is_one_line_within_the_stock() -> None:
    site = shop()
    post(site, "/p/halvick-desk-lamp", **{**ADD, "quantity": "1"})
    assert post(site, "/p/halvick-desk-lamp", **ADD).location == "/basket"
    assert post(site, "/p/halvick-desk-lamp", **{**ADD, "quantity": "1"}).status == 422
    post(site, "/checkout", **FORM)
    assert [line["quantity"] for line in site.record()["orders"][-1]["lines"]] == [3]


def test_only_a_placed_order_can_be_cancelled_and_a_reason_is_needed() -> None:
    site = shop()
    assert "delivered and can no longer be cancelled" in shown_page(site, "/orders/11/cancel")
    assert "Cancel this order" not in shown_page(site, "/orders/11")
    first = site.record()
    assert post(site, "/orders/11/cancel", reason="No longer needed").status == 422
    assert "Choose a reason." in post(site, "/orders/12/cancel", reason="").html
    assert "Choose a reason." in post(site, "/orders/12/cancel", reason="because").html
    assert site.record() == first
    assert post(site, "/orders/12/cancel", reason="No longer needed").location == "/orders/12"
    assert [(order["status"], order["reason"]) for order in site.record()["orders"]] == [
        ("delivered", ""),
        ("cancelled", "No longer needed"),
    ]
    assert post(site, "/orders/12/cancel", reason="No longer needed").status == 422


def test_a_list_is_narrowed_sorted_and_turned() -> None:
    site = shop(per_page=2)
    names = [lamp.name for lamp in LAMPS]

    def shown(path: str = "/c/lamps", **query: str) -> list[str]:
        text = get(site, path, **query).html
        return [name for name in names if f">{html.escape(name)}</a>" in text]

    assert shown() == names[:2]
    assert shown(page="2") == names[2:]
    assert shown(page="99") == names[2:]
    assert shown(page="x") == shown(page="0") == names[:2]
    assert shown(material="brass") == names[1:2]
    assert shown(most="24.5") == names[:2]
    assert shown(most="20") == names[1:2]
    assert shown(colour="red", size="medium", stock="1") == []
    assert shown(colour="blue") == []
    assert shown(sort="price", page="2") == names[2:]
    assert "as a number" in shown_page(site, "/c/lamps", most="cheap")
    assert "no such material" in shown_page(site, "/c/lamps", material="<script>")
    assert shown("/search", q="desk LAMP") == names[:2]
    assert shown("/search", q="halvick brass") == names[1:2]
    assert "Similar products" in shown_page(site, "/search", q="halvick desk lamp duo")
    assert "Enter a word" in shown_page(site, "/search")


def test_what_is_typed_and_named_is_escaped() -> None:
    site = shop()
    assert "<b>lamp</b>" not in get(site, "/c/lamps").html
    assert "<i>" not in get(site, "/search", q="<i>x").html
    post(site, "/p/halvick-desk-lamp", **ADD)
    assert '"><i>' not in post(site, "/checkout", **{**FORM, "street": '"><i>', "name": ""}).html

"""Computes the record that a task expects from the initial record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ..site import Json
from .checkout import Draft
from .orders import Item


def with_order(record: Mapping[str, Json], wanted: Mapping[Item, int], draft: Draft) -> dict[str, Json]:
    """One order more, with the next number."""
    lines = [
        {"product": item.product, "colour": item.variant.colour, "size": item.variant.size, "quantity": count}
        for item, count in wanted.items()
    ]
    order = {
        "number": record["orders"][-1]["number"] + 1,
        "lines": sorted(lines, key=lambda line: (line["product"], line["colour"], line["size"])),
        "to": asdict(draft.address),
        "delivery": draft.delivery,
        "gift_wrap": draft.gift_wrap,
        "gift_message": draft.gift_message,
        "status": "placed",
        "reason": "",
    }
    return {**record, "orders": [*record["orders"], order]}


def with_cancelled(record: Mapping[str, Json], number: int, reason: str) -> dict[str, Json]:
    """That order is cancelled."""
    changed = [
        {**order, "status": "cancelled", "reason": reason} if order["number"] == number else order
        for order in record["orders"]
    ]
    return {**record, "orders": changed}

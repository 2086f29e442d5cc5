"""The shop's tasks: made again alike, one right solution (found here from goal and pages), and it gives the record."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import pytest

from environments.web.sites.kind import LEVELS, Kind, Level, Problem
from environments.web.sites.shop.kinds import KINDS
from tests.environments.web.sites.site_requests import get, post, problems_of


def page(problem: Problem, path: str, **query: str) -> str:
    answer = get(problem.site, path, **query)
    assert answer.status == 200, path
    return html.unescape(answer.html)


@dataclass
class Seen:
    """A product as its page shows it."""

    name: str
    slug: str
    facts: dict[str, str]
    stock: dict[tuple[str, str], int]

    def figure(self, fact: str) -> float:
        return float(re.search(r"[\d.]+", self.facts[fact])[0])  # type: ignore[index]


def seen(problem: Problem, slug: str) -> Seen:
    text = page(problem, f"/p/{slug}")
    stock = {
        (row[1], size): 0 if "out of stock" in cell else int(cell.split()[0])
        for row in re.finditer(r'<tr><th scope="row">(\w+)</th>\s*(<td>.*?</td>)</tr>', text)
        for size, cell in zip(("small", "medium", "large"), re.findall("<td>(.*?)</td>", row[2]), strict=True)
    }
    name = re.search("<h1>(.*?)</h1>", text)
    assert name is not None
    return Seen(name[1], slug, dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text)), stock)


def listed(problem: Problem, path: str, **query: str) -> list[str]:
    """The slugs of a list's products, page by page."""
    slugs: list[str] = []
    number = 1
    while True:
        text = page(problem, path, **query, page=str(number))
        slugs += re.findall(r'href="/p/([^"]+)"', text)
        if "Next page" not in text:
            return slugs
        number += 1


def named(problem: Problem, name: str) -> Seen | None:
    """The product of that name, searched for."""
    slugs = listed(problem, "/search", q=name)
    return next((found for slug in slugs if (found := seen(problem, slug)).name == name), None)


def meets(product: Seen, condition: str) -> bool:
    if found := re.fullmatch(r"is made of (\w+)", condition):
        return product.facts["Material"] == found[1]
    if found := re.fullmatch(r"is in stock in (\w+), size (\w+)", condition):
        return product.stock.get((found[1], found[2]), 0) > 0
    if found := re.fullmatch(r"costs at most £([\d.]+) each", condition):
        return product.figure("Price") <= float(found[1])
    if found := re.fullmatch(r"is rated ([\d.]+) or better", condition):
        return product.figure("Rating") >= float(found[1])
    if found := re.fullmatch(r"is delivered within (\d+) days", condition):
        return product.figure("Delivery") <= float(found[1])
    found = re.fullmatch(r"has a warranty of (\d+) years or more", condition)
    assert found is not None, condition
    return product.figure("Warranty") >= float(found[1])


def fitting(problem: Problem, category: str, conditions: str) -> tuple[list[Seen], list[Seen]]:
    """The products that meet all conditions, and those that miss exactly one."""
    counts = [
        (product, sum(not meets(product, condition) for condition in conditions.split("; ")))
        for product in (seen(problem, slug) for slug in listed(problem, f"/c/{category.lower()}"))
    ]
    return [product for product, missed in counts if missed == 0], [
        product for product, missed in counts if missed == 1
    ]


QUESTIONS = {
    "What does the (.+) cost": ("Price", r"£[\d.]+"),
    "What is the (.+) made of": ("Material", r"\w+"),
    "How is the (.+) rated": ("Rating", r"[\d.]+"),
    "Within how many days is the (.+) delivered": ("Delivery", r"\d+"),
    "How many years of warranty has the (.+)": ("Warranty", r"\d+"),
    "How many grams does the (.+) weigh": ("Weight", r"\d+"),
}
BEST = {"cheapest": ("Price", 1), "best rated": ("Rating", -1), "fastest delivered": ("Delivery", 1)}


def price_answer(problem: Problem) -> str | None:
    question = problem.goal.partition("?")[0]
    for pattern, (fact, form) in QUESTIONS.items():
        if found := re.fullmatch(pattern, question):
            product = named(problem, found[1])
            return None if product is None else re.search(form, product.facts[fact])[0]  # type: ignore[index]
    found = re.fullmatch(r"Which of the (\w+) is the (.+) of those that meet all of this: (.+)", question)
    assert found is not None, question
    (fact, sign), (fit, near) = BEST[found[2]], fitting(problem, found[1], found[3])
    assert len(near) >= len(found[3].split("; "))
    fit.sort(key=lambda product: sign * product.figure(fact))
    assert len(fit) < 2 or fit[0].figure(fact) != fit[1].figure(fact)
    if fit:
        assert any(sign * product.figure(fact) < sign * fit[0].figure(fact) for product in near), "nothing distracts"
    return fit[0].name if fit else None


def put(problem: Problem, product: Seen, colour: str, size: str, count: int) -> bool:
    if product.stock.get((colour, size), 0) < count:
        assert post(problem.site, f"/p/{product.slug}", colour=colour, size=size, quantity=str(count)).status == 422
        return False
    return post(problem.site, f"/p/{product.slug}", colour=colour, size=size, quantity=str(count)).location == "/basket"


def do_order(problem: Problem) -> bool:
    for fields in re.findall(
        r'name="product" value="(.+?)"><input type="hidden" name="colour" value="(.+?)"><input type="hidden" name="size" '
        r'value="(.+?)">\n<button class="plain" name="do" value="remove"',
        page(problem, "/basket"),
    ):
        post(problem.site, "/basket", do="remove", product=fields[0], colour=fields[1], size=fields[2])
    lines = re.findall(r"(\d) of the (.+?) in (\w+), size (\w+)", problem.goal)
    for count, name, colour, size in lines:
        product = named(problem, name)
        assert product is not None, name
        if not put(problem, product, colour, size, int(count)):
            return False
    to = re.search(
        r"Send the order to (.+), (.+), (\d{4}) (\w+), by (?:(\w+) delivery|delivery to a (.+?)),", problem.goal
    )
    assert to is not None, problem.goal
    message = re.search(r'message "(.+?)"', problem.goal)
    gift = {} if "without gift wrap" in problem.goal else {"gift_wrap": "yes"}
    answer = post(
        problem.site,
        "/checkout",
        **{"name": to[1], "street": to[2], "postcode": to[3], "town": to[4], "delivery": to[5] or to[6], **gift},
        gift_message=message[1] if message else "",
    )
    return answer.location is not None


def do_constraints(problem: Problem) -> bool:
    goal = re.match(
        r"Find the product among the (\w+) that meets all of this: (.+?)\. "
        r"Order (\d) of it in (\w+), size (\w+), by (\w+) delivery",
        problem.goal,
    )
    assert goal is not None, problem.goal
    fit, near = fitting(problem, goal[1], goal[2])
    assert len(fit) == problem.feasible
    assert len(near) >= len(goal[2].split("; "))
    if not fit or not put(problem, fit[0], goal[4], goal[5], int(goal[3])):
        return False
    form = dict(re.findall(r'<input type="text" id="\w+" name="(\w+)" value="([^"]*)"', page(problem, "/checkout")))
    return post(problem.site, "/checkout", **form, delivery=goal[6]).location is not None


def do_cancel(problem: Problem) -> bool:
    goal = re.match(r'Cancel the order that contains (.+?)\. Give the reason "(.+?)"', problem.goal)
    assert goal is not None, problem.goal
    wanted = [
        re.fullmatch(r"(?:both )?(?:exactly (\d) of )?the (.+?)(?: in (\w+), size (\w+))?", part)
        for part in goal[1].split(" and ")
    ]
    fit = []
    for order in problem.site.record()["orders"]:
        text = page(problem, f"/orders/{order['number']}")
        rows = re.findall(r"<tr><td>(.+?)</td><td>(\w+), (\w+)</td><td class=\"number\">(\d+)</td>", text)
        if all(
            any(
                want[2] == name and want[3] in (None, colour) and want[4] in (None, size) and want[1] in (None, count)
                for name, colour, size, count in rows
            )
            for want in wanted
            if want is not None
        ):
            fit.append((order["number"], "Cancel this order" in text))
    assert len(fit) <= 1, (goal[1], fit)
    if not fit or not fit[0][1]:
        return False
    return post(problem.site, f"/orders/{fit[0][0]}/cancel", reason=goal[2]).location is not None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("feasible", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_task_has_one_solution_and_it_gives_the_expected_record(kind: Kind, level: Level, feasible: bool) -> None:
    do = {"shop/order": do_order, "shop/constraints": do_constraints, "shop/cancel": do_cancel}
    for problem in problems_of(kind, level, feasible):
        if kind.name == "shop/price":
            assert price_answer(problem) == problem.answer
        else:
            assert do[kind.name](problem) is feasible, problem.goal
        assert problem.site.record() == problem.expected, problem.goal

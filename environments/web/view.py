"""Parses an observation, from which scripted solvers choose their actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ROLES_OF_A_GROUP = ("row", "listitem", "article")
_LINE = re.compile(
    r'^(?P<indent> *)(?:\[(?P<bid>\d+)\] )?(?P<role>[\w/-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?'
    r"(?P<states>(?: \[[^\]]+\])*)(?:: (?P<value>.*))?$"
)


@dataclass
class Element:
    """One line of the page: its number (None: it cannot be acted on), role, name, states and value or text."""

    bid: int | None
    role: str
    name: str
    states: tuple[str, ...]
    value: str
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """Return the element and everything inside it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def text(self) -> str:
        """All names and values inside, joined by spaces."""
        return " ".join(part for element in self.walk() for part in (element.name, element.value) if part)


class NotOnPage(LookupError):
    """The page does not contain the element that a solver looks for."""


class View:
    """A page as the policy sees it. `url` is the active tab's; `path` is its part after the origin."""

    def __init__(self, observation: str) -> None:
        head, _, tree = observation.partition("\nPage:\n")
        active = re.search(r"^Tab \d+ \(active\): .* (\S+)$", head, re.MULTILINE)
        self.url = active.group(1) if active else ""
        self.path = "/" + self.url.partition("://")[2].partition("/")[2]
        self.root = Element(None, "document", "", (), "")
        self._read(tree)

    def _read(self, tree: str) -> None:
        above = [(-1, self.root)]
        for line in tree.split("\n"):
            if (found := _LINE.match(line)) is None:
                continue
            depth = len(found["indent"]) // 2
            element = Element(
                int(found["bid"]) if found["bid"] else None,
                found["role"],
                json.loads(found["name"]) if found["name"] else "",
                tuple(re.findall(r"\[([^\]]+)\]", found["states"] or "")),
                re.sub(r"\\(.)", lambda pair: "\n" if pair[1] == "n" else pair[1], found["value"] or ""),
            )
            while above[-1][0] >= depth:
                above.pop()
            above[-1][1].children.append(element)
            above.append((depth, element))

    @property
    def text(self) -> str:
        """All names and values of the page."""
        return self.root.text

    def all(self, role: str, name: str | None = None, inside: Element | None = None) -> list[Element]:
        """Return the elements of that role (and exactly that name), in order."""
        return [
            element
            for element in (inside or self.root).walk()
            if element.role == role and (name is None or element.name == name)
        ]

    def has(self, role: str, name: str | None = None, inside: Element | None = None) -> bool:
        """Return whether the page has such an element."""
        return bool(self.all(role, name, inside))

    def find(self, role: str, name: str | None = None, inside: Element | None = None) -> Element:
        """Return the first such element. Raises NotOnPage."""
        for element in self.all(role, name, inside):
            return element
        raise NotOnPage(f"there is no {role} {name or ''} at {self.url}: {self.text[:300]}")

    def group(self, *texts: str) -> Element:
        """Return the first table row, list item or article that contains all these strings. Raises NotOnPage."""
        for element in self.root.walk():
            if element.role in ROLES_OF_A_GROUP and all(text in element.text for text in texts):
                return element
        raise NotOnPage(f"no row, item or article at {self.url} contains {' and '.join(texts)}")

    def click(self, role: str, name: str, inside: Element | None = None) -> dict[str, dict[str, Any]]:
        """Return the action that clicks it."""
        return {"click": {"bid": self.find(role, name, inside).bid}}

    def fill(self, name: str, value: str, role: str = "textbox") -> dict[str, dict[str, Any]]:
        """Return the action that fills a field."""
        return {"fill": {"bid": self.find(role, name).bid, "value": value}}

    def select(self, name: str, option: str, inside: Element | None = None) -> dict[str, dict[str, Any]]:
        """Return the action that chooses an option of a drop-down list."""
        return {"select_option": {"bid": self.find("combobox", name, inside).bid, "options": [option]}}

    def selected(self, name: str) -> str:
        """Return the option that a drop-down list shows."""
        return next(item.name for item in self.find("combobox", name).children if "selected" in item.states)

    def checked(self, role: str, name: str) -> bool:
        """Return a check box or radio button is on."""
        return "checked" in self.find(role, name).states


def say(text: str) -> dict[str, dict[str, Any]]:
    """Return the action that ends the episode with a message."""
    return {"send_msg_to_user": {"text": text}}


def give_up(reason: str) -> dict[str, dict[str, Any]]:
    """Return the action that ends the episode by reporting that the task cannot be done."""
    return {"report_infeasible": {"reason": reason}}

"""The page as text: Chromium's accessibility tree, by playwright, with numbers of our own for what can be acted on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

CONTROLS = frozenset(
    {
        "button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox",
        "menuitemradio", "option", "radio", "scrollbar", "searchbox", "slider", "spinbutton", "switch", "tab",
        "textbox", "treeitem",
    }
)  # fmt: skip
"""Roles whose elements get a number; others get one where the page shows a hand over them."""

MAX_CHARACTERS = 20_000

_KEY = re.compile(r'^(?P<role>[\w/-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<states>(?: \[[^\]]*\])*)$')
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the same result; C is ten times as fast


@dataclass
class Node:
    """One element: `ref` is playwright's name for it in this snapshot, "" where it has none."""

    role: str
    name: str = ""
    states: tuple[str, ...] = ()
    ref: str = ""
    pointer: bool = False
    focused: bool = False
    value: str = ""
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This node and those inside, in the page's order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Control:
    """What a number of the observation stands for."""

    ref: str
    role: str
    name: str
    states: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.role} {json.dumps(self.name, ensure_ascii=False)}" if self.name else self.role


@dataclass(frozen=True)
class PageText:
    """The tree as text, what its numbers stand for, and the number that has the focus (None: no numbered one)."""

    text: str
    controls: dict[int, Control]
    focused: int | None


def page_text(snapshot: str, number_all: bool = False) -> PageText:
    """A snapshot of playwright's mode "ai" as an observation's text. number_all: whatever playwright can act on."""
    nodes = [node for item in yaml.load(snapshot, _LOADER) or [] for node in _pruned(_node(item))]  # noqa: S506 (text only)
    controls: dict[int, Control] = {}
    focused = None
    lines: list[str] = []

    def write(nodes: list[Node], depth: int) -> None:
        nonlocal focused
        for node in nodes:
            number = ""
            if node.ref and (number_all or node.role in CONTROLS or node.pointer):
                bid = len(controls) + 1
                controls[bid] = Control(node.ref, node.role, node.name, node.states)
                number = f"[{bid}] "
                if node.focused:
                    focused = bid
            name = f" {json.dumps(node.name, ensure_ascii=False)}" if node.name else ""
            states = "".join(f" [{state}]" for state in node.states)
            value = ": " + node.value.replace("\\", "\\\\").replace("\n", "\\n") if node.value else ""
            lines.append(f"{'  ' * depth}{number}{node.role}{name}{states}{value}")
            write(node.children, depth + 1)

    write(nodes, 0)
    text = "\n".join(lines)
    if len(text) > MAX_CHARACTERS:
        text = text[: text.rindex("\n", 0, MAX_CHARACTERS)] + f"\n… (cut off after {MAX_CHARACTERS} characters)"
    return PageText(text, controls, focused)


def _node(item: object) -> Node:
    if isinstance(item, dict):
        [(key, value)] = item.items()
    else:
        key, value = str(item), ""
    if key == "text" or (found := _KEY.match(key)) is None:
        return Node("text", value=value if isinstance(value, str) and value else key)
    states = re.findall(r"\[([^\]]*)\]", found["states"])
    node = Node(
        found["role"],
        json.loads(found["name"]) if found["name"] else "",
        tuple(state for state in states if not state.startswith(("ref=", "cursor=")) and state != "active"),
        next((state[4:] for state in states if state.startswith("ref=")), ""),
        "cursor=pointer" in states,
        "active" in states,
    )
    if isinstance(value, list):
        node.children = [_node(child) for child in value if not _is_property(child)]
    else:
        node.value = value
    return node


def _is_property(item: object) -> bool:
    return isinstance(item, dict) and next(iter(item)).startswith("/")


def _pruned(node: Node) -> list[Node]:
    """The node without wrappers that say nothing, and without text that only repeats a control's name."""
    children = [kept for child in node.children for kept in _pruned(child)]
    names = {child.name for child in children if child.role in CONTROLS}
    node.children = [child for child in children if not (child.role == "text" and child.value in names)]
    if node.role == "generic" and not node.name and not node.pointer:
        return [Node("text", value=node.value)] if node.value else node.children
    if node.role in {"rowgroup", "generic"} and not node.name and not node.pointer and not node.value:
        return node.children
    if not node.value and len(node.children) == 1 and node.children[0].role == "text":
        node.value, node.children = node.children[0].value, []
    return [node]

"""The page as text: Chromium's accessibility tree from playwright, with our own numbers for elements that accept actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import yaml

CONTROLS = frozenset(
    {
        "button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox",
        "menuitemradio", "option", "radio", "scrollbar", "searchbox", "slider", "spinbutton", "switch", "tab",
        "textbox", "treeitem",
    }
)  # fmt: skip
"""Roles whose elements get a number. Other elements get one if the page shows a hand cursor over them."""

FIELDS = frozenset(
    {"checkbox", "combobox", "listbox", "radio", "searchbox", "slider", "spinbutton", "switch", "textbox"}
)
"""Roles whose name is usually the text of an adjacent label."""

MAX_CHARACTERS = 20_000

_PLACEHOLDER = "placeholder"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KEY = re.compile(r'^(?P<role>[\w/-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<states>(?: \[[^\]]*\])*)$')
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # both load the same data, but C is ten times as fast


@dataclass
class Node:
    """One element. `ref` is playwright's name for it in this snapshot, or ""."""

    role: str
    name: str = ""
    states: tuple[str, ...] = ()
    ref: str = ""
    pointer: bool = False
    focused: bool = False
    value: str = ""
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and its descendants, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Control:
    """The element that a number in the observation refers to."""

    ref: str
    role: str
    name: str
    states: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.role} {json.dumps(self.name, ensure_ascii=False)}" if self.name else self.role


@dataclass(frozen=True)
class PageText:
    """The tree as text, the elements of its numbers, and the number of the focused element, if it has one."""

    text: str
    controls: dict[int, Control]
    focused: int | None


def page_text(snapshot: str, number_all: bool = False) -> PageText:
    """Return a snapshot in playwright's mode "ai" as an observation. `number_all` numbers all elements with a `ref`."""
    # YAML rejects other characters, or treats them as line breaks
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", snapshot)
    items = yaml.load(printable, _LOADER) or []  # noqa: S506 (text only)
    nodes = _pruned(Node("generic", children=[_node(item) for item in items]))
    controls: dict[int, Control] = {}
    focused = None
    lines: list[str] = []

    def write(nodes: list[Node], depth: int) -> None:
        nonlocal focused
        for node in nodes:
            number = ""
            if node.ref and (number_all or node.pointer or node.role in CONTROLS or node.role == "summary"):
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
        # cut at the end of a line, unless the first line is too long
        end = text.rfind("\n", 0, MAX_CHARACTERS + 1)
        text = text[: MAX_CHARACTERS if end < 0 else end] + f"\n… (cut off after {MAX_CHARACTERS} characters)"
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
    if not isinstance(value, list):
        node.value = value
        return node
    for child in value:
        if not _is_property(child):
            node.children.append(_node(child))
        elif "/placeholder" in child and child["/placeholder"] != node.name:
            node.children.append(Node(_PLACEHOLDER, value=child["/placeholder"]))
    return node


def _is_property(item: object) -> bool:
    return isinstance(item, dict) and next(iter(item)).startswith("/")


def _pruned(node: Node) -> list[Node]:
    """Return the node without wrappers that say nothing, and without text that only repeats a name."""
    children = _unlabelled([kept for child in node.children for kept in _pruned(child)])
    if node.role == "table":
        children = [child for child in children if child.role != "caption" or child.value != node.name]
    if any(child.role == "text" for child in children):  # a placeholder is invisible when the field has a value
        children = [child for child in children if child.role != _PLACEHOLDER]
    if node.role == "group" and not node.name and children and children[0].role == "generic" and children[0].name:
        children[0].role = "summary"  # the summary opens and closes <details>
    if node.name and _joined(child.value for child in children if child.role == "text") == _joined([node.name]):
        children = [child for child in children if child.role != "text"]
    node.children = children
    if node.role in {"rowgroup", "generic"} and not node.name and not node.pointer:
        return [Node("text", value=node.value)] if node.value else children
    if not node.value and len(children) == 1 and children[0].role == "text":
        node.value, node.children = children[0].value, []
    return [node]


def _joined(texts: Iterable[str]) -> str:
    """Join strings without spaces, because a name that is built from several parts has other spaces."""
    return "".join("".join(texts).split())


def _unlabelled(nodes: list[Node]) -> list[Node]:
    """Remove the text of labels, which is next to the field whose name it is."""
    labels: set[int] = set()
    for index, node in enumerate(nodes):
        if node.role in FIELDS:
            for other in (index - 1, index + 1):
                if 0 <= other < len(nodes) and nodes[other].role == "text" and nodes[other].value == node.name:
                    labels.add(other)
                    break
    return [node for index, node in enumerate(nodes) if index not in labels]

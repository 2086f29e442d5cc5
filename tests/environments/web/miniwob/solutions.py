"""Solutions of simple tasks, by rules: (goal, page, number of the action) to the next action."""

from __future__ import annotations

import re
from collections.abc import Callable

from environments.web.view import Element, View

Action = dict[str, dict[str, object]]
Solution = Callable[[str, View, int], Action]


def click(element: Element) -> Action:
    return {"click": {"bid": element.bid}}


def fill(element: Element, value: str) -> Action:
    return {"fill": {"bid": element.bid, "value": value}}


def quoted(goal: str) -> list[str]:
    return re.findall(r'"([^"]*)"', goal)


def button(name: str) -> Solution:
    return lambda goal, view, turn: click(view.find("button", name))


def quoted_one(role: str) -> Solution:
    return lambda goal, view, turn: click(view.find(role, quoted(goal)[0]))


def filled(*values: Callable[[str, View], str], role: str = "textbox", send: str = "Submit") -> Solution:
    """Fills one field after another, then presses the button."""

    def solution(goal: str, view: View, turn: int) -> Action:
        if turn < len(values):
            return fill(view.all(role)[turn], values[turn](goal, view))
        return click(view.find("button", send))

    return solution


def checked(role: str) -> Solution:
    def solution(goal: str, view: View, turn: int) -> Action:
        names = re.fullmatch(r"Select (.*) and click Submit\.", goal)[1].split(", ")
        for element in view.all(role):
            if element.name in names and "checked" not in element.states:
                return click(element)
        return click(view.find("button", "Submit"))

    return solution


def email(icon: str) -> Solution:
    def solution(goal: str, view: View, turn: int) -> Action:
        name = re.search(r"by (\w+)", goal)[1]
        thread = next(item for item in view.all("generic") if item.bid and item.text.startswith(name))
        return click(next(item for item in thread.children if item.name.startswith(f"{icon},")))

    return solution


def click_color(goal: str, view: View, turn: int) -> Action:
    color = goal.removeprefix("Click on the ").removesuffix(" colored box.")
    return click(next(item for item in view.all("img") if item.name.startswith(f"color, {color},")))


def choose_list(goal: str, view: View, turn: int) -> Action:
    if turn == 0:
        name = goal.removeprefix("Select ").removesuffix(" from the list and click Submit.")
        return {"select_option": {"bid": view.find("combobox").bid, "options": [name]}}
    return click(view.find("button", "Submit"))


def iso_date(goal: str, view: View) -> str:
    month, day, year = re.search(r"(\d+)/(\d+)/(\d+)", goal).groups()
    return f"{year}-{month}-{day}"


def day_time(goal: str, view: View) -> str:
    hour, minute, half = re.search(r"(\d+):(\d+) ([AP])M", goal).groups()
    return f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}"


def arithmetic(goal: str, view: View) -> str:
    left, sign, right = re.search(r"(\d+) ([-+x]) (\d+) =", view.text).groups()
    return str({"+": int(left) + int(right), "-": int(left) - int(right), "x": int(left) * int(right)}[sign])


def algebra(goal: str, view: View) -> str:
    left, sign, right, result = re.search(r"(\w+) ([-+]) (\w+) = (-?\d+)", view.text).groups()
    total = int(result)
    if left == "x":
        return str(total - int(right) if sign == "+" else total + int(right))
    return str(total - int(left) if sign == "+" else int(left) - total)


def table_value(goal: str, view: View) -> str:
    key = re.search(r"value of (.*) into", goal)[1]
    row = next(row for row in view.all("row") if row.children[0].name == key)
    return row.children[1].name


def nth_word(goal: str, view: View) -> str:
    place = int(re.search(r"(\d+)", goal)[1])
    lines = [item.value for item in view.root.walk() if item.value and not item.value.startswith("Find the")]
    return lines[0].split()[place - 1].strip(".,")


def cased(goal: str, view: View) -> str:
    word = quoted(goal)[0]
    return word.upper() if "upper case" in goal else word.lower()


def blocks(goal: str, view: View) -> str:
    return str(sum(item.name.startswith("addition-block") for item in view.all("img")))


def grid(goal: str, view: View, turn: int) -> Action:
    place = re.search(r"\([-\d,]+\)", goal)[0]
    return click(next(item for item in view.all("img") if item.name.startswith(f"circle {place} ")))


def picked(goal: str, view: View) -> str:
    return re.search(r"Select (-?\d+) ", goal)[1]


def wheel(goal: str, view: View) -> str:
    return re.search(r"#([0-9a-f]{6})", next(item.name for item in view.all("img") if item.name.startswith("cc,")))[1]


def nth_field(goal: str, view: View, turn: int) -> Action:
    place = re.search(r"the (\d)", goal)
    return click(view.all("textbox")[int(place[1]) - 1 if place else 0])


def collapsed(goal: str, view: View, turn: int) -> Action:
    return click(view.all("tab")[0] if turn == 0 else view.find("button", "Submit"))


SOLUTIONS: dict[str, Solution] = {
    "choose-list": choose_list,
    "click-button": quoted_one("button"),
    "click-button-sequence": lambda goal, view, turn: click(view.find("button", ("ONE", "TWO")[turn])),
    "click-checkboxes": checked("checkbox"),
    "click-checkboxes-large": checked("checkbox"),
    "click-checkboxes-transfer": checked("checkbox"),
    "click-collapsible": collapsed,
    "click-collapsible-nodelay": collapsed,
    "click-color": click_color,
    "click-dialog": button("Close"),
    "click-dialog-2": lambda goal, view, turn: click(
        view.find("button", "Close" if quoted(goal)[0] == "x" else quoted(goal)[0])
    ),
    "click-link": quoted_one("link"),
    "click-option": checked("radio"),
    "click-tab": lambda goal, view, turn: click(view.find("link", re.search(r"Tab #\d", goal)[0])),
    "click-test": button("Click Me!"),
    "click-test-2": button("ONE"),
    "click-test-transfer": button("ONE"),
    "drag-box": lambda goal, view, turn: (
        {"drag_and_drop": {"from_bid": view.find("button", "s").bid, "to_bid": view.find("button", "L").bid}}
        if turn == 0
        else click(view.find("button", "Submit"))
    ),
    "email-inbox-delete": email("trash"),
    "email-inbox-important": email("star"),
    "enter-date": filled(iso_date),
    "enter-password": filled(lambda goal, view: quoted(goal)[0], lambda goal, view: quoted(goal)[0]),
    "enter-text": filled(lambda goal, view: quoted(goal)[0]),
    "enter-text-2": filled(cased),
    "enter-text-dynamic": filled(lambda goal, view: quoted(goal)[0]),
    "enter-time": filled(day_time),
    "find-word": filled(nth_word),
    "focus-text": nth_field,
    "focus-text-2": nth_field,
    "grid-coordinate": grid,
    "login-user": filled(lambda goal, view: quoted(goal)[0], lambda goal, view: quoted(goal)[1], send="Login"),
    "read-table": filled(table_value),
    "simple-algebra": filled(algebra),
    "simple-arithmetic": filled(arithmetic),
    "unicode-test": quoted_one("button"),
    "use-colorwheel-2": filled(wheel),
    "use-spinner": filled(picked, role="spinbutton"),
    "visual-addition": filled(blocks),
}

"""`admin/switch`: stop one machine, on a page with a stop button for each machine. One click changes the record."""

from __future__ import annotations

import random
from pathlib import Path

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from ..site import Json, Page, Pages, Request
from . import names
from .site import ORIGIN

PAGES = Pages(Path(__file__).parent / "templates")
COUNTS: dict[Level, int] = {"easy": 3, "medium": 5, "hard": 8}


class SwitchSite:
    """A page of machines that run; their names are in the order of the page."""

    origin = ORIGIN

    def __init__(self, machines: list[str]) -> None:
        self._machines = dict.fromkeys(machines, "Running")
        self._notice = ""

    def record(self) -> dict[str, Json]:
        """Return the state of each machine."""
        return {"machines": dict(self._machines)}

    def handle(self, request: Request) -> Page:
        """Return the page with the buttons."""
        if request.path != "/":
            return PAGES.render("nowhere.html", 404, title="Page not found", site_name="Yard", notice="", problem="")
        problem = ""
        if request.method == "POST":
            name = request.value("machine")
            if self._machines.get(name) == "Running":
                self._machines[name] = "Stopped"
                self._notice = f"{name} is stopped."
                return Page(location="/")
            problem = "Choose a machine that runs."
        notice, self._notice = self._notice, ""
        return PAGES.render(
            "switch.html", title="Machines", site_name="Yard", machines=self._machines, notice=notice, problem=problem
        )


def make(random_: random.Random, level: Level, feasible: bool) -> Problem:
    """Return a machine's name is one of three types and one of three numbers: the more machines, the more nearly alike."""
    assert feasible
    types = random_.sample(names.TYPES, 3)
    numbers = random_.sample(range(1, 10), 3)
    machines = random_.sample([f"{type_} {number}" for type_ in types for number in numbers], COUNTS[level])
    goal = random_.choice(machines)

    def gold(view: View) -> Action:
        if "disabled" in view.find("button", goal).states:
            return say("Done.")
        return view.click("button", goal)

    expected = {name: "Stopped" if name == goal else "Running" for name in machines}
    return Problem(
        goal=f"Stop the machine {goal}.",
        site=SwitchSite(machines),
        expected={"machines": expected},
        gold=gold,
        ends_on_change=True,
    )


SWITCH = Kind("admin/switch", "change", make)

"""`admin/settings`: change several settings, on one or several settings pages."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from .data import make_books
from .options import SECTIONS, Setting, Value, settings_of
from .site import AdminSite

COUNTS: dict[Level, int] = {"easy": 2, "medium": 4, "hard": 6}


def make(random_: random.Random, level: Level, feasible: bool) -> Problem:
    """Each setting that is named gets a value that it does not have."""
    assert feasible
    books = make_books(random_, level)
    chosen = random_.sample(settings_of(level, books.depots), COUNTS[level])
    values = {setting: setting.draw(random_, other_than=books.settings[setting.key]) for setting in chosen}
    site = AdminSite(books)
    expected = copy.deepcopy(site.record())
    expected["settings"].update({setting.key: value for setting, value in values.items()})
    wishes = "; ".join(_wish(setting, value) for setting, value in values.items())
    return Problem(
        goal=f"Change these settings and no others: {wishes}.",
        site=site,
        expected=expected,
        gold=_gold(values),
    )


def _wish(setting: Setting, value: Value) -> str:
    if setting.shape == "check":
        return f'"{setting.label}" {"on" if value else "off"}'
    return f'"{setting.label}" to {value}'


def _gold(values: Mapping[Setting, Value]) -> Callable[[View], Action]:
    sections = [section for section in SECTIONS if any(setting.section == section for setting in values)]

    def gold(view: View) -> Action:
        if not view.path.startswith("/settings"):
            return view.click("link", "Settings")
        section = next(heading.name for heading in view.all("heading") if "level=2" in heading.states)
        if section not in sections:
            return view.click("link", sections[0])
        here = {setting: value for setting, value in values.items() if setting.section == section}
        if acting := next((found for setting, value in here.items() if (found := _set(view, setting, value))), None):
            return acting
        if not view.has("status"):
            return view.click("button", "Save")
        later = sections[sections.index(section) + 1 :]
        return view.click("link", later[0]) if later else say("Done.")

    return gold


def _set(view: View, setting: Setting, value: Value) -> Action | None:
    """Return the action that sets it; None where the page shows it so."""
    if setting.shape == "check":
        on = view.checked("checkbox", setting.label)
        return None if on == value else view.click("checkbox", setting.label)
    if setting.shape == "radio":
        return None if view.checked("radio", str(value)) else view.click("radio", str(value))
    if setting.shape == "list":
        return None if view.selected(setting.label) == value else view.select(setting.label, str(value))
    label = f"{setting.label} ({setting.low} to {setting.high})"
    return None if view.find("textbox", label).value == str(value) else view.fill(label, str(value))


SETTINGS = Kind("admin/settings", "change", make)

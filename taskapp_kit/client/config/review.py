"""Everything that is wrong with an RL config, found in one go, and everything that may be a slip."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from taskapp_kit.client.config.consistency import agree, is_short, models_named
from taskapp_kit.client.config.problems import Document, Review, told
from taskapp_kit.client.config.sections import BY_NAME, SECTIONS, TOP_LEVEL, ConfigSection, inner_sections
from taskapp_kit.client.config.values import (
    MOST_LEVELS,
    Place,
    is_key_like,
    is_plain_number,
    leaves,
    misfits,
    name_shown,
)
from taskapp_kit.errors import closest

MOST_OF_ONE_LIST = 5
"""Elements of one list that are told one by one."""


def review(document: Document) -> Review:
    """Looks at all of a document."""
    found = Review(document)
    short = is_short(document)
    for name, value in document.items():
        section = BY_NAME.get(name) if name in TOP_LEVEL else None
        if section is not None:
            _section(found, section, value, short=short)
        elif isinstance(value, dict):
            found.slip((name,), f"[{name_shown(name)}] is no section that is known{_meant(name, TOP_LEVEL, '[{}]')}")
        else:
            found.slip((name,), f"{name_shown(name)} stands in no section, and no trainer reads it{_home_of(name)}")
    if not short:
        for section in SECTIONS:
            if section.required and section.name not in document:
                _missing_section(found, section)
    agree(found, short=short)
    _every_value(found)
    return found


def _section(found: Review, section: ConfigSection, value: Any, *, short: bool) -> None:
    if not isinstance(value, dict):
        found.misfit(section.path, value, "a section", f"Write [{section.name}] in a line of its own, its keys below.")
        return
    if section.warning:
        found.slip(section.path, f"[{section.name}] {section.warning}.")
    inner = inner_sections(section)
    known = {key.name for key in section.keys} | set(inner)
    unknown = [name for name in value if name not in known]
    if section.name == "model" and any(place[0] == "policy" for place, _, _ in models_named(found.document)):
        short = True  # [policy] stands in for it
    for name, held in value.items():
        if name in inner:
            _section(found, inner[name], held, short=short)
            continue
        key = section.key(name)
        if key is None:
            _unknown(found, section, name, known - set(value))
            continue
        for inside, part, expected in islice(misfits(key, held), MOST_OF_ONE_LIST):
            found.misfit((*section.path, name, *inside), part, expected, f"Write for example {name} = {key.example}.")
        if key.advised and isinstance(held, str) and held not in key.advised:
            words = ", ".join(key.advised)
            found.slip(
                (*section.path, name), f"{told((*section.path, name))} is none of {words}: not every trainer takes it."
            )
    for key in section.keys:
        if key.required and not short and key.name not in value:
            near = closest(key.name, unknown, cutoff=0.75)
            do = f"Did you mean it by {name_shown(near)}?" if near else f"Add for example {key.name} = {key.example}."
            place = (*section.path, near or key.name)
            found.wrong(place, f"[{section.name}] {key.name}: missing; expected {key.expected}. {do}")


def _missing_section(found: Review, section: ConfigSection) -> None:
    unknown = [name for name in found.document if name not in TOP_LEVEL]
    near = closest(section.name, unknown, cutoff=0.75)
    keys = ", ".join(key.name for key in section.keys if key.required)
    do = f"Did you mean it by [{name_shown(near)}]?" if near else "Add it."
    place = (near,) if near else section.path
    found.wrong(place, f"[{section.name}]: missing; expected a section with {keys}. {do}")


def _unknown(found: Review, section: ConfigSection, name: str, open_names: set[str]) -> None:
    near = closest(name, sorted(open_names), cutoff=0.8 if section.free else 0.6)
    if section.free and not near:
        return
    hint = f"; did you mean {near}?" if near else _home_of(name, outside=section)
    found.slip(
        (*section.path, name),
        f"[{section.name}] {name_shown(name)} is unknown, and goes with the job as it stands{hint}",
    )


def _home_of(name: str, *, outside: ConfigSection | None = None) -> str:
    """The end of a sentence about an unknown key: which section has one of that name."""
    homes = [section for section in SECTIONS if section is not outside and section.key(name) is not None]
    return f"; did you mean [{homes[0].name}] {name}?" if homes else "."


def _meant(name: str, known: Iterable[str], form: str) -> str:
    near = closest(name, known)
    return f"; did you mean {form.format(near)}?" if near else ", and goes with the job as it stands."


def _every_value(found: Review) -> None:
    """What cannot go over the wire as JSON, and what looks like a key, wherever it stands."""
    warned: set[Place] = set()
    for place, value in leaves(found.document):
        name = next((part for part in reversed(place) if isinstance(part, str)), "")
        if is_key_like(name, value):
            spot = place[: MOST_LEVELS // 2]
            if spot not in warned:
                warned.add(spot)
                found.slip(
                    spot,
                    f"{told(spot)} looks like an API key, and the whole config goes to the backend with the job. Take it "
                    "out: keys come from the environment or an env file.",
                )
        if place in found.problems:
            continue
        if isinstance(value, (dict, list)):
            if value:
                found.wrong(
                    place[:2],
                    f"{told(place[:2])}: nested deeper than {MOST_LEVELS} levels; expected fewer. Make it flatter.",
                )
        elif isinstance(value, (int, float)) and not is_plain_number(value):
            found.misfit(place, value, "a finite number of at most 64 bits", "Other numbers cannot be sent as JSON.")
        elif not isinstance(value, (str, int, float)):
            do = "Put it in quotes: JSON has no dates." if hasattr(value, "isoformat") else "JSON has nothing like it."
            found.misfit(place, value, "text, a number, true or false, a list or a table", do)

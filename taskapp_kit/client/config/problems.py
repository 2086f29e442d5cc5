"""What is said about an RL config: problems and warnings, each with its place in the document.

A document is the parsed TOML. `rl_config` turns a place into a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.client.config.sections import BY_NAME
from taskapp_kit.client.config.values import Place, misfits, name_shown, shown

Document = dict[str, Any]


@dataclass(slots=True)
class Review:
    """What was found: problems, for which the config is refused, and warnings; place to sentence, one of each a place."""

    document: Document
    problems: dict[Place, str] = field(default_factory=dict)
    warnings: dict[Place, str] = field(default_factory=dict)

    def wrong(self, place: Place, text: str) -> None:
        """Adds a problem; the first one of a place is kept."""
        self.problems.setdefault(place, text)

    def slip(self, place: Place, text: str) -> None:
        """Adds a warning."""
        known = self.warnings.get(place)
        self.warnings[place] = text if known is None else f"{known} {text}"

    def misfit(self, place: Place, value: Any, expected: str, do: str) -> None:
        """Adds the problem `[section] key: found X; expected Y. Do Z.`"""
        name = next((part for part in reversed(place) if isinstance(part, str)), "")
        self.wrong(place, f"{told(place)}: found {shown(name, value)}; expected {expected}. {do}")

    def at(self, *place: str) -> Any:
        """The value at a place; None where there is none, or where it does not fit its key."""
        value: Any = self.document
        for part in place:
            value = value.get(part) if isinstance(value, dict) else None
        section = BY_NAME.get(".".join(place[:-1]))
        key = section.key(place[-1]) if section is not None else None
        return None if key is None or value is None or next(misfits(key, value), None) else value


def told(place: Place) -> str:
    """A place in words: `[training.lora] r`, `[evaluation] seeds[1]`."""
    if len(place) == 1 and place[0] not in BY_NAME:
        return name_shown(str(place[0]))
    names = [part for part in place if isinstance(part, str)]
    index = place[len(names) :] if all(isinstance(part, str) for part in place[: len(names)]) else ()
    numbers = "".join(f"[{part}]" for part in index)
    cut = len(names)
    for length in range(len(names), 0, -1):
        if ".".join(names[:length]) in BY_NAME:
            cut = length
            break
    else:
        cut = max(1, len(names) - 1)
    section, key = ".".join(map(name_shown, names[:cut])), ".".join(map(name_shown, names[cut:]))
    return f"[{section}] {key}{numbers}" if key else f"[{section}]{numbers}"

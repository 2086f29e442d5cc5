"""Parses the text of an observation (see `view`) into amounts, and a grid for planning."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .names import DIRECTIONS
from .view import COLUMNS, ROWS

Place = tuple[int, int]
"""(column, row) in the window, counted from the upper left corner."""

ME: Place = (COLUMNS // 2, ROWS // 2)
OPEN = frozenset("._:")
"""Symbols of ground that a player can walk on."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One observation. `amounts` has the vitals and the items held; `window` maps places to symbols."""

    step: int
    daylight: float
    asleep: bool
    amounts: dict[str, int]
    unlocked: frozenset[str]
    facing: Place
    ahead: str
    window: dict[Place, str]

    def amount(self, name: str) -> int:
        """Return the amount of a vital or an item."""
        return self.amounts.get(name, 0)

    def places(self, symbols: Iterable[str]) -> list[Place]:
        """Return the places that have any of these symbols."""
        found = frozenset(symbols)
        return [place for place, symbol in self.window.items() if symbol in found]

    def near(self, symbol: str) -> bool:
        """Return whether it is in the nine cells around the player, as crafting requires."""
        return any(abs(x - ME[0]) <= 1 and abs(y - ME[1]) <= 1 for x, y in self.places(symbol))


def read(observation: str) -> Sight:
    """Parse an observation. Raises ValueError or IndexError for a text that is not one."""
    lines = observation.split("\n")
    clock = lines[0].split(", ")
    amounts = {name: int(value.split("/")[0]) for name, value in map(str.split, lines[1].split(", "))}
    if not lines[2].endswith(": nothing"):
        amounts |= {name: int(value) for name, value in map(str.split, lines[2].split(": ")[1].split(", "))}
    direction, ahead = lines[4].removeprefix("facing ").split(": ")
    return Sight(
        step=int(clock[0].split()[1]),
        daylight=int(clock[1].split()[1].rstrip("%")) / 100,
        asleep=clock[2] == "asleep",
        amounts=amounts,
        unlocked=frozenset(lines[3].split(": ")[1].split(", ")) - {"none"},
        facing=DIRECTIONS[direction],
        ahead=ahead,
        window={(x, y): line[2 * x] for y, line in enumerate(lines[6 : 6 + ROWS]) for x in range(COLUMNS)},
    )


def beside(place: Place) -> list[tuple[Place, str]]:
    """Return the four neighbours of a place, each with the move that leads there."""
    x, y = place
    return [((x + dx, y + dy), f"move_{name}") for name, (dx, dy) in DIRECTIONS.items()]


def routes(
    window: dict[Place, str], cost: Callable[[str], float | None], start: Place = ME
) -> dict[Place, tuple[float, list[Place]]]:
    """Return the cheapest path to every cell that can be entered or touched, as (cost, cells on the path).

    `cost` returns the cost of entering a cell with this symbol, or None if it cannot be entered. Such a cell
    can still be the end of a path, at cost 1: the player stops next to it.
    """
    found: dict[Place, tuple[float, list[Place]]] = {}
    queue: list[tuple[float, int, Place, list[Place]]] = [(0.0, 0, start, [])]
    number = 0
    while queue:
        spent, _, place, way = heapq.heappop(queue)
        if place in found:
            continue
        found[place] = (spent, way)
        if place != start and cost(window[place]) is None:
            continue
        for neighbour, _move in beside(place):
            if neighbour in window and neighbour not in found:
                price = cost(window[neighbour])
                number += 1
                step = spent + (1.0 if price is None else price)
                heapq.heappush(queue, (step, number, neighbour, [*way, neighbour]))
    return found

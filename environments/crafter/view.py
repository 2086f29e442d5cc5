"""The observation of an agent, as text.

The text shows the same 9 x 7 cells as the published image. It never shows more of the map or the player's position. At
night and during sleep, all cells remain visible, because noise that hides random pixels has no equivalent in text. The
text reports the daylight instead. Text views in other benchmarks also show everything at night.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from .names import ACHIEVEMENTS, DIRECTIONS, ITEMS, MATERIALS, MAX_AMOUNT

COLUMNS, ROWS = 9, 7
"""The size of the window of cells around the player, who is in the middle (column 5, row 4 of the text)."""

OUTSIDE = "x"
SYMBOLS: dict[str, str] = {
    "~": "water",
    ".": "grass",
    "#": "stone",
    "_": "path",
    ":": "sand",
    "T": "tree",
    "!": "lava",
    "c": "coal",
    "i": "iron",
    "d": "diamond",
    "t": "table",
    "f": "furnace",
    "@": "you",
    "C": "cow",
    "Z": "zombie",
    "S": "skeleton",
    "<": "arrow flying left",
    ">": "arrow flying right",
    "^": "arrow flying up",
    "v": "arrow flying down",
    "p": "young plant",
    "P": "ripe plant",
    OUTSIDE: "outside the world",
}
"""The legend: every symbol of the map, always with the same meaning. A thing hides the ground beneath it."""

_DIRECTION_NAMES = {offset: name for name, offset in DIRECTIONS.items()}
_ARROWS = dict(zip(DIRECTIONS.values(), "<>^v", strict=True))
_GROUND = bytes.maketrans(bytes(range(len(MATERIALS) + 1)), b"x~.#_:T!cidtf")
_EMPTY_ROW = OUTSIDE.encode() * COLUMNS


def describe(world: Any, player: Any, step: int, length: int, unlocked: Iterable[str]) -> str:
    """Return the observation of the player's surroundings and state, in named lines (README.md shows one)."""
    inventory = player.inventory
    items = ", ".join([f"{name} {inventory[name]}" for name in ITEMS if inventory[name]]) or "nothing"
    rows, legend = look(world, player)
    facing = player.facing
    material, thing = world[player.pos[0] + facing[0], player.pos[1] + facing[1]]
    ahead = SYMBOLS[symbol(thing)] if thing else material or "the edge of the world"
    return (
        f"step {step} of {length}, daylight {round(100 * world.daylight)}%, "
        f"{'asleep' if player.sleeping else 'awake'}\n"
        f"health {max(0, inventory['health'])}/{MAX_AMOUNT}, food {inventory['food']}/{MAX_AMOUNT}, "
        f"drink {inventory['drink']}/{MAX_AMOUNT}, energy {inventory['energy']}/{MAX_AMOUNT}\n"
        f"inventory: {items}\n"
        f"{_achievements(frozenset(unlocked))}\n"
        f"facing {_DIRECTION_NAMES[tuple(facing)]}: {ahead}\n"
        f"view, {COLUMNS} columns x {ROWS} rows, you are @:\n{rows}\n{legend}"
    )


def look(world: Any, player: Any) -> tuple[str, str]:
    """(seven rows of nine symbols, the legend of those that occur)."""
    width, height = world.area
    left, top = player.pos[0] - COLUMNS // 2, player.pos[1] - ROWS // 2
    first, last = max(left, 0), min(left + COLUMNS, width)
    window = bytearray()
    for y in range(top, top + ROWS):
        if 0 <= y < height:
            window += OUTSIDE.encode() * (first - left)
            window += world.terrain[y * width + first : y * width + last].translate(_GROUND)
            window += OUTSIDE.encode() * (left + COLUMNS - last)
        else:
            window += _EMPTY_ROW
    for column, row, thing in world.things_in(left, top, COLUMNS, ROWS):
        window[row * COLUMNS + column] = ord(symbol(thing))
    text = " ".join(window.decode())
    line = 2 * COLUMNS
    rows = "\n".join([text[start : start + line - 1] for start in range(0, line * ROWS, line)])
    return rows, _legend(frozenset(window))


def symbol(thing: Any) -> str:
    """Return the symbol of a thing in the world."""
    found = _THINGS.get(type(thing).__name__)
    if found is not None:
        return found
    return _ARROWS[tuple(thing.facing)] if type(thing).__name__ == "Arrow" else "P" if thing.ripe else "p"


_THINGS = {"Player": "@", "Cow": "C", "Zombie": "Z", "Skeleton": "S"}


@lru_cache(maxsize=4096)
def _legend(codes: frozenset[int]) -> str:
    return "legend: " + ", ".join(f"{sign} {name}" for sign, name in SYMBOLS.items() if ord(sign) in codes)


@lru_cache(maxsize=4096)
def _achievements(unlocked: frozenset[str]) -> str:
    names = ", ".join(name for name in ACHIEVEMENTS if name in unlocked) or "none"
    return f"achievements {len(unlocked)} of {len(ACHIEVEMENTS)}: {names}"

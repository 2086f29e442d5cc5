# Follows engine.py, objects.py, env.py of the package crafter 1.8.3. (c) 2021 Danijar Hafner, MIT: see THIRD_PARTY.md.
"""The ground and the creatures of one game, with the rules of the `crafter` package and faster movement.

The player, creatures and plants follow the package's own rules: the classes of the package are subclassed, but never
modified. Only the geometry is reimplemented. Positions are plain integers instead of numpy arrays. Every collection
that the rules draw from preserves the order of insertion, whereas stock Crafter iterates over sets that are ordered
by memory address.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .names import MATERIALS
from .randomness import RandomStream

try:
    from crafter import objects
except ModuleNotFoundError as error:  # the package is first needed here, so the error names it here
    raise ModuleNotFoundError(
        f"the Crafter environment needs the package {error.name!r}, which is not installed: "
        "install the extra `crafter`, for example with `pip install 'taskapp-kit[crafter]'`",
        name=error.name,
    ) from error

Arrow, Plant = objects.Arrow, objects.Plant
"""The unmodified classes, because the package's rules create arrows and plants: creatures shoot, players plant."""

CHUNK = 12
"""Length, in cells, of a side of the squares in which creatures are counted, created and removed."""

_NAMES: tuple[str | None, ...] = (None, *MATERIALS)
_IDS: dict[str | None, int] = {name: index for index, name in enumerate(_NAMES)}
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Cell(tuple[int, int]):
    """A position or an offset (x, y) that adds and negates as the package's rules expect of an array."""

    __slots__ = ()

    def __add__(self, other: Sequence[int]) -> "Cell":  # type: ignore[override]
        return Cell((self[0] + other[0], self[1] + other[1]))

    def __neg__(self) -> "Cell":
        return Cell((-self[0], -self[1]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Cell, ((self[0], self[1]),)


class Body:
    """Moves and measures with integers; mixed in before the package's class, whose rules call these methods."""

    pos: Cell
    world: "World"
    walkable: Sequence[str]
    random: RandomStream

    def distance(self, target: Any) -> int:
        """City-block distance in cells to a position, or to something that has a position."""
        x, y = getattr(target, "pos", target)
        own: tuple[int, int] = self.pos
        return int(abs(x - own[0]) + abs(y - own[1]))

    def toward(self, target: Any, long_axis: bool = True) -> Cell:
        """One step towards the target along its longer (or shorter) axis."""
        x, y = getattr(target, "pos", target)
        dx, dy = x - self.pos[0], y - self.pos[1]
        if (abs(dx) > abs(dy)) if long_axis else (abs(dx) <= abs(dy)):
            return Cell(((dx > 0) - (dx < 0), 0))
        return Cell((0, (dy > 0) - (dy < 0)))

    def random_dir(self) -> tuple[int, int]:
        """One of the four directions."""
        return _STEPS[self.random.randint(0, 4)]

    def is_free(self, target: Sequence[int], materials: Sequence[str] | None = None) -> bool:
        """Return whether the target is empty and its ground may be walked on."""
        material, thing = self.world[target]
        return thing is None and material in (self.walkable if materials is None else materials)

    def move(self, direction: Sequence[int]) -> bool:
        """Move there if the cell is free."""
        target = Cell((self.pos[0] + direction[0], self.pos[1] + direction[1]))
        if self.is_free(target):
            self.world.move(self, target)
            return True
        return False


class Player(Body, objects.Player):  # type: ignore[misc]
    """The package's player."""


class Cow(Body, objects.Cow):  # type: ignore[misc]
    """The package's cow."""


class Zombie(Body, objects.Zombie):  # type: ignore[misc]
    """The package's zombie."""


class Skeleton(Body, objects.Skeleton):  # type: ignore[misc]
    """The package's skeleton."""


class World:
    """The ground (one byte a cell), the things on it, and the stream that every rule draws from.

    `area` is (width, height) in cells; `terrain` holds the material ids row by row (index y * width + x).
    """

    def __init__(self, area: tuple[int, int], terrain: bytes, random: RandomStream) -> None:
        self.area = area
        self.random = random
        self.daylight = 0.0
        self.terrain = bytearray(terrain)
        self._width, self._height = area
        self._columns = -(-self._height // CHUNK)  # number of chunks in a column of chunks
        self._at: dict[tuple[int, ...], Any] = {}
        self._objects: dict[int, Any] = {}  # in order of creation, which is also the order of updates
        self._arrivals = 0
        self.chunks: dict[int, dict[Any, None]] = {}
        ground = np.frombuffer(terrain, np.uint8).reshape(self._height, self._width)
        self._grounds: list[list[int]] = [
            np.bincount(ground[y : y + CHUNK, x : x + CHUNK].ravel(), minlength=len(_NAMES)).tolist()
            for x in range(0, self._width, CHUNK)
            for y in range(0, self._height, CHUNK)
        ]

    @property
    def objects(self) -> list[Any]:
        """Everything in the world, in order of creation; a new list."""
        return list(self._objects.values())

    def chunk_of(self, pos: Sequence[int]) -> int:
        """Return the number of the chunk around a position inside the world."""
        return pos[0] // CHUNK * self._columns + pos[1] // CHUNK

    def add(self, thing: Any) -> None:
        """Add a thing at its own position, which must be empty."""
        thing.pos = pos = Cell((int(thing.pos[0]), int(thing.pos[1])))
        assert pos not in self._at, f"two things at {pos}"
        self._arrivals += 1
        thing.arrival = self._arrivals
        self._objects[self._arrivals] = thing
        self._at[pos] = thing
        self.chunks.setdefault(self.chunk_of(pos), {})[thing] = None

    def remove(self, thing: Any) -> None:
        """Remove a thing; does nothing if it was removed before."""
        if thing.removed:
            return
        del self._objects[thing.arrival]
        del self._at[thing.pos]
        del self.chunks[self.chunk_of(thing.pos)][thing]
        thing.removed = True

    def move(self, thing: Any, pos: Sequence[int]) -> None:
        """Move a thing to an empty position; a removed one is not moved."""
        if thing.removed:
            return
        pos = Cell((int(pos[0]), int(pos[1])))
        assert pos not in self._at, f"two things at {pos}"
        old = thing.pos
        del self._at[old]
        self._at[pos] = thing
        before, after = self.chunk_of(old), self.chunk_of(pos)
        if before != after:
            del self.chunks[before][thing]
            self.chunks.setdefault(after, {})[thing] = None
        thing.pos = pos

    def __getitem__(self, pos: Sequence[int]) -> tuple[str | None, Any]:
        """(material, thing or None) at a position; (None, None) outside the world."""
        x, y = pos
        if 0 <= x < self._width and 0 <= y < self._height:
            return _NAMES[self.terrain[y * self._width + x]], self._at.get((x, y))
        return None, None

    def __setitem__(self, pos: Sequence[int], material: str) -> None:
        index = pos[1] * self._width + pos[0]
        counts = self._grounds[self.chunk_of(pos)]
        counts[self.terrain[index]] -= 1
        self.terrain[index] = _IDS[material]
        counts[_IDS[material]] += 1

    def nearby(self, pos: Sequence[int], distance: int) -> tuple[set[str | None], list[Any]]:
        """Materials and things in the square around a position.

        As published, the square is cut with slices whose start may be negative: in the first column or row it
        is empty, so nothing can be crafted there.
        """
        xs = range(*slice(pos[0] - distance, pos[0] + distance + 1).indices(self._width))
        ys = range(*slice(pos[1] - distance, pos[1] + distance + 1).indices(self._height))
        cells = [(x, y) for x in xs for y in ys]
        materials = {_NAMES[self.terrain[y * self._width + x]] for x, y in cells}
        return materials, [self._at[cell] for cell in cells if cell in self._at]

    def ground_count(self, chunk: int, material: str) -> int:
        """Return how many cells of a chunk have this material."""
        return self._grounds[chunk][_IDS[material]]

    def ground_cell(self, chunk: int, material: str, number: int) -> Cell:
        """Return the `number`-th such cell of the chunk, counted column by column."""
        wanted = _IDS[material]
        xmin, ymin = chunk // self._columns * CHUNK, chunk % self._columns * CHUNK
        for x in range(xmin, min(xmin + CHUNK, self._width)):
            for y in range(ymin, min(ymin + CHUNK, self._height)):
                if self.terrain[y * self._width + x] == wanted:
                    if number == 0:
                        return Cell((x, y))
                    number -= 1
        raise IndexError(f"chunk {chunk} has no such {material} cell")

    def things_in(self, left: int, top: int, width: int, height: int) -> Iterable[tuple[int, int, Any]]:
        """(column, row, thing) of the things in a window of cells, counted from its upper left corner."""
        for thing in self._objects.values():
            column, row = thing.pos[0] - left, thing.pos[1] - top
            if 0 <= column < width and 0 <= row < height:
                yield column, row, thing


@dataclass(frozen=True, slots=True)
class Births:
    """How one kind of creature appears and vanishes, chunk by chunk. Distances in city blocks from the player."""

    kind: type[Any]
    material: str
    space: int
    """How many cells of the material a chunk needs before a creature can appear."""
    birth_distance: int
    vanish_distance: int
    birth_chance: float
    vanish_chance: float


_ZOMBIES = Births(Zombie, "grass", 50, 6, 0, 0.3, 0.4)
_SKELETONS = Births(Skeleton, "path", 6, 7, 7, 0.1, 0.1)
_COWS = Births(Cow, "grass", 30, 5, 5, 0.01, 0.1)


def balance(world: World, player: Any) -> None:
    """Make creatures appear and vanish, chunk by chunk, as the package does every tenth step."""
    zombies = int(3.5 - 3 * world.daylight)
    rules = ((_ZOMBIES, zombies, zombies), (_SKELETONS, 1, 2), (_COWS, 1, int(1.5 + world.daylight)))
    for chunk, things in list(world.chunks.items()):
        for births, least, most in rules:
            creatures = [thing for thing in things if type(thing) is births.kind]
            space = world.ground_count(chunk, births.material)
            if len(creatures) < least and space >= births.space:
                if world.random.uniform() < births.birth_chance:
                    _bear(
                        world, player, births, world.ground_cell(chunk, births.material, world.random.randint(0, space))
                    )
            elif len(creatures) > most and world.random.uniform() < births.vanish_chance:
                creature = creatures[world.random.randint(0, len(creatures))]
                if player.distance(creature.pos) >= births.vanish_distance:
                    world.remove(creature)


def _bear(world: World, player: Any, births: Births, pos: Cell) -> None:
    if world[pos][1] is None and player.distance(pos) >= births.birth_distance:
        world.add(Cow(world, pos) if births.kind is Cow else births.kind(world, pos, player))

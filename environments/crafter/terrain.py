# Follows worldgen.py of the package crafter 1.8.3. Copyright (c) 2021 Danijar Hafner, MIT License: see THIRD_PARTY.md.
"""Generation of a new world: the published map of a seed, about twenty times faster than in stock Crafter.

The noise is from opensimplex and is evaluated in blocks, which are compiled if numba is installed. All random choices
are made in the published order. So the map, the creatures and the final state of the random stream are the same as in
stock Crafter. A test compares the generated worlds with worlds from the package's generator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import opensimplex
from numpy.typing import NDArray
from opensimplex.internals import _noise3

from .names import MATERIALS
from .randomness import RandomStream

Floats = NDArray[np.float64]

WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND = range(1, 11)
assert MATERIALS[DIAMOND - 1] == "diamond"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything that determines an episode before its first step; immutable, so it may be shared.

    `terrain`: material ids row by row. `creatures`: (kind, x, y) in the order of creation, without the
    player. `random`: the state of the stream after generation.
    """

    area: tuple[int, int]
    terrain: bytes
    creatures: tuple[tuple[str, int, int], ...]
    random: tuple[NDArray[np.uint32], int]


def world_seed(seed: int, episode: int) -> int:
    """Return the seed of the map that stock Crafter makes for its `episode`-th reset (the first is 1).

    It is a hash of integers, which does not depend on PYTHONHASHSEED (CPython, 64 bit).
    """
    return hash((seed, episode)) % (2**31 - 1)


def generate(seed: int, episode: int, area: tuple[int, int]) -> Blueprint:
    """Return the world of an episode: about 5 ms of CPU with numba, 0.5 s without."""
    random = RandomStream(world_seed(seed, episode))
    noise = Noise(opensimplex.OpenSimplex(seed=random.randint(0, 2**31 - 1)))
    width, height = area
    xs, ys = (axis.ravel().astype(np.float64) for axis in np.meshgrid(range(width), range(height), indexing="ij"))
    ground, tunnels = _ground(noise, random, xs, ys, (width // 2, height // 2))
    creatures = _creatures(random, (xs, ys), ground, tunnels, (width // 2, height // 2))
    terrain = ground.reshape(width, height).T.astype(np.uint8).tobytes()
    return Blueprint(area, terrain, creatures, random.save())


class Noise:
    """Three-dimensional simplex noise of one seed, in blocks of points."""

    def __init__(self, simplex: Any) -> None:
        self._tables = simplex._perm, simplex._perm_grad_index3

    def __call__(self, xs: Floats, ys: Floats, z: int, size: int) -> Floats:
        """Return the noise at (x / size, y / size, z) for each point; shape as `xs`, values in [-1, 1]."""
        values = np.empty(xs.shape, np.float64)
        _fill(xs / size, ys / size, z, values, *self._tables)
        return values


def _fill_points(xs: Floats, ys: Floats, z: int, values: Floats, permutation: Any, gradients: Any) -> None:
    for index in range(xs.size):
        values[index] = _noise3(xs[index], ys[index], z, permutation, gradients)


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function as machine code, if numba is installed (opensimplex compiles its own part likewise).

    Without numba's cache on disk, which identifies the module by its import name: an app file may be
    loaded under several. Compiling takes 0.2 s, once per process, at the first world.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    compiled: Callable[..., None] = njit(nogil=True)(function)
    return compiled


_fill = _compiled(_fill_points)


def _ground(
    noise: Noise, random: RandomStream, xs: Floats, ys: Floats, center: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Material ids and the cells with tunnels, column by column (the published order)."""
    start = 4 - np.sqrt((xs - center[0]) ** 2 + (ys - center[1]) ** 2)
    start += 2 * noise(xs, ys, 8, 3)
    start = 1 / (1 + np.exp(-start))
    water = noise(xs, ys, 3, 15) + 0.15 * noise(xs, ys, 3, 5) + 0.1
    water -= 2 * start
    mountain = (noise(xs, ys, 0, 15) + 0.3 * noise(xs, ys, 0, 5)) / (1 + 0.3)
    mountain -= 4 * start + 0.3 * water

    ground = np.full(xs.shape, GRASS)
    tunnels = np.zeros(xs.shape, bool)
    home = start > 0.5
    rock = ~home & (mountain > 0.15)
    lowland = ~home & ~rock
    coast = lowland & (water > 0.25) & (water <= 0.35)
    coast[coast] = noise(xs[coast], ys[coast], 4, 9) > -0.2
    lake = lowland & ~coast & (water > 0.3)
    wood = lowland & ~coast & ~lake
    wood[wood] = noise(xs[wood], ys[wood], 5, 7) > 0
    ground[coast] = SAND
    ground[lake] = WATER

    x, y, height = xs[rock], ys[rock], mountain[rock]
    cave = (noise(x, y, 6, 7) > 0.15) & (height > 0.3)
    tunnel = ~cave & ((noise(2 * x, y / 5, 7, 3) > 0.4) | (noise(x / 5, 2 * y, 7, 3) > 0.4))
    ground[rock] = np.where(cave | tunnel, PATH, STONE)
    tunnels[rock] = tunnel
    solid = np.zeros(xs.shape, bool)
    solid[rock] = ~(cave | tunnel)

    # Only these cells draw random numbers, in the order of the cells: solid rock up to three, woods one.
    x, y, height = xs[solid], ys[solid], mountain[solid]
    ore = zip(
        np.flatnonzero(solid).tolist(),
        (noise(x, y, 1, 8) > 0).tolist(),
        (noise(x, y, 2, 6) > 0.4).tolist(),
        (height > 0.18).tolist(),
        ((height > 0.3) & (noise(x, y, 6, 5) > 0.35)).tolist(),
        strict=True,
    )
    drawing: list[tuple[Any, ...]] = [*ore, *((cell,) for cell in np.flatnonzero(wood).tolist())]
    drawing.sort(key=lambda entry: int(entry[0]))
    uniform = random.uniform
    for cell, *rest in drawing:
        if not rest:
            if uniform() > 0.8:
                ground[cell] = TREE
            continue
        coal, iron, diamond, lava = rest
        if coal and uniform() > 0.85:
            ground[cell] = COAL
        elif iron and uniform() > 0.75:
            ground[cell] = IRON
        elif diamond and uniform() > 0.994:
            ground[cell] = DIAMOND
        elif lava:
            ground[cell] = LAVA
    return ground, tunnels


def _creatures(
    random: RandomStream,
    cells: tuple[Floats, Floats],
    ground: NDArray[np.int64],
    tunnels: NDArray[np.bool_],
    center: tuple[int, int],
) -> tuple[tuple[str, int, int], ...]:
    """(kind, x, y) of the first creatures, column by column."""
    xs, ys = cells
    distance = np.sqrt((xs - center[0]) ** 2 + (ys - center[1]) ** 2)
    walkable = (ground == GRASS) | (ground == PATH) | (ground == SAND)
    candidates = zip(
        xs[walkable].astype(int).tolist(),
        ys[walkable].astype(int).tolist(),
        ((distance > 3) & (ground == GRASS))[walkable].tolist(),
        (distance > 10)[walkable].tolist(),
        tunnels[walkable].tolist(),
        strict=True,
    )
    found: list[tuple[str, int, int]] = []
    uniform = random.uniform
    for x, y, meadow, far, tunnel in candidates:
        if meadow and uniform() > 0.985:
            found.append(("cow", x, y))
        elif far and uniform() > 0.993:
            found.append(("zombie", x, y))
        elif tunnel and uniform() > 0.95:
            found.append(("skeleton", x, y))
    return tuple(found)

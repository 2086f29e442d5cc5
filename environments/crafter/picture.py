# Follows engine.py and env.py of the package crafter 1.8.3. Copyright (c) 2021 Danijar Hafner, MIT License: see THIRD_PARTY.md.
"""Rendering of the published image of the game, without changing the game.

At 64 x 64 pixels, the image is equal to the image of `crafter.Env.render`. At other sizes, the same noise at night is
stretched. Stock Crafter draws a different number of random numbers for each size, which changes the episode.
"""

import threading
from functools import lru_cache
from typing import Any

import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from crafter import constants

from .view import COLUMNS, ROWS

GRID = 9
"""Cells along each side of the image: nine columns, and nine rows, two of which show the inventory."""

_UNIT = 64 // GRID
_NOISE_SHAPE = (COLUMNS * _UNIT, ROWS * _UNIT)
NIGHT_DRAWS = _NOISE_SHAPE[0] * _NOISE_SHAPE[1]
"""Number of random numbers that the published game (64 x 64 pixels) draws for one image at night."""

SMALLEST, LARGEST = 2 * GRID, 2048

Pixels = NDArray[np.uint8]


_reading = threading.Lock()
_read: dict[str, Any] = {}


def textures() -> dict[str, Any]:
    """Return the package's images by name, width x height x (3 or 4), read from disk once per process."""
    with _reading:
        if not _read:
            for path in sorted((constants.root / "assets").glob("*.png")):
                image = imageio.imread(path.read_bytes())
                _read[path.stem] = image.transpose((1, 0, *range(2, image.ndim)))
    return _read


@lru_cache(maxsize=1024)  # bounded, because callers can choose many sizes
def _texture(name: str, width: int, height: int) -> Any:
    image = textures()[name]
    if image.shape[:2] == (width, height):
        return image
    return np.array(Image.fromarray(image).resize((height, width), resample=Image.Resampling.NEAREST))


def paint(world: Any, player: Any, night: NDArray[np.float64] | None, size: int | tuple[int, int]) -> Pixels:
    """Height x width x 3, uint8. `night`: this step's NIGHT_DRAWS numbers in [0, 1), or None in daylight.

    Raises ValueError for a size that is not a side or (width, height), each 18 to 2048 pixels.
    """
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and SMALLEST <= side <= LARGEST for side in sides):
        raise ValueError(
            f"the size of an image is a side or (width, height), each {SMALLEST} to {LARGEST} pixels, not {size!r}"
        )
    width, height = sides
    unit = (width // GRID, height // GRID)
    left, top = (width - unit[0] * GRID) // 2, (height - unit[1] * GRID) // 2
    canvas = np.zeros((width, height, 3), np.uint8)  # the x axis comes first, as in the textures
    area = canvas[left : left + unit[0] * GRID, top : top + unit[1] * GRID]
    area[:, : ROWS * unit[1]] = _surroundings(world, player, night, unit)
    _items(area[:, ROWS * unit[1] :], player.inventory, unit)
    return np.ascontiguousarray(canvas.transpose((1, 0, 2)))


def _surroundings(world: Any, player: Any, night: NDArray[np.float64] | None, unit: tuple[int, int]) -> Any:
    canvas = np.full((COLUMNS * unit[0], ROWS * unit[1], 3), 127, np.uint8)
    left, top = player.pos[0] - COLUMNS // 2, player.pos[1] - ROWS // 2
    for column in range(COLUMNS):
        for row in range(ROWS):
            material, _ = world[left + column, top + row]
            if material is not None:
                _stamp(canvas, column * unit[0], row * unit[1], _texture(material, *unit)[..., :3])
    for column, row, thing in world.things_in(left, top, COLUMNS, ROWS):
        _blend(canvas, column * unit[0], row * unit[1], _texture(thing.texture, *unit))
    lit = _light(canvas, world.daylight, night, unit)
    return _tint(_colour(lit, 0.0), (0, 0, 16)) if player.sleeping else lit


def _light(canvas: Pixels, daylight: float, night: NDArray[np.float64] | None, unit: tuple[int, int]) -> Any:
    dark: Any = canvas
    if night is not None:
        noise = 32 + (127 - 32) * night.reshape(_NOISE_SHAPE)
        if unit != (_UNIT, _UNIT):
            xs, ys = (np.arange(cells * u) * _UNIT // u for cells, u in zip((COLUMNS, ROWS), unit, strict=True))
            noise = noise[np.ix_(xs, ys)]
        mask = 2 * (0.5 - daylight) * _vignette(*canvas.shape[:2])[..., None]
        dark = (1 - mask) * canvas + mask * noise[..., None]
    dark = _tint(_colour(dark, 0.4), (0, 16, 64))
    return daylight * canvas + (1 - daylight) * dark


@lru_cache(maxsize=16)
def _vignette(width: int, height: int) -> NDArray[np.float64]:
    xs, ys = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    shade: NDArray[np.float64] = 1 - np.exp(-0.5 * (xs**2 + ys**2) / (0.5**2)).T
    return shade


def _colour(canvas: Any, amount: float) -> Any:
    return np.array(ImageEnhance.Color(Image.fromarray(canvas.astype(np.uint8))).enhance(amount))


def _tint(canvas: Any, colour: tuple[int, int, int]) -> Any:
    return 0.5 * canvas + 0.5 * np.array(colour)


def _items(canvas: Any, inventory: dict[str, int], unit: tuple[int, int]) -> None:
    for index, (item, amount) in enumerate(inventory.items()):
        if amount < 1:
            continue
        corner = np.array((index % GRID, index // GRID)) * unit
        for name, shift, scale in ((item, 0.1, 0.8), (str(amount), 0.4, 0.6)):
            x, y = (corner + shift * np.array(unit)).astype(np.int32)
            _blend(canvas, int(x), int(y), _texture(name, int(scale * unit[0]), int(scale * unit[1])))


def _stamp(canvas: Any, x: int, y: int, texture: Any) -> None:
    canvas[x : x + texture.shape[0], y : y + texture.shape[1]] = texture


def _blend(canvas: Any, x: int, y: int, texture: Any) -> None:
    if texture.shape[-1] == 4:
        alpha = texture[..., 3:].astype(np.float32) / 255
        current = canvas[x : x + texture.shape[0], y : y + texture.shape[1]].astype(np.float32) / 255
        blended = alpha * (texture[..., :3].astype(np.float32) / 255) + (1 - alpha) * current
        texture = (255 * blended).astype(np.uint8)
    _stamp(canvas, x, y, texture)

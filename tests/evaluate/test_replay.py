"""Where a replay differs from what was stored."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from taskapp_kit.records.content import Image
from taskapp_kit.records.difference import first_difference
from taskapp_kit.records.trajectory import Decision, PlayedStep, Trajectory, Turn


def picture(level: int) -> Image:
    return Image(np.full((4, 6, 3), level, np.uint8))


def packed_otherwise(shown: Image) -> Image:
    """The same picture as another machine's zlib would have packed it, as a store gives it."""
    header = shown.png[:33]
    rows = zlib.compress(b"".join(b"\0" + bytes([7]) * 18 for _ in range(4)), 0)
    chunk = struct.pack(">I", len(rows)) + b"IDAT" + rows + struct.pack(">I", zlib.crc32(b"IDAT" + rows))
    return Image.recorded(header + chunk + shown.png[-12:], shown.pixels)


def episode(*shown: Image) -> Trajectory:
    trajectory = Trajectory("paint", "1", "train", 0, {}, initial=["seen pixels", shown[0]])
    for index, one in enumerate(shown[1:]):
        step = PlayedStep(index, "go", {}, ["seen pixels", one], None, terminated=False, truncated=False)
        trajectory.steps.append(step)
        trajectory.turns.append(Turn(index, Decision(), [step]))
    return trajectory


def test_pictures_are_compared_by_their_pixels_where_they_have_them() -> None:
    same, other = picture(7), picture(8)
    otherwise = packed_otherwise(same)
    assert otherwise.hash != same.hash and otherwise.pixels == same.pixels

    stored, played = episode(otherwise, otherwise, same), episode(same, same, other)
    assert stored.digest() == played.digest()
    assert stored.observation_digest() != played.observation_digest()
    difference = first_difference(stored, played, pictures=True)
    assert difference is not None and (difference.where, difference.what) == ("step 2", "observation")

    assert first_difference(stored, episode(same, otherwise, same), pictures=True) is None
    given = Image(otherwise.png)
    told = first_difference(episode(given, given), episode(given, Image(same.png)), pictures=True)
    assert told is not None and told.where == "step 1", "PNG bytes that were given count as they are"

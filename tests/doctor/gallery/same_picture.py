"""The noise of the picture is drawn without a seed."""

import os
import random
import struct
import zlib
from typing import Annotated

from pydantic import Field

from taskapp_kit import Image, Step, TaskApp, Text, action

app = TaskApp("gallery")


def png(pixel: bytes) -> bytes:
    """A picture of one pixel."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + pixel)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int) -> list[Text | Image]:
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        words = f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."
        return [Text(words), Image(png(os.urandom(3)))]

    @action
    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:
        """Guess the number."""
        right = number == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        return Step(words, reward=float(right), terminated=right)

"""The files about a job that `taskapp train` writes on this machine: an image of the curves, and TensorBoard's files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from taskapp_kit.errors import BackendError, ConfigError
from taskapp_kit.records.job_curves import curve_groups

POINT_SECONDS = 2.0
"""The interval between two requests for a job's points, in seconds."""

Points = Sequence[Mapping[str, Any]]
"""Points of metrics as a backend returns them. Their fields are name, step, value and created_at (ISO 8601)."""


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files about a job in the directory `folder`, which is created when the files are written."""

    folder: Path

    @property
    def picture(self) -> Path:
        """The path of the PNG image of all curves."""
        return self.folder / "curves.png"

    @property
    def tensorboard(self) -> Path:
        """The path of the directory with TensorBoard's files."""
        return self.folder / "tensorboard"

    async def follow(self, after_step: Callable[[int], Awaitable[Points]]) -> None:
        """Write the job's points to TensorBoard's files until this coroutine is cancelled.

        after_step: A function that returns the points of all steps after the given step.
        """
        with (await asyncio.to_thread(_curves)).TensorBoardFiles(self.tensorboard) as files:
            last = -1
            while True:
                with suppress(BackendError):
                    points = await after_step(last)
                    files.add(_timed(points))
                    last = max([last, *(point["step"] for point in points)])
                await asyncio.sleep(POINT_SECONDS)

    def write(self, points: Points, title: str) -> None:
        """Write the image and rewrite TensorBoard's files. Raises ConfigError if they cannot be written."""
        groups, _ = curve_groups((point["name"], point["step"], point["value"]) for point in points)
        try:
            # a resumed job may repeat steps, and points cannot be removed from an event file
            with _curves().TensorBoardFiles(self.tensorboard) as files:
                files.add(_timed(points))
            self.picture.write_bytes(_curves().picture(groups, title))
        except OSError as error:
            raise ConfigError(f"The files in {self.folder} cannot be written: {error.strerror}.") from None


def _curves() -> ModuleType:
    from taskapp_kit.train import curves

    return curves


def _timed(points: Points) -> Iterable[tuple[str, int, float, float]]:
    for point in points:
        moment = datetime.fromisoformat(point["created_at"]).timestamp()
        yield point["name"], point["step"], point["value"], moment

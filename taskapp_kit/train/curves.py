"""Files with a job's metrics: a PNG image of the curves, and TensorBoard's event files."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from taskapp_kit.records.job_curves import EVALUATION, CurveGroup

COLUMNS = 4
PANEL = (3.4, 2.4)
"""Width and height of a small panel, in inches."""
HEAD = 0.7
"""Height of the space for the title, in inches."""
DOTS_PER_INCH = 110
MANY_POINTS = 60
"""Curves with more points than this are drawn without markers."""
CONSTANT = 1e-6
"""A curve whose values differ by at most this share of the largest is drawn as a level line, to hide rounding errors."""


def picture(groups: Sequence[CurveGroup], title: str) -> bytes:
    """Return a PNG image with one panel for each group of curves. The first panel, the mean reward, is larger."""
    rows = max(2, -(-(len(groups) + 3) // COLUMNS))  # the panel of the first group takes four cells
    with matplotlib.rc_context({"text.parse_math": False, "font.size": 9, "axes.titlesize": 10}):
        width, height = COLUMNS * PANEL[0], rows * PANEL[1] + HEAD
        figure = Figure(figsize=(width, height))
        figure.suptitle(title, fontsize=12, y=1 - HEAD / 3 / height)
        # margins in inches, because matplotlib's automatic layouts draw everything several times, which takes seconds
        sides = {"left": 0.8 / width, "right": 1 - 0.2 / width, "bottom": 0.5 / height, "top": 1 - HEAD / height}
        grid = figure.add_gridspec(rows, COLUMNS, **sides, hspace=0.52, wspace=0.32)
        small = [(row, column) for row in range(rows) for column in range(COLUMNS) if row > 1 or column > 1]
        places = [grid[:2, :2], *(grid[place] for place in small)]
        for group, place in zip(groups, places, strict=False):
            _draw(figure.add_subplot(place), group)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH)
    return target.getvalue()


def _draw(axes: Any, group: CurveGroup) -> None:
    axes.set_title(group.title)
    axes.set_xlabel("iteration")
    axes.set_ylabel(group.unit)
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    for label, curve in group.curves.items():
        steps, values = zip(*curve, strict=True)
        axes.plot(steps, values, label=label, marker="o" if len(curve) <= MANY_POINTS else None, markersize=3)
    drawn = [value for curve in group.curves.values() for _, value in curve]
    largest = max(map(abs, drawn))
    if max(drawn) - min(drawn) <= CONSTANT * largest:
        margin = 0.05 * (largest or 1.0)
        axes.set_ylim(min(drawn) - margin, max(drawn) + margin)
    if len(group.curves) > 1:
        axes.legend(fontsize=8)


EVENT_FORMAT = "brain.Event:2"
EVENT_FILE = "events.out.tfevents.{seconds:.0f}.taskapp"

TimedPoint = tuple[str, int, float, float]
"""(name, step, value, unix time)"""


class TensorBoardFiles:
    """A context manager that writes metric points to a new event file in `folder` and deletes all earlier event files.

    An instance writes only the first point of each name and step. If a resumed job repeats steps, the new values of
    these points are therefore only in the file of the next instance. `SummaryWriter` is not used, because it writes
    through a queue that cannot be flushed reliably.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(EVENT_FILE.replace("{seconds:.0f}", "*")):
            old.unlink()
        self._records = RecordWriter(str(folder / EVENT_FILE.format(seconds=time.time())))
        self._records.write(Event(wall_time=time.time(), file_version=EVENT_FORMAT).SerializeToString())
        self._written: set[tuple[str, int]] = set()

    def add(self, points: Iterable[TimedPoint]) -> None:
        """Write the points that are not in the file yet, under names such as `train/loss`, and flush the file."""
        # Superseded points cannot be removed from an event file. The next instance writes a new file.
        for name, step, value, seconds in points:
            if (name, step) in self._written:
                continue
            self._written.add((name, step))
            own = name.removeprefix(EVALUATION)
            summary = scalar(f"{'train' if own == name else 'eval'}/{own}", value)
            self._records.write(Event(wall_time=seconds, step=step, summary=summary).SerializeToString())
        self._records.flush()

    def __enter__(self) -> TensorBoardFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._records.close()

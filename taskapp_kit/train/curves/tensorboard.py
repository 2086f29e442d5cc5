"""A job's metric points as TensorBoard event files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import scalar

from taskapp_kit.records.job_curves import EVALUATION

FORMAT = "brain.Event:2"
NAME = "events.out.tfevents.{seconds:.0f}.taskapp"

TimedPoint = tuple[str, int, float, float]
"""(name, step, value, unix time)"""


class TensorBoardFiles:
    """Writes points to `folder`, where it replaces the files of an earlier instance; a context manager.

    A point is written once: another one of its step belongs to a part of the job that is played again. The next instance
    writes that one. `SummaryWriter` is not used: its points reach the file through a queue that cannot be waited for.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(NAME.replace("{seconds:.0f}", "*")):
            old.unlink()
        self._records = RecordWriter(str(folder / NAME.format(seconds=time.time())))
        self._records.write(Event(wall_time=time.time(), file_version=FORMAT).SerializeToString())
        self._written: set[tuple[str, int]] = set()

    def add(self, points: Iterable[TimedPoint]) -> None:
        """Write the points that are new, and flush: `train/loss`, `eval/reward`."""
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

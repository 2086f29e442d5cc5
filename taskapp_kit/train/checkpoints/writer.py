"""Saves the checkpoints of a job. A killed process, a power failure or a full disk never damages earlier checkpoints.

A checkpoint is written to a temporary directory next to its final path. When all files have been flushed to the disk,
the directory is renamed. An earlier checkpoint's directory is renamed before it is replaced or removed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from taskapp_kit.errors import CheckpointError
from taskapp_kit.system.private_files import flush, locked, make_private_folder, write_private
from taskapp_kit.train.checkpoints.facts import CheckpointFacts
from taskapp_kit.train.checkpoints.stored import (
    FACTS,
    LARGEST_DESCRIPTION,
    MANIFEST,
    StoredCheckpoint,
    by_score,
    check_file_name,
    checkpoint_folders,
    encoded_manifest,
    hashed,
)

log = logging.getLogger("taskapp_kit.train")

KEPT_LAST = 2
"""The number of latest checkpoints to retain. The checkpoint with the highest score is also retained."""

FULLY_STORED = KEPT_LAST + 2
"""Maximum number of checkpoints on the disk at a time: the latest, the best, and the checkpoint being written."""

UNFINISHED = ".unfinished-"
REPLACED = ".replaced-"
REMOVED = ".removed-"
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """A file to save. `size` is its approximate size in bytes. `write` writes it to a path, and may raise OSError."""

    size: int
    write: Callable[[Path], None]

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return a file with this content."""
        return cls(len(content), lambda path: write_private(path, content))


@contextmanager
def as_one_writer(root: Path, seconds: float = 0.0) -> Generator[None]:
    """Create the directory `root` and lock it against other writers inside the `with` block.

    Waits up to `seconds` for another writer. Raises CheckpointError if that writer does not finish, and
    OSError if the directory cannot be created.
    """
    make_private_folder(root)
    with ExitStack() as opened:
        try:
            opened.enter_context(locked(root / LOCK, seconds))
        except BlockingIOError:
            raise CheckpointError(
                f"Another process is writing checkpoints to {root}. Only one process may write at a time.",
                hint="Wait until the process has ended, or stop it.",
            ) from None
        yield


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """Raise CheckpointError if the disk has less than `needed` free bytes. `what` is the subject of the message."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{what} needs about {size_words(needed)} in {folder}, but the disk has only {size_words(free)} free.",
            hint="Free some disk space, or choose a directory on another disk.",
        )


class CheckpointWriter:
    """The only writer of the checkpoints in `root`. Readers may use `stored.py` at any time.

    The constructor waits up to `lock_seconds` for another writer, and removes incomplete files of a killed process. It
    raises CheckpointError if the other writer does not finish, and OSError if `root` cannot be created.
    """

    def __init__(self, root: Path, *, lock_seconds: float = 0.0) -> None:
        self.root = root
        with ExitStack() as opened:
            opened.enter_context(as_one_writer(root, lock_seconds))
            self._clear()
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the directory for other writers."""
        self._opened.close()

    def save(self, facts: CheckpointFacts, parts: Mapping[str, CheckpointPart]) -> StoredCheckpoint:
        """Save a checkpoint. Then remove all checkpoints except the last KEPT_LAST and the one with the highest score.

        If a checkpoint of this iteration exists, it is replaced.

        Args:
            facts: The checkpoint's metadata.
            parts: The checkpoint's files by name.

        Raises:
            CheckpointError: The checkpoint could not be saved. Earlier checkpoints are unchanged.
            BadArgument: The metadata cannot be encoded as JSON.
        """
        name = facts.name.checkpoint
        parts = {**parts, FACTS: CheckpointPart.of(facts.encoded())}
        for part_name in parts:
            check_file_name(part_name)
        if parts[FACTS].size > LARGEST_DESCRIPTION:
            raise CheckpointError(
                f"The metadata of {name} has {parts[FACTS].size} bytes. Expected at most {LARGEST_DESCRIPTION} bytes."
            )
        unfinished = self.root / f"{UNFINISHED}{name}"
        try:
            self._clear()
            check_free_space(self.root, sum(part.size for part in parts.values()), f"Saving {name}")
            unfinished.mkdir(mode=0o700)
            try:
                files = {}
                for part_name, part in parts.items():
                    part.write(unfinished / part_name)
                    flush(unfinished / part_name)
                    files[part_name] = hashed(unfinished / part_name)
                write_private(unfinished / MANIFEST, encoded_manifest(files), flush_to_disk=True)
                flush(unfinished)
                self._put(unfinished, name)
            except BaseException:
                with suppress(OSError):
                    self._clear()
                raise
        except OSError as error:
            raise CheckpointError(
                f"{name} could not be saved in {self.root}: {error.strerror or error}. Earlier checkpoints are unchanged."
            ) from error
        try:
            self._remove_old()
        except OSError as error:
            log.warning("old checkpoints not removed path=%s: %s", self.root, error)
        return StoredCheckpoint(self.root / name, facts, files)

    def _put(self, unfinished: Path, name: str) -> None:
        """Rename a finished directory to its final path."""
        place = self.root / name
        if place.exists():
            place.rename(self.root / f"{REPLACED}{name}")
        unfinished.rename(place)
        flush(self.root)

    def _remove_old(self) -> None:
        found = checkpoint_folders(self.root)
        for path in found.keys() - {*list(found)[-KEPT_LAST:], *by_score(found)[:1]}:
            path.rename(self.root / f"{REMOVED}{path.name}")
        self._clear()

    def _clear(self) -> None:
        """Delete renamed and unfinished directories. Restore a checkpoint whose replacement did not finish."""
        for path in self.root.iterdir():
            if path.name.startswith(REPLACED) and not (place := self.root / path.name.removeprefix(REPLACED)).exists():
                path.rename(place)
            elif path.name.startswith((UNFINISHED, REPLACED, REMOVED)):
                shutil.rmtree(path)


def size_words(count: int) -> str:
    """Return a number of bytes as a string such as `1.5 GB` or `31.2 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"

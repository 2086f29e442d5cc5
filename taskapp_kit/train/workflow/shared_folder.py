"""The directory through which the trainer and policies share weights. Calls never contain tensors.

DIRECTORY/
  weights/version-7.safetensors   written by `Trainer.push_weights(7)`, which retains the last few versions
  weights/pushed.json             the pushed versions with their numbers of updates, in order: [[7, 12], …]
  checkpoints/                    written by `Trainer.save`
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.system.private_files import make_private_folder, write_private
from taskapp_kit.train.checkpoints.writer import CheckpointPart

KEPT_VERSIONS = 4
"""Number of pushed versions that are retained, because a policy's replica may still load an earlier version."""
KNOWN_VERSIONS = 1000
"""Maximum number of pushed versions in `pushed.json`, which a restarted trainer reads."""
PUSHED = "pushed.json"
UNFINISHED = ".unfinished-"


class WeightsFolder:
    """The pushed weights in a shared directory. One trainer writes them, and policies may read them at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    def path(self, version: int) -> Path:
        """Return the path of a version's weights, which need not exist. Raises BadArgument for an invalid version."""
        if type(version) is not int or version < 0:
            raise BadArgument(f"The version of the weights is {version!r}. Expected an integer of at least 0.")
        return self._folder / f"version-{version}.safetensors"

    def existing(self, version: int) -> Path:
        """Return the path of a version's weights. Raises TrainingError if they do not exist."""
        path = self.path(version)
        if not path.is_file():
            raise TrainingError(
                f"The weights of version {version} do not exist at {path}. Expected one of the last {KEPT_VERSIONS} versions "
                "that were passed to push_weights.",
                hint="Await trainer.push_weights first, and pass the same shared `folder` to the policy and the trainer.",
            )
        return path

    def write(self, pushed: list[tuple[int, int]], part: CheckpointPart) -> None:
        """Write the weights of the last pushed version, and the list of pushed versions. Raises TrainingError if this fails.

        Readers never see an incomplete file. Files are not flushed to the disk, because checkpoints already survive a
        power failure.
        """
        version = pushed[-1][0]
        place = self.path(version)
        try:
            make_private_folder(self._folder)
            for path in self._folder.glob(f"{UNFINISHED}*"):  # files of a killed trainer
                path.unlink()
            part.write(self._folder / f"{UNFINISHED}weights")
            (self._folder / f"{UNFINISHED}weights").rename(place)
            write_private(self._folder / f"{UNFINISHED}{PUSHED}", orjson.dumps(pushed[-KNOWN_VERSIONS:]))
            (self._folder / f"{UNFINISHED}{PUSHED}").rename(self._folder / PUSHED)
            last = list(dict.fromkeys(self.path(version) for version, _ in reversed(pushed)))[:KEPT_VERSIONS]
            for path in self._folder.glob("version-*.safetensors"):
                if path not in last:
                    path.unlink()
        except OSError as error:
            raise TrainingError(
                f"The weights of version {version} could not be written to {place}: {error}."
            ) from error

    def pushed(self) -> list[tuple[int, int]]:
        """Return the pushed versions with their numbers of updates, or [] before the first push.

        Raises TrainingError if the file cannot be read.
        """
        try:
            return [
                (int(version), int(updates)) for version, updates in orjson.loads((self._folder / PUSHED).read_bytes())
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(f"{self._folder / PUSHED} cannot be read: {error}.") from None


def shared_folder(folder: str | None) -> Path:
    """Return the directory. For None, return a temporary directory that is removed when this program ends."""
    return Path(folder).absolute() if folder else _program_folder()


def sent_folder(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a constructor's arguments with the directory, so that all replicas and services use the same directory."""
    return {**kwargs, "folder": str(shared_folder(kwargs.get("folder")))}


@functools.cache
def _program_folder() -> Path:
    path, owner = tempfile.mkdtemp(prefix="taskapp-workflow-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # only in the process that created it
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return Path(path)

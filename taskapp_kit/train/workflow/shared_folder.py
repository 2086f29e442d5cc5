"""The folder through which trainer and policies share weights: tensors never travel in calls.

FOLDER/
  weights/version-7.safetensors   as `Trainer.push_weights(7)` wrote it; the last few stay
  weights/pushed.json             [[7, 12], …]: the versions in the order of their pushes, and how many updates made each
  checkpoints/                    of `Trainer.save`
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
"""Pushed versions whose weights stay: a policy's replica may be loading an earlier one."""
KNOWN_VERSIONS = 1000
"""Pushed versions of which a restarted trainer knows how many updates made them."""
PUSHED = "pushed.json"
UNFINISHED = ".unfinished-"


class WeightsFolder:
    """The pushed weights in a shared folder. One trainer writes; policies read at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    def path(self, version: int) -> Path:
        """Return where the weights of a version are, or will be. Raises BadArgument for what is no version."""
        if type(version) is not int or version < 0:
            raise BadArgument(f"The version of weights is {version!r}; expected a whole number of at least 0.")
        return self._folder / f"version-{version}.safetensors"

    def existing(self, version: int) -> Path:
        """Return where the weights of a version are. Raises TrainingError if they are not there."""
        path = self.path(version)
        if not path.is_file():
            raise TrainingError(
                f"The weights of version {version} are not at {path}; expected them as push_weights({version}) writes them, "
                f"of the last {KEPT_VERSIONS} pushes.",
                hint="Await trainer.push_weights first, and give policy and trainer one `folder` that both machines see.",
            )
        return path

    def write(self, pushed: list[tuple[int, int]], part: CheckpointPart) -> None:
        """Write the weights of the last of the pushed versions, and that they were pushed. Raises TrainingError.

        Readers find the whole file or none. Nothing is flushed to the disk: after a power cut there are checkpoints.
        """
        version = pushed[-1][0]
        place = self.path(version)
        try:
            make_private_folder(self._folder)
            for path in self._folder.glob(f"{UNFINISHED}*"):  # of a killed trainer
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
        """Return the pushed versions, and how many updates made each; none before the first push. Raises TrainingError."""
        try:
            return [
                (int(version), int(updates)) for version, updates in orjson.loads((self._folder / PUSHED).read_bytes())
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(f"{self._folder / PUSHED} cannot be read: {error}.") from None


def shared_folder(folder: str | None) -> Path:
    """Return the folder; None for one of this program, removed at its end."""
    return Path(folder).absolute() if folder else _program_folder()


def sent_folder(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a constructor's arguments with the folder in them, so that replicas and other services have the same."""
    return {**kwargs, "folder": str(shared_folder(kwargs.get("folder")))}


@functools.cache
def _program_folder() -> Path:
    path, owner = tempfile.mkdtemp(prefix="taskapp-workflow-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a child that was forked
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return Path(path)

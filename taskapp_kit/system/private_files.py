"""Files and folders that only their owner may read, whatever the umask says: rollouts and results hold conversations."""

from __future__ import annotations

import os
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Makes a folder and the missing ones above it with mode 700. One that exists stays as it is. Raises OSError."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Opens a file, made with mode 600 when it is not there; the descriptor. One that exists keeps its mode.

    Raises OSError.
    """
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_private(path: Path, content: bytes, *, flush_to_disk: bool = False) -> None:
    """Writes a whole file, in place of what it held. Raises OSError."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
        if flush_to_disk:
            file.flush()
            os.fsync(file.fileno())

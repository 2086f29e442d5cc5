"""Files and folders that only their owner may read, whatever the umask: rollouts and results hold conversations."""

from __future__ import annotations

import os
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 700. An existing one is unchanged. Raises OSError."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file and return its descriptor; it is created with mode 600, an existing one keeps its mode.

    Raises OSError.
    """
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_private(path: Path, content: bytes, *, flush_to_disk: bool = False) -> None:
    """Write a whole file, replacing its content. Raises OSError."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
        if flush_to_disk:
            file.flush()
            os.fsync(file.fileno())

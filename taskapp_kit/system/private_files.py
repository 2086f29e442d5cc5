"""Functions for files and directories that only their owner can read, regardless of the umask.

They are private because results contain conversations. Files are replaced atomically and durably. Locks exclude other
processes.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LOOK_SECONDS = 0.01


def make_private_folder(path: Path) -> None:
    """Create a directory and its missing parents with mode 700. Existing directories are not changed.

    Raises OSError if the directory cannot be created.
    """
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file and return its descriptor. A new file has mode 600. The mode of an existing file is not changed.

    Raises OSError if the file cannot be opened.
    """
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_private(path: Path, content: bytes, *, flush_to_disk: bool = False) -> None:
    """Replace the content of a file. Raises OSError if this fails."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
        if flush_to_disk:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replaced(path: Path) -> Generator[Path]:
    """Yield the path of a new file with mode 600 in the directory of `path`.

    At the end of the block, the new file replaces `path`.

    Readers see either the old or the new content, even after a power failure. If the block raises an exception, the new file
    is removed. Raises OSError if the file cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(descriptor)
    new = Path(name)
    try:
        yield new
        flush(new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_durable(path: Path, content: bytes) -> None:
    """Replace a file's content atomically and durably, with mode 600. Raises OSError if this fails."""
    with replaced(path) as new:
        new.write_bytes(content)


def flush(path: Path) -> None:
    """Flush the content of a file, or the entries of a directory, to disk. Raises OSError if this fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, seconds: float = 0.0) -> None:
    """Lock an open file or directory until the descriptor is closed.

    Raises:
        BlockingIOError: Another descriptor still holds the lock after `seconds`.
        OSError: The file cannot be locked.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(LOOK_SECONDS)


@contextmanager
def locked(path: Path, seconds: float = 0.0) -> Generator[None]:
    """Lock a directory or a file during the block. A missing file is created. Raises the errors of `lock`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.is_dir() else open_private(path)
    try:
        lock(descriptor, seconds)
        yield
    finally:
        os.close(descriptor)

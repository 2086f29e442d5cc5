"""Functions that safely read directories from other users, such as tasks, apps and evaluations.

They read only regular files whose real path is inside the directory, because a link in the directory may point to any file
that this process can read, and reading a FIFO would block. They also limit the size, because a file may have any size.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class ForeignFileRefused(OSError):
    """Raised if a file is outside its directory, is not a regular file, changes while it is read, or is too large.

    `filename` is the file's relative path.
    """


def inside(folder: Path, name: str) -> Path:
    """Return the real path of a regular file in a directory.

    Raises ForeignFileRefused if the file is outside the directory or not a regular file, and OSError if it is missing.
    """
    real = _inside(folder, name)
    if not stat.S_ISREG(real.stat().st_mode):
        raise ForeignFileRefused(errno.EINVAL, "is not a regular file", name)
    return real


def read_inside(folder: Path, name: str, most_bytes: int) -> bytes:
    """Return the content of a file in a directory.

    Raises the errors of `inside`, ForeignFileRefused if the file has more than `most_bytes` or is replaced while it is
    read, and OSError if it cannot be read.
    """
    real = inside(folder, name)
    with open(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        if not os.path.samestat(os.fstat(file.fileno()), inside(folder, name).stat()):
            raise ForeignFileRefused(errno.ESTALE, "was replaced while it was read", name)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ForeignFileRefused(errno.EFBIG, f"has more than {most_bytes} bytes", name)
    return content


def files_inside(folder: Path, most: int) -> list[str]:
    """Return the sorted relative paths of all files in a directory tree. Links within the tree are followed.

    Raises:
        ForeignFileRefused: There are more than `most` files and directories, or `inside` rejects one of the files.
        OSError: The tree cannot be read.
    """

    def failed(error: OSError) -> None:
        raise error

    names: list[Path] = []
    seen = 0
    for place, folders, files in os.walk(folder, followlinks=True, onerror=failed):
        below = Path(place).relative_to(folder)
        seen += len(folders) + len(files)
        if seen > most:
            raise ForeignFileRefused(errno.EFBIG, f"has more than {most} files and directories", str(folder))
        for name in folders:
            _inside(folder, (below / name).as_posix())
        for name in files:
            inside(folder, (below / name).as_posix())
            names.append(below / name)
    return [name.as_posix() for name in sorted(names)]


def _inside(folder: Path, name: str) -> Path:
    real = Path(os.path.realpath(folder / name, strict=True))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ForeignFileRefused(errno.EACCES, "leads outside the directory", name)
    return real

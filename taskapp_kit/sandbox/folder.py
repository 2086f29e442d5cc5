"""The directory of a box on the host. Access is safe, although hostile programs write the directory's contents.

    taskapp-box-XXXX/   owned by this process: no other user may change it
        files/          owned by the box: the working directory, preserved between runs
        tmp/  shm/      owned by the box: /tmp and /dev/shm of one run, emptied after the run
        places/0, 1, …  owned by the box: additional directories, mounted at other paths, preserved between runs
        code/           owned by this process: the program, Python's start-up files, and sockets; read-only in the box
        empty/          owned by this process: mounted over hidden directories

Every path is opened component by component, relative to the previous component and never through a symbolic link. The box
can therefore not redirect a path to the outside, even while the path is being opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from taskapp_kit.errors import SandboxError

PREFIX = "taskapp-box-"
BEFORE_CODE = b"""import os, sys
sys.path[:] = [p for p in sys.path if not p.endswith(("/site-packages", "/dist-packages")) and p != __file__[:-17]]
sys.path.insert(0, os.environ["HOME"])
"""
"""The `sitecustomize.py` in every box, which removes the host's inaccessible packages from the module path."""
DEEPEST = 64
_OURS_FOR_SECONDS = 60.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """The directory of one box. The methods raise SandboxError or OSError if an operation fails.

    Args:
        uid: The owner of the box's files. None means the user of this process.
        places: The paths of additional directories in the box.
    """

    def __init__(self, uid: int | None, places: Sequence[str] = ()) -> None:
        self.uid = uid
        self.places: dict[str, str] = {place: f"places/{number}" for number, place in enumerate(places)}
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._held = os.open(self.path, _FOLDER)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self.path.chmod(0o711)
        for name, mode in (("code", 0o755), ("empty", 0o755), ("places", 0o711)):
            (self.path / name).mkdir()
            (self.path / name).chmod(mode)  # independent of the umask
        for name in ("files", "tmp", "shm", *self.places.values()):
            (self.path / name).mkdir(mode=0o700)
            self._give(self.path / name)
        self._put("sitecustomize.py", BEFORE_CODE)

    @property
    def files(self) -> Path:
        """The box's working directory."""
        return self.path / "files"

    def write(self, name: str, data: bytes, *, most_bytes: int) -> None:
        """Create or replace a file in the box, and create its parent directories."""
        if len(data) > most_bytes:
            raise SandboxError(
                f"The file {name!r} has {len(data)} bytes, but the box's limit is {most_bytes} bytes.",
                hint="Increase SandboxLimits.file_bytes.",
            )
        top, (*folders, last) = self._parts(name)
        with _refused(name), self._walk(top, folders, make=True) as inside:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(last, dir_fd=inside)
            made = os.open(last, _WRITE, 0o644, dir_fd=inside)
            with open(made, "wb") as file:  # noqa: PTH123
                if self.uid is not None:
                    os.fchown(made, self.uid, self.uid)
                file.write(data)

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """Return the bytes of a regular file in the box. Links, pipes, devices and longer files raise SandboxError."""
        top, (*folders, last) = self._parts(name)
        with _refused(name), self._walk(top, folders) as inside:
            opened = os.open(last, _READ, dir_fd=inside)
            with open(opened, "rb") as file:  # noqa: PTH123
                status = os.fstat(opened)
                if not stat.S_ISREG(status.st_mode) or (self.uid is not None and status.st_uid != self.uid):
                    raise SandboxError(f"{name!r} in the box is not a regular file that the box's user owns.")
                data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise SandboxError(
                f"The file {name!r} in the box is longer than {most_bytes} bytes.", hint="Increase max_bytes."
            )
        return data

    def names(self, *, most: int) -> list[str]:
        """Return the sorted paths of all regular files, relative to the working directory. Links are omitted."""
        return sorted(name for name, entry in self._entries("files", most) if stat.S_ISREG(entry.st_mode))

    def used(self, *, most_files: int) -> tuple[int, int]:
        """Return how many bytes and entries the box has on disk. If entries are nested too deeply, the second number is 2**62."""
        total = count = 0
        try:
            for part in ("files", "tmp", "shm", *self.places.values()):
                for _, entry in self._entries(part, most_files):
                    total += entry.st_blocks * 512
                    count += 1
        except SandboxError:
            return total, 2**62
        return total, count

    @property
    def program(self) -> Path:
        """The path of the program for the box's next run."""
        return self.path / "code" / "main.py"

    def put_code(self, code: bytes) -> None:
        """Store the program for the box's next run. This replaces the previous program or FIFO."""
        self._put("next.py", code)
        (self.path / "code" / "next.py").replace(self.program)

    def put_fifo(self) -> None:
        """Replace the program file with a FIFO. An interpreter that opens it blocks until a program is written to it."""
        fifo = self.path / "code" / "next.py"
        os.mkfifo(fifo, 0o644)
        fifo.chmod(0o644)  # independent of the umask
        fifo.replace(self.program)

    def listen(self, name: str) -> socket.socket:
        """Return a listening Unix socket in the program's directory, where the box cannot replace it."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self.path / "code" / name))
            (self.path / "code" / name).chmod(0o666)
            listener.listen()
        except BaseException:
            listener.close()
            raise
        return listener

    def _put(self, name: str, data: bytes) -> None:
        path = self.path / "code" / name
        path.write_bytes(data)
        path.chmod(0o644)

    def clear_temporary(self) -> None:
        """Empty the box's /tmp and /dev/shm. No program may be running in the box."""
        for name in ("tmp", "shm"):
            if next(os.scandir(self.path / name), None) is not None:
                _empty(self.path / name)

    def clear(self, place: str) -> None:
        """Empty the working directory ("") or one of the places. No program may be running in the box."""
        if place and place not in self.places:
            raise SandboxError(f"The box has no directory {place!r}.", hint="Pass one of the box's `places`.")
        path = self.path / (self.places[place] if place else "files")
        path.chmod(0o700)  # the box's programs may have removed permissions
        _empty(path)
        self._give(path)

    def remove(self) -> None:
        """Remove the directory. No program may be running in the box."""
        try:
            remove_tree(self.path)
        finally:
            os.close(self._held)

    def _give(self, path: Path) -> None:
        """Make the box's user the owner of a directory. Process 1 of the box, which has this process's group, may enter it."""
        if self.uid is not None:
            os.chown(path, self.uid, os.getegid())
            path.chmod(0o710)

    def _parts(self, name: str) -> tuple[str, list[str]]:
        """Return the directory that contains a file (`files` or a place), and the components of the path in that directory."""
        for place, below in self.places.items():
            if name.startswith(f"{place}/"):
                return below, _parts(name.removeprefix(f"{place}/"))
        return "files", _parts(name)

    @contextlib.contextmanager
    def _walk(self, top: str, folders: list[str], *, make: bool = False) -> Iterator[int]:
        inside = os.open(self.path / top, _FOLDER)
        try:
            for name in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=inside)
                        if self.uid is not None:
                            os.chown(name, self.uid, self.uid, dir_fd=inside, follow_symlinks=False)
                deeper = os.open(name, _FOLDER, dir_fd=inside)
                os.close(inside)
                inside = deeper
            yield inside
        finally:
            os.close(inside)

    def _entries(self, part: str, most: int) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all entries below a directory of the box, without following links.

        Raises:
            SandboxError: There are more than `most` entries, or directories are nested deeper than DEEPEST.
        """
        waiting = [(part, 0)]
        seen = 0
        while waiting:
            path, depth = waiting.pop()
            try:
                opened = self._open_below(path)
            except OSError:
                continue  # the entry was removed or replaced since it was listed
            try:
                with os.scandir(opened) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > most or depth > DEEPEST:
                            raise SandboxError(
                                f"The box has more than {most} files, or directories that are nested deeper than {DEEPEST}."
                            )
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            below = f"{path}/{entry.name}"
                            if stat.S_ISDIR(status.st_mode):
                                waiting.append((below, depth + 1))
                            yield below.partition("/")[2], status
            finally:
                os.close(opened)

    def _open_below(self, path: str) -> int:
        inside = os.open(self.path, _FOLDER)
        for name in path.split("/"):
            try:
                deeper = os.open(name, _FOLDER, dir_fd=inside)
            finally:
                os.close(inside)
            inside = deeper
        return inside


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not name or "\0" in name or name.startswith("/") or len(parts) > DEEPEST or {"", ".", ".."} & set(parts):
        raise SandboxError(
            f"{name!r} is not a valid path in a box.", hint='Use a relative path such as "out.json" or "data/a.txt".'
        )
    return parts


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    """Convert every OSError about a file in the box to a SandboxError, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "The box has no such file", name) from None
    except OSError as error:
        raise SandboxError(
            f"{name!r} in the box cannot be opened: {error.strerror}.", hint="Use a regular file, not a link."
        ) from None


def remove_tree(path: Path) -> None:
    """Remove a directory tree of any depth, even with undecodable names and directories without permissions."""
    _empty(path)
    path.rmdir()


def _empty(path: Path) -> None:
    """Empty a directory. Nested directories are moved up before they are emptied, so that any depth can be removed."""
    top = os.open(path, _FOLDER)
    try:
        count = 0
        while True:
            with os.scandir(top) as listed:
                entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
            if not entries:
                return
            for name, is_folder in entries:
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                    continue
                inner = _own(name, top)
                try:
                    with os.scandir(inner) as listed:
                        below = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
                    for child, child_is_folder in below:
                        if child_is_folder:
                            os.close(_own(child, inner))  # moving a directory requires write permission on it
                            count += 1
                            moved = f".{os.getpid()}-{time.monotonic_ns()}-{count}"
                            os.rename(child, moved, src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(child, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _own(name: str, inside: int) -> int:
    """Open a directory after making it writable."""
    if os.geteuid() != 0:
        os.chmod(name, 0o700, dir_fd=inside)  # no program is running that could replace the directory with a link
    return os.open(name, _FOLDER, dir_fd=inside)


def sweep() -> int:
    """Remove the directories of boxes whose process was killed, and return the number of removed directories.

    The directory of an open box is locked, so it is not removed.
    """
    swept = 0
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _OURS_FOR_SECONDS:
                continue
            held = os.open(path, _FOLDER)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
                swept += 1
            finally:
                os.close(held)
    return swept


def tool(name: str) -> str | None:
    """Return the path of a system program, or None if it is not installed.

    PATH is ignored, because boxes only contain system directories.
    """
    return shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin")

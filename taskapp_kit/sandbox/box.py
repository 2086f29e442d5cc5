"""`Sandbox`: a directory, a user id, and one program at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox import layers, remote, uids
from taskapp_kit.sandbox.early import EarlyStart
from taskapp_kit.sandbox.folder import Folder, sweep
from taskapp_kit.sandbox.limits import RunResult, SandboxLimits
from taskapp_kit.sandbox.probe import settle
from taskapp_kit.sandbox.supervise import Run, Stop

log = logging.getLogger("taskapp_kit.sandbox")

T = TypeVar("T")
# A new top-level directory. In the working directory, a program could replace the next run's mount point with a link.
_PLACE = re.compile(r"/\w[\w.-]*")
Names = list[str]
_swept = threading.Event()


class Sandbox:
    """A box in which untrusted code runs. Open and remove it with `async with` or `with`.

    Boxes share nothing. Between two runs in one box, only files persist. A box runs one program at a time. The methods may
    be called from any thread and any event loop, and each has a blocking variant with the suffix `_sync`.

    Args:
        limits: The limits of each run, which `run` may override.
        files: The initial files in the working directory, as a mapping from path to content.
        level: The sandbox level. Defaults to the strongest level that works on this machine.
        allow_weak: Whether the level may be below 2. Defaults to the setting `allow_weak_sandbox`
            (TASKAPP_ALLOW_WEAK_SANDBOX).
        user_ids: The user ids for boxes. If this process runs as root, each box uses a different id.
        readable: Additional directories on this machine that programs may read, such as a virtual environment. Only
            for level 3.
        places: Paths of additional directories in the box, such as "/app". Methods accept the absolute paths of files
            in them, such as "/app/a.txt". Only for level 3.
        warm: Whether to start the next program's Python interpreter while the box is idle. This saves start-up time, but
            requires a waiting process. Ignored at level 4.

    Raises:
        SandboxTooWeak: Raised on opening if the level does not work on this machine, or is weak and not allowed.
        SandboxError: A limit or a path in `places` is invalid, or the box cannot be created when it is opened.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        level: int | None = None,
        allow_weak: bool | None = None,
        user_ids: Sequence[int] = uids.DEFAULT_UIDS,
        readable: Sequence[str] = (),
        places: Sequence[str] = (),
        warm: bool = False,
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._files = dict(files or {})
        self._requested_level = level
        self._allow_weak = allow_weak
        self._user_ids = user_ids
        self._readable = readable
        self._places = tuple(places)
        for place in self._places:
            if not _PLACE.fullmatch(place) or place[1:] in layers.TAKEN:
                raise SandboxError(
                    f"{place!r} cannot be one of `places`.", hint='Use another top-level directory, such as "/app".'
                )
        self._warm = warm
        self._early: EarlyStart | None = None
        self._level = -1
        self._folder: Folder | remote.RemoteBox | None = None
        self._lease: uids.Lease | None = None
        self._busy = threading.Lock()
        self._state = threading.Lock()
        self._running: Stop | None = None

    @property
    def level(self) -> int:
        """The level of the open box."""
        self._opened()
        return self._level

    @property
    def root(self) -> str:
        """The path of the working directory inside the box."""
        folder = self._opened()
        return remote.ROOT if isinstance(folder, remote.RemoteBox) else layers.inner_root(self.level, folder)

    async def __aenter__(self) -> Self:
        try:
            await _in_thread(self.__enter__)
        except asyncio.CancelledError:
            self.close()  # the box may have been opened before the caller was cancelled
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self.close)

    def __enter__(self) -> Self:
        if self._folder is not None:
            raise SandboxError("This box is already open.", hint="Create another Sandbox.")
        self._level = settle(self._requested_level, self._allow_weak)
        if self._places and self._level != 3:
            raise self._needs_bubblewrap("places")
        if self._readable and self._level not in (0, 3):
            raise self._needs_bubblewrap("additional readable directories")
        try:
            self._folder = self._new_folder()
            for name, data in self._files.items():
                self.write_sync(name, data)
            if self._warm and isinstance(self._folder, Folder):
                self._early = EarlyStart(self._level, self._folder, self.limits, tuple(self._readable))
        except BaseException:
            self.close()
            raise
        return self

    def _needs_bubblewrap(self, feature: str) -> SandboxError:
        return SandboxError(
            f"A box at level {self._level} ({layers.NAMES[self._level]}) does not support {feature}.",
            hint="Use level 3. It requires bubblewrap: apt-get install bubblewrap.",
        )

    def _new_folder(self) -> Folder | remote.RemoteBox:
        if self._level == remote.LEVEL:
            machines = remote.in_use()
            if machines is None:
                raise SandboxError("The provider of remote machines was removed.", hint="Open the box again.")
            return remote.RemoteBox(machines, self.limits)
        # Once per process, because the search takes time and directories of killed processes are rare.
        if not _swept.is_set():
            _swept.set()
            sweep()
        self._lease = uids.lease(self._user_ids) if layers.own_uid(self._level) else None
        return Folder(self._lease.uid if self._lease else None, self._places)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(
        self,
        program: str | Sequence[str],
        *,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        clear_follows: bool = False,
    ) -> RunResult:
        """Run a program until it ends or reaches a limit. Cancelling this call kills the program immediately.

        The program runs in the box's working directory, which is on Python's module path.

        Args:
            program: Python source, or a command as a sequence of strings. `python` runs the interpreter in the box.
            stdin: The standard input of the program.
            limits: The limits of this run. Defaults to the box's limits.
            clear_follows: Whether the caller will call `clear` next. In a warm box, `clear` then starts the next interpreter.

        Returns:
            The result, even if the program failed or was killed.

        Raises:
            SandboxError: The program could not be confined, or the box is running another program.
        """
        stop = Stop()
        try:
            return await _in_thread(lambda: self._run(program, stdin, limits, stop, clear_follows), stop.stop)
        finally:
            stop.close()

    def run_sync(
        self,
        program: str | Sequence[str],
        *,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        clear_follows: bool = False,
    ) -> RunResult:
        """Run a program like `run`, and block the calling thread. Do not call this on an event loop."""
        stop = Stop()
        try:
            return self._run(program, stdin, limits, stop, clear_follows)
        finally:
            stop.close()

    async def write(self, name: str, data: bytes | str) -> None:
        """Create or replace a file.

        Args:
            name: The path inside the box's working directory.
            data: The content of the file. A str is written as UTF-8.

        Raises:
            SandboxError: The path is outside the box, or the content is too long.
        """
        await _in_thread(lambda: self.write_sync(name, data))

    def write_sync(self, name: str, data: bytes | str) -> None:
        """Create or replace a file like `write`, and block the calling thread."""
        data = data.encode() if isinstance(data, str) else data
        self._opened().write(name, data, most_bytes=self.limits.file_bytes)

    async def read(self, name: str, *, max_bytes: int = 2**20) -> bytes:
        """Return a file's bytes.

        Args:
            name: The path inside the box's working directory.
            max_bytes: The maximum size of the file in bytes.

        Raises:
            FileNotFoundError: The file does not exist.
            SandboxError: The file is a link or too long, or the path is outside the box.
        """
        return await _in_thread(lambda: self.read_sync(name, max_bytes=max_bytes))

    def read_sync(self, name: str, *, max_bytes: int = 2**20) -> bytes:
        """Return a file's bytes like `read`, and block the calling thread."""
        return self._opened().read(name, most_bytes=max_bytes)

    async def list(self) -> Names:
        """Return the sorted paths of all regular files in the working directory and its subdirectories.

        Raises:
            SandboxError: The box has more files than the limit `files` allows.
        """
        return await _in_thread(self.list_sync)

    def list_sync(self) -> Names:
        """Return the paths of all files like `list`, and block the calling thread."""
        return self._opened().names(most=self.limits.files)

    async def clear(self, place: str = "") -> None:
        """Empty the working directory, or one of `places`.

        Args:
            place: One of `places`. Defaults to the working directory.

        Raises:
            SandboxError: A program is running.
        """
        await _in_thread(lambda: self.clear_sync(place))

    def clear_sync(self, place: str = "") -> None:
        """Empty a directory like `clear`, and block the calling thread."""
        folder = self._opened()
        if isinstance(folder, remote.RemoteBox):
            raise SandboxError("A remote box cannot be emptied.", hint="Open another box.")
        if not self._busy.acquire(blocking=False):
            raise SandboxError("This box is running a program.", hint="Wait until the program ends.")
        try:
            # the waiting interpreter may have imported a module that a program left in the directory
            if self._early is not None:
                self._early.drop()
            folder.clear(place)
            if self._early is not None:
                self._early.begin()
        except OSError as error:
            raise SandboxError(f"A box could not be emptied: {error.strerror or error}.") from error
        finally:
            self._busy.release()

    def listen_sync(self, name: str) -> tuple[socket.socket, str]:
        """Return a listening Unix socket, and its path in the box, to which programs can connect.

        The caller accepts connections and closes the socket.

        Args:
            name: The name of the socket.

        Raises:
            SandboxError: The box is not at level 3, the only level that supports sockets.
        """
        folder = self._opened()
        if self.level != 3 or isinstance(folder, remote.RemoteBox):
            raise self._needs_bubblewrap("listening sockets")
        try:
            return folder.listen(name), f"/code/{name}"
        except OSError as error:
            raise SandboxError(f"The sandbox's socket could not be created: {error.strerror or error}.") from error

    def close(self) -> None:
        """Kill a running program and remove the box. This may be called repeatedly, even while a program is running."""
        with self._state:
            folder, self._folder = self._folder, None
            lease, self._lease = self._lease, None
            if self._running is not None:
                self._running.stop()
        with self._busy:
            try:
                if self._early is not None:
                    self._early.close()
                    self._early = None
                if folder is not None:
                    folder.remove()
            except OSError as error:
                log.warning("the directory of a box could not be removed completely: %s", error.strerror)
            finally:
                if lease is not None:
                    lease.release()

    def _opened(self) -> Folder | remote.RemoteBox:
        folder = self._folder
        if folder is None:
            raise SandboxError("This box is not open.", hint="Use it inside `async with Sandbox() as box:`.")
        return folder

    def _run(
        self,
        program: str | Sequence[str],
        stdin: bytes,
        limits: SandboxLimits | None,
        stop: Stop,
        clear_follows: bool,
    ) -> RunResult:
        limits = limits or self.limits
        argv = None if isinstance(program, str) else [*program]
        if argv is not None and (not argv or not all(isinstance(word, str) and "\0" not in word for word in argv)):
            raise SandboxError(
                "A command must be a non-empty list of strings.", hint="Pass Python source as one string."
            )
        if not self._busy.acquire(blocking=False):
            raise SandboxError("This box is running another program.", hint="Wait until it ends, or open a second box.")
        try:
            with self._state:
                folder = self._opened()
                self._running = stop
            if isinstance(folder, remote.RemoteBox):
                return folder.run(program if isinstance(program, str) else None, argv, limits, stdin, stop)
            try:
                return self._started(program, argv, folder, limits, stdin).result(stop)
            finally:
                folder.clear_temporary()
                if self._early is not None and self._folder is not None and not clear_follows:
                    self._early.begin()
        except OSError as error:
            raise SandboxError(f"A box could not run a program: {error.strerror or error}.") from error
        finally:
            with self._state:
                self._running = None
            self._busy.release()

    def _started(
        self,
        program: str | Sequence[str],
        argv: Sequence[str] | None,
        folder: Folder,
        limits: SandboxLimits,
        stdin: bytes,
    ) -> Run:
        """Start the program in a waiting interpreter or in a new process."""
        early = None if self._early is None else self._early.take(limits)
        if isinstance(program, str):
            code = program.encode("utf-8", "surrogatepass")
            folder.put_code(code)
            if early is not None:
                if early.hand_over(code, stdin):
                    return early
                early.discard()
        elif early is not None:
            early.discard()
        launch = layers.prepare(self._level, folder, argv, limits, self._readable)
        return Run(launch, folder, limits, self._level, stdin)


async def _in_thread(work: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
    """Run `work` in a new thread, which a full thread pool cannot delay. A cancelled call waits until `work` has ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", value))

    def body() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=body, name="taskapp-sandbox", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        done.exception()  # mark it as retrieved, because the cancelled caller cannot retrieve it
        raise

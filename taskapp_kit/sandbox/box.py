"""An open sandbox: a folder, a user id, and one program at a time."""

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
# A new top folder, never below the working directory: there a program could put a link in the way of the next
# run's mount.
_PLACE = re.compile(r"/\w[\w.-]*")
Names = list[str]
_swept = threading.Event()


class Sandbox:
    """A box in which untrusted code runs; `async with` or `with` opens and removes it.

    Boxes share nothing, and a run leaves only its files to the next one. A box runs one program at a time; its methods
    may be called from any thread and from any event loop. Every method has a `_sync` twin that blocks.

    Args:
        limits: of each run, unless `run` is given others.
        files: the initial contents of its working directory.
        level: the sandbox level, None for the strongest that works here.
        allow_weak: whether the level may be below 2, None for the setting `allow_weak_sandbox`
            (TASKAPP_ALLOW_WEAK_SANDBOX).
        user_ids: as root, the box takes one of them for itself.
        readable: folders of this machine that programs can read besides the system's, such as a virtual environment; at
            level 3.
        places: paths such as "/app" at which the box has further folders of its own, at level 3; files in them are
            named by their whole path, "/app/a.txt".
        warm: start the interpreter of the next Python program while the box is idle, so that the program need not wait
            for it; costs a waiting process. Not at level 4.

    Raises:
        SandboxTooWeak: when it is opened, and this machine cannot provide the level.
        SandboxError: when it is opened, and cannot be for another reason.
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
                    f"A box cannot have a place at {place!r}.", hint='Name a new top folder, such as "/app".'
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
        """The working directory as programs in the box see it."""
        folder = self._opened()
        return remote.ROOT if isinstance(folder, remote.RemoteBox) else layers.inner_root(self.level, folder)

    async def __aenter__(self) -> Self:
        try:
            await _in_thread(self.__enter__)
        except asyncio.CancelledError:
            self.close()  # it may have been opened before the caller was cancelled
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self.close)

    def __enter__(self) -> Self:
        if self._folder is not None:
            raise SandboxError("This box is open already.", hint="Make another Sandbox.")
        self._level = settle(self._requested_level, self._allow_weak)
        if self._places and self._level != 3:
            raise SandboxError(
                f"A box of level {self._level} ({layers.NAMES[self._level]}) cannot have places.",
                hint="Level 3 can: install bubblewrap (apt-get install bubblewrap).",
            )
        if self._readable and self._level not in (0, 3):
            raise SandboxError(
                f"A box of level {self._level} ({layers.NAMES[self._level]}) cannot be shown further folders.",
                hint="Level 3 can: install bubblewrap (apt-get install bubblewrap).",
            )
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

    def _new_folder(self) -> Folder | remote.RemoteBox:
        if self._level == remote.LEVEL:
            machines = remote.in_use()
            if machines is None:
                raise SandboxError("There is no longer a machine for a remote box.", hint="Open it again.")
            return remote.RemoteBox(machines, self.limits)
        # Once in a process: what a killed owner left is rare, and looking for it takes time.
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
        """Run a program and waits for its end, or kills it when a limit is reached. Cancelling kills it at once.

        It runs in the box's working directory, where Python also finds modules.

        Args:
            program: Python source, or a command as a sequence of words; a first word `python` is the box's own
                interpreter.
            stdin: what the program reads.
            limits: those of the box when absent.
            clear_follows: the caller calls `clear` next, which then starts the interpreter of a warm box's next
                program.

        Raises:
            SandboxError: the program could not be started confined, or another one runs.
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
        """`run` for synchronous code. The calling thread must not be an event loop's."""
        stop = Stop()
        try:
            return self._run(program, stdin, limits, stop, clear_follows)
        finally:
            stop.close()

    async def write(self, name: str, data: bytes | str) -> None:
        """Create or replaces a file.

        Args:
            name: a path inside the box's working directory.
            data: its content; text is written as UTF-8.

        Raises:
            SandboxError: the path leads outside, or the content is longer than a file may be.
        """
        await _in_thread(lambda: self.write_sync(name, data))

    def write_sync(self, name: str, data: bytes | str) -> None:
        """`write` for synchronous code."""
        data = data.encode() if isinstance(data, str) else data
        self._opened().write(name, data, most_bytes=self.limits.file_bytes)

    async def read(self, name: str, *, max_bytes: int = 2**20) -> bytes:
        """Return a file's bytes.

        Args:
            name: a path inside the box's working directory.
            max_bytes: the longest file that is read.

        Raises:
            FileNotFoundError: there is none.
            SandboxError: it is a link or longer, or the path leads outside.
        """
        return await _in_thread(lambda: self.read_sync(name, max_bytes=max_bytes))

    def read_sync(self, name: str, *, max_bytes: int = 2**20) -> bytes:
        """`read` for synchronous code."""
        return self._opened().read(name, most_bytes=max_bytes)

    async def list(self) -> Names:
        """Return the regular files in the working directory and below, as sorted paths.

        Raises:
            SandboxError: there are more than the box may have.
        """
        return await _in_thread(self.list_sync)

    def list_sync(self) -> Names:
        """`list` for synchronous code."""
        return self._opened().names(most=self.limits.files)

    async def clear(self, place: str = "") -> None:
        """Empty the working directory, or one of `places`.

        Args:
            place: a path of `places`; the working directory when empty.

        Raises:
            SandboxError: a program runs.
        """
        await _in_thread(lambda: self.clear_sync(place))

    def clear_sync(self, place: str = "") -> None:
        """`clear` for synchronous code."""
        folder = self._opened()
        if isinstance(folder, remote.RemoteBox):
            raise SandboxError("A remote box cannot be emptied.", hint="Open another one.")
        if not self._busy.acquire(blocking=False):
            raise SandboxError("This box runs a program.", hint="Wait for it.")
        try:
            # A module that a program left could run in between.
            if self._early is not None:  # its start passes through the folder
                self._early.drop()
            folder.clear(place)
            if self._early is not None:
                self._early.begin()
        except OSError as error:
            raise SandboxError(f"A box could not be emptied: {error.strerror or error}.") from error
        finally:
            self._busy.release()

    def listen_sync(self, name: str) -> tuple[socket.socket, str]:
        """Return a listening unix socket and its path in the box: a program there can connect to it, and to nothing else.

        The caller accepts connections and closes it.

        Args:
            name: of the socket.

        Raises:
            SandboxError: the box is not of level 3, the only one with sockets.
        """
        folder = self._opened()
        if self.level != 3 or isinstance(folder, remote.RemoteBox):
            raise SandboxError(
                f"A box of level {self.level} ({layers.NAMES[self.level]}) has no sockets that lead to its opener.",
                hint="Level 3 has: install bubblewrap (apt-get install bubblewrap).",
            )
        try:
            return folder.listen(name), f"/code/{name}"
        except OSError as error:
            raise SandboxError(f"A box cannot have a socket: {error.strerror or error}.") from error

    def close(self) -> None:
        """Kill what runs and removes the box. May be called more than once, and from another thread than the run's."""
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
                log.warning("a box's folder could not be removed completely: %s", error.strerror)
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
            raise SandboxError("A command for a box is a sequence of words, at least one.", hint="Give Python as text.")
        if not self._busy.acquire(blocking=False):
            raise SandboxError("This box runs another program.", hint="Wait for it, or open a second box.")
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
        """Return a run that has its program: the interpreter that waits for one, or a new process."""
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
    """Run work in a new thread, so that no full pool delays it. When cancelled, waits until it has ended."""
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
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
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
        done.exception()  # marks it as retrieved: the caller was cancelled and cannot get it
        raise

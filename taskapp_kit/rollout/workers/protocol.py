"""Frames over a Unix socket, and the child's side of them: `serve_jobs` runs jobs that the front sends.

A frame is `[u32 json_bytes][u32 blob_bytes][JSON object][blob]`, big-endian. No pickle: a frame can say things, it
cannot make the reader run anything. The front's side is `child.py`. What is said, front to child:

    {"job": n, "run": frame, "cell": c, "exclusive": bool}      begin; the blob is the job's
    {"job": n, "stop": "timeout" | "cancelled"}                 end soon
    {"job": n, "reply": frame}                                  to the job's `ask`
    {"job": n, "hold": bool}                                    tell no more until released: the listener is slow

and child to front: `{"ready": threads}` or `{"failed": sentence}` once, then `{"job": n, KIND: frame}` with KIND one of
`tell`, `ask`, and, once and last, `done` or `raised`. End of file means that the other side is gone.

Where a job stands in a step is told without a frame: memory shared with the front has a cell for each thread, which
holds when the step under way began (monotonic nanoseconds, 0 between steps). Telling costs a tenth of a microsecond,
and the front sees a step that holds the interpreter's lock for ever, from which no frame could come.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import mmap
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal

import orjson

StopReason = Literal["timeout", "cancelled"]
Frame = dict[str, Any]

FRAME_BYTES = 256 * 1024 * 1024
"""The largest frame, JSON and blob together. A larger one is refused where it is made; a child that sends it dies."""
MOST_THREADS = 512
"""Cells in the memory shared with the front: so many jobs run in one child at once."""
CELL_BYTES = 8
READ_BYTES = 64 * 1024

_HEADER = struct.Struct(">II")
_LENIENT = 0x8000_0000
"""Set in json_bytes: written and read by the standard library, which has integers of any size and lone surrogates."""
_BATCH_BYTES = 32 * 1024
_BATCH_SECONDS = 0.005
_LAST_SECONDS = 1.0
"""How long jobs may take to end once the front is gone."""


class BadFrame(ValueError):
    """Bytes that are no frame, or a frame beyond FRAME_BYTES."""


def encode(message: Frame, blob: bytes = b"") -> list[bytes]:
    """A frame as pieces to be sent one after the other.

    Non-finite numbers become null and tuples lists: check before, if it matters. Raises BadFrame when the frame is too
    large, TypeError or ValueError for what JSON cannot say.
    """
    flag = 0
    try:
        text = orjson.dumps(message)
    except orjson.JSONEncodeError:
        text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        flag = _LENIENT
    if len(text) + len(blob) > FRAME_BYTES:
        raise BadFrame(f"a frame of {len(text) + len(blob)} bytes is more than the {FRAME_BYTES} that a frame may have")
    head = _HEADER.pack(len(text) | flag, len(blob)) + text
    return [head, blob] if blob else [head]


class PipeReader:
    """Bytes in, frames out. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._needed = 0

    @property
    def wants(self) -> int:
        """How many bytes to read next: more than usual in the middle of a large frame."""
        return min(max(self._needed - len(self._held), READ_BYTES), 1024 * 1024)

    def feed(self, chunk: bytes) -> list[tuple[Frame, bytes, int]]:
        """The frames that `chunk` completes, in order: message, blob, bytes of both. Raises BadFrame."""
        if not self._held:
            frames, used = self._parse(chunk, len(chunk))
            if used < len(chunk):
                self._held += chunk[used:] if used else chunk
            return frames
        self._held += chunk
        if len(self._held) < self._needed:
            return []
        with memoryview(self._held) as view:
            frames, used = self._parse(view, len(view))
        del self._held[:used]
        return frames

    def _parse(self, data: bytes | memoryview, size: int) -> tuple[list[tuple[Frame, bytes, int]], int]:
        frames: list[tuple[Frame, bytes, int]] = []
        used = 0
        while size - used >= _HEADER.size:
            text_bytes, blob_bytes = _HEADER.unpack_from(data, used)
            lenient = text_bytes & _LENIENT
            text_bytes &= ~_LENIENT
            if text_bytes + blob_bytes > FRAME_BYTES:
                raise BadFrame(
                    f"a frame of {text_bytes + blob_bytes} bytes is announced, at most {FRAME_BYTES} may come"
                )
            start = used + _HEADER.size
            middle = start + text_bytes
            end = middle + blob_bytes
            if end > size:
                self._needed = end - used
                break
            text = data[start:middle]
            try:
                message = json.loads(bytes(text)) if lenient else orjson.loads(text)
            except ValueError as error:
                raise BadFrame(f"a frame's JSON cannot be read: {error}") from None
            if type(message) is not dict:
                raise BadFrame(f"a frame's JSON is a {type(message).__name__}, expected an object")
            frames.append((message, bytes(data[middle:end]) if blob_bytes else b"", end - used))
            used = end
        else:
            self._needed = _HEADER.size
        return frames, used


# -- the child's side -------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """Raised by `WorkerJob.ask` when the front wants the job to end. `reason` is "timeout" or "cancelled"."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerJob:
    """A job in the child, as its handler sees it. Its handler runs in one thread; any thread may tell.

    frame, blob: what `Processes.run` was given. exclusive: nobody else's job runs in this process meanwhile.
    """

    __slots__ = ("_cell", "_cells", "_gate", "_id", "_out", "_replies", "_stop", "blob", "exclusive", "frame")

    def __init__(self, message: Frame, blob: bytes, out: _FrameWriter, cells: memoryview) -> None:
        self.frame: Frame = message["run"]
        self.blob = blob
        self.exclusive: bool = message["exclusive"]
        self._id: int = message["job"]
        self._cell: int = message["cell"]
        self._cells = cells
        self._out = out
        self._stop: StopReason | None = None
        self._replies: queue.SimpleQueue[Frame | None] | None = None
        self._gate: threading.Event | None = None

    @property
    def stopped(self) -> StopReason | None:
        """Why the job should end now; None while it may go on."""
        return self._stop

    def tell(self, frame: Frame, blob: bytes = b"") -> None:
        """Sends a frame to the front's `tell`. Blocks while the front is slow.

        Frames of an exclusive job leave at once, so that none is lost when the next step crashes; others may wait
        5 ms for company. Raises BadFrame, TypeError or ValueError for what no frame can hold.
        """
        gate = self._gate
        if gate is not None:
            gate.wait()
        self._out.put(encode({"job": self._id, "tell": frame}, blob), urgent=self.exclusive)

    def ask(self, frame: Frame, blob: bytes = b"") -> Frame:
        """Sends a frame to the front's `tell` and waits for what it gives back. One thread at a time.

        Raises Stopped when the job should end instead, and as `tell` does.
        """
        replies = self._replies
        if replies is None:
            replies = self._replies = queue.SimpleQueue()
        if self._stop is None:  # looked at after the queue is there: a stop from now on finds it
            self._out.put(encode({"job": self._id, "ask": frame}, blob), urgent=True)
            reply = replies.get()
            if reply is not None:
                return reply
        assert self._stop is not None
        raise Stopped(self._stop)

    def step_begins(self) -> None:
        """From here the front counts `step_seconds`: call it right before code that may hang."""
        self._cells[self._cell] = time.monotonic_ns()

    def step_ends(self) -> None:
        """The code came back."""
        self._cells[self._cell] = 0

    def _take(self, message: Frame) -> None:
        """In the reader's thread: something the front says to a running job."""
        if "reply" in message:
            if self._replies is not None:
                self._replies.put(message["reply"])
        elif "stop" in message:
            self._stop = message["stop"]
            if self._gate is not None:
                self._gate.set()
            if self._replies is not None:
                self._replies.put(None)
        elif message.get("hold") and self._stop is None:
            self._gate = self._gate or threading.Event()
        elif self._gate is not None:
            self._gate.set()
            self._gate = None


Handler = Callable[[WorkerJob], tuple[Frame, bytes]]


class _FrameWriter:
    """The child's writing end: frames of all threads, whole and in order; small ones in company."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._sent_at = 0.0
        self._due: queue.SimpleQueue[None] | None = None
        self._promised = False

    def put(self, pieces: list[bytes], *, urgent: bool) -> None:
        with self._lock:
            self._pieces += pieces
            self._bytes += len(pieces[0]) if len(pieces) == 1 else len(pieces[0]) + len(pieces[1])
            now = time.monotonic()
            if urgent or self._bytes >= _BATCH_BYTES or now - self._sent_at >= _BATCH_SECONDS:
                self._sent_at = now
                self._flush()
            elif not self._promised:
                self._promised = True
                if self._due is None:
                    self._due = queue.SimpleQueue()
                    threading.Thread(target=self._flush_later, args=(self._due,), name="frames", daemon=True).start()
                self._due.put(None)

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        small, self._bytes = self._bytes < 4 * _BATCH_BYTES, 0
        try:
            for piece in (b"".join(pieces),) if small else pieces:
                self._sock.sendall(piece)
        except OSError as error:
            # The front is gone: the reader sees it too, and ends the process. Otherwise somebody here has closed files
            # that are not his: nothing can be told any more, and the front must learn at least that.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                os._exit(1)

    def _flush_later(self, due: queue.SimpleQueue[None]) -> None:
        while True:
            due.get()
            time.sleep(_BATCH_SECONDS)
            with self._lock:
                self._promised = False
                if self._pieces:
                    self._flush()


def serve_jobs(fd: int, handler: Handler, ready: Callable[[], None], threads: int = 64) -> None:
    """Runs the front's jobs until the front closes the socket `fd`; then returns, so that the program can end.

    ready: loads what every job needs (the app); when it raises, its sentence goes to the front and SystemExit ends the
    process. Import what is heavy in there: before this call the process can outlive a front that is killed. handler:
    one job, in a thread of its own that is used again; gives the last frame and its blob; what it raises goes to the
    front as `raised`. threads: jobs at once. Call it in the main thread.
    """
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    _die_with_the_front(sock)
    # Ctrl-C and a service manager's SIGTERM reach every process; it is the front who decides what still gets done.
    # A function, not SIG_IGN: programs that an environment starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    _, (shared,), _, _ = socket.recv_fds(sock, 1, 1)
    cells = memoryview(mmap.mmap(shared, MOST_THREADS * CELL_BYTES)).cast("q")
    os.close(shared)
    out = _FrameWriter(sock)
    try:
        ready()
    except BaseException as error:
        traceback.print_exc()
        out.put(encode({"failed": _sentence(error)}), urgent=True)
        raise SystemExit(1) from None
    out.put(encode({"ready": min(threads, MOST_THREADS)}), urgent=True)
    _Dispatcher(sock, out, handler, cells).serve()


class _Dispatcher:
    """Takes what the front sends and hands it to threads."""

    def __init__(self, sock: socket.socket, out: _FrameWriter, handler: Handler, cells: memoryview) -> None:
        self._sock = sock
        self._out = out
        self._handler = handler
        self._cells = cells
        self._jobs: dict[int, WorkerJob] = {}
        self._inbox: queue.SimpleQueue[WorkerJob] = queue.SimpleQueue()
        self._threads = 0

    def serve(self) -> None:
        reader = PipeReader()
        while chunk := self._read(reader.wants):
            for message, blob, _ in reader.feed(chunk):
                number = message["job"]
                if "run" in message:
                    job = self._jobs[number] = WorkerJob(message, blob, self._out, self._cells)
                    if len(self._jobs) > self._threads:
                        self._threads += 1
                        threading.Thread(target=self._work, name=f"job-{self._threads}", daemon=True).start()
                    self._inbox.put(job)
                elif (running := self._jobs.get(number)) is not None:
                    running._take(message)
        self._leave()

    def _read(self, size: int) -> bytes:
        try:
            return self._sock.recv(size)
        except ConnectionError:
            return b""

    def _work(self) -> None:
        while True:
            job = self._inbox.get()
            number, cell = job._id, job._cell
            pieces: list[bytes]
            try:
                frame, blob = self._handler(job)
                pieces = encode({"job": number, "done": frame}, blob)
            except BaseException as error:
                pieces = encode({"job": number, "raised": _raised(error)})
            del job  # an idle thread keeps no rollout alive
            self._cells[cell] = 0
            del self._jobs[number]  # before the front hears of it: its next job finds this thread free
            self._out.put(pieces, urgent=True)

    def _leave(self) -> None:
        """The front is gone or wants no more: jobs may close what they opened, for a moment."""
        for job in list(self._jobs.values()):
            job._take({"stop": "cancelled"})
        until = time.monotonic() + _LAST_SECONDS
        while self._jobs and time.monotonic() < until:
            time.sleep(0.01)
        if self._jobs:  # a stuck thread would keep the interpreter from ending
            sys.stderr.flush()
            os._exit(1)


def _die_with_the_front(sock: socket.socket) -> None:
    """On Linux the kernel kills this process when the front dies, even while C code holds the interpreter's lock."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    poll = select.poll()
    poll.register(sock, 0)
    if poll.poll(0):  # it had died before
        os._exit(1)


def _raised(error: BaseException) -> Frame:
    return {
        "error": type(error).__name__,
        "message": _sentence(error)[:2000],
        "traceback": "".join(traceback.format_exception(error))[-16_000:],
    }


def _sentence(error: BaseException) -> str:
    """What the exception says; its type when it says nothing. Author's exceptions may fail even at that."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return text or type(error).__name__

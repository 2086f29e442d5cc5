"""Frames over a Unix socket, and the child's side of the protocol: `serve_jobs` runs the jobs that the parent sends.

A frame is `[u32 json_bytes][u32 blob_bytes][JSON object][blob]`, big-endian. Frames do not use pickle, so a frame cannot make
its reader run code. `child.py` implements the parent's side. Frames from the parent to the child:

    {"job": n, "run": frame, "cell": c, "exclusive": bool}      begin; the blob belongs to the job
    {"job": n, "stop": "timeout" | "cancelled"}                 end soon
    {"job": n, "reply": frame}                                  to the job's `ask`
    {"job": n, "hold": bool}                                    pause `report` until released: the parent's handler is slow

The child first sends `{"ready": threads}` or `{"failed": message}`, then frames `{"job": n, KIND: frame}`. KIND is `report` or
`ask`, and `done` or `raised` in the last frame of a job. End of file means that the other side has ended.

Steps are reported without frames. Each thread has a cell in memory that is shared with the parent. The cell contains the
time at which the current step began, in monotonic nanoseconds, or 0 between steps. Writing it takes a tenth of a
microsecond, and the parent also detects a step that never releases the GIL and therefore could not send a frame.
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
"""The maximum size of a frame with its blob. The sender rejects a larger frame. A child that sends one is killed."""
MAX_THREADS = 512
"""The number of cells in the memory shared with the parent, and so the maximum number of jobs in one child."""
JOBS_AT_ONCE = 64
"""The default number of jobs that run at once in one child."""
CELL_BYTES = 8
READ_BYTES = 64 * 1024

_HEADER = struct.Struct(">II")
_LENIENT = 0x8000_0000
"""A bit in json_bytes: the standard library encoded the JSON, because it allows large integers and lone surrogates."""
_BATCH_BYTES = 32 * 1024
_BATCH_SECONDS = 0.005
LAST_SECONDS = 1.0
"""How long jobs may take to end after the parent has died."""


class BadFrame(ValueError):
    """The bytes are not a valid frame, or the frame is larger than FRAME_BYTES."""


def encode(message: Frame, blob: bytes = b"") -> list[bytes]:
    """Encode a frame as a list of byte strings, which are sent in order.

    Non-finite numbers become null, and tuples become lists. Raises BadFrame if the frame is too large, and TypeError or
    ValueError for values that JSON cannot represent.
    """
    flag = 0
    try:
        # JSON and bytes, never pickle, so that a child cannot make the parent run code
        text = orjson.dumps(message)
    except orjson.JSONEncodeError:
        text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        flag = _LENIENT
    if len(text) + len(blob) > FRAME_BYTES:
        raise BadFrame(f"a frame of {len(text) + len(blob)} bytes exceeds the limit of {FRAME_BYTES} bytes")
    head = _HEADER.pack(len(text) | flag, len(blob)) + text
    return [head, blob] if blob else [head]


class PipeReader:
    """Parses bytes into frames. It buffers at most one incomplete frame."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._needed = 0

    @property
    def wants(self) -> int:
        """The number of bytes to read next, which is larger in the middle of a large frame."""
        return min(max(self._needed - len(self._held), READ_BYTES), 1024 * 1024)

    def feed(self, chunk: bytes) -> list[tuple[Frame, bytes, int]]:
        """Return the frames that `chunk` completes as (message, blob, total bytes). Raises BadFrame for invalid bytes."""
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
            # before allocating memory, because a child that author's code broke may announce gigabytes
            if text_bytes + blob_bytes > FRAME_BYTES:
                raise BadFrame(
                    f"the announced frame of {text_bytes + blob_bytes} bytes exceeds the limit of {FRAME_BYTES} bytes"
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
                raise BadFrame(f"the JSON in a frame is invalid: {error}") from None
            if type(message) is not dict:
                raise BadFrame(f"the JSON in a frame is a {type(message).__name__}, expected an object")
            frames.append((message, bytes(data[middle:end]) if blob_bytes else b"", end - used))
            used = end
        else:
            self._needed = _HEADER.size
        return frames, used


# -- the child's side -------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The parent has asked the job to end. Raised by `WorkerJob.ask`. `reason` is "timeout" or "cancelled"."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerJob:
    """A job in the child, for the job's handler. The handler runs in one thread. Any thread may call `report`.

    frame, blob: the arguments of `ProcessPool.run`. exclusive: whether this is the only job in the process.
    """

    __slots__ = (
        "_cell",
        "_cells",
        "_gate",
        "_id",
        "_on_stop",
        "_out",
        "_replies",
        "_stop",
        "blob",
        "exclusive",
        "frame",
    )

    def __init__(self, message: Frame, blob: bytes, out: _FrameWriter, cells: memoryview) -> None:
        self.frame: Frame = message["run"]
        self.blob = blob
        self.exclusive: bool = message["exclusive"]
        self._id: int = message["job"]
        self._cell: int = message["cell"]
        self._cells = cells
        self._out = out
        self._stop: StopReason | None = None
        self._on_stop: Callable[[StopReason], None] | None = None
        self._replies: queue.SimpleQueue[Frame | None] | None = None
        self._gate: threading.Event | None = None

    @property
    def stopped(self) -> StopReason | None:
        """Why the job should end now, or None while it may continue."""
        return self._stop

    def on_stop(self, call: Callable[[StopReason], None]) -> None:
        """Run `call` in another thread when the job should end, or now if it should already end. `call` must not block."""
        self._on_stop = call
        if self._stop is not None:
            call(self._stop)

    def report(self, frame: Frame, blob: bytes = b"") -> None:
        """Send a frame to the parent's `on_frame`. Blocks the calling thread while the parent is slow.

        Frames of an exclusive job are sent immediately, so that none is lost if the next step crashes. Other frames may wait
        up to 5 ms to be sent together. Raises BadFrame if the frame is too large, and TypeError or ValueError if it is not JSON.
        """
        gate = self._gate
        if gate is not None:
            gate.wait()
        self._out.put(encode({"job": self._id, "report": frame}, blob), urgent=self.exclusive)

    def ask(self, frame: Frame, blob: bytes = b"") -> Frame:
        """Send a frame to the parent's `on_frame` and block until the reply. Only one thread at a time may call this.

        Raises Stopped if the job should end, and the errors of `report`.
        """
        replies = self._replies
        if replies is None:
            replies = self._replies = queue.SimpleQueue()
        if self._stop is None:  # checked after the queue exists, so that a later stop finds the queue
            self._out.put(encode({"job": self._id, "ask": frame}, blob), urgent=True)
            reply = replies.get()
            if reply is not None:
                return reply
        assert self._stop is not None
        raise Stopped(self._stop)

    def step_begins(self) -> None:
        """Start the parent's timer for `step_seconds`. Call this right before code that may hang."""
        # Shared memory, not a frame: the parent can read it even while C code holds the GIL, and writing it needs
        # no system call.
        self._cells[self._cell] = time.monotonic_ns()

    def step_ends(self) -> None:
        """Stop the timer that `step_begins` started."""
        self._cells[self._cell] = 0

    def _take(self, message: Frame) -> None:
        """Handle a frame for a running job. Called in the reader's thread."""
        if "reply" in message:
            if self._replies is not None:
                self._replies.put(message["reply"])
        elif "stop" in message:
            reason: StopReason = message["stop"]
            self._stop = reason
            if self._on_stop is not None:
                self._on_stop(reason)
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
    """Sends the frames of all threads of the child, whole and in order. Small frames are sent together."""

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
            # one timer for all threads, so that a waiting frame does not depend on the next frame
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
            # If the parent has died, the reader notices and ends the process. Otherwise code in this process has
            # closed a file that it does not own: nothing can be sent any more, and the parent must at least notice
            # that.
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


def serve_jobs(fd: int, load: Callable[[], Handler], threads: int = JOBS_AT_ONCE) -> None:
    """Run the parent's jobs until the parent closes the socket, then return. Call this in the main thread.

    Args:
        fd: The number of the socket.
        load: Loads the data for all jobs (the app) and returns the handler of a job. If it raises, the message is sent to
            the parent, and SystemExit ends the process. Slow imports belong in this function, because until `serve_jobs` is
            called, the process can outlive a parent that is killed. The handler runs in a reused thread and returns the last
            frame and its blob. The handler's exceptions are sent to the parent as `raised`.
        threads: How many jobs run at once.
    """
    sock, cells = parent_socket(fd)
    out = _FrameWriter(sock)
    try:
        handler = load()
    except BaseException as error:
        traceback.print_exc()
        out.put(encode({"failed": _sentence(error)}), urgent=True)
        raise SystemExit(1) from None
    out.put(encode({"ready": min(threads, MAX_THREADS)}), urgent=True)
    _Dispatcher(sock, out, handler, cells).serve()


def parent_socket(fd: int) -> tuple[socket.socket, memoryview]:
    """Return the socket to the parent and the shared cells of the steps. From this call on, this process dies with the parent."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    _die_with_parent(sock)
    # Ctrl-C and a service manager's SIGTERM reach every process, but the parent decides which jobs may still end.
    # a function, because programs that an environment starts would inherit SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # so that a crash in C code writes the Python stack to the server's log
    faulthandler.enable()
    _, (shared,), _, _ = socket.recv_fds(sock, 1, 1)
    cells = memoryview(mmap.mmap(shared, MAX_THREADS * CELL_BYTES)).cast("q")
    os.close(shared)
    return sock, cells


class _Dispatcher:
    """Receives the parent's frames and dispatches them to threads."""

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
                    # threads are created on demand, because most workers never run as many jobs as they may
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
            del job  # an idle thread must not keep a rollout in memory
            self._cells[cell] = 0
            del self._jobs[number]  # before the parent is notified, so that the next job finds this thread free
            self._out.put(pieces, urgent=True)

    def _leave(self) -> None:
        """Stop the jobs after the parent has died or closed the socket. The jobs have a short time for cleanup."""
        for job in list(self._jobs.values()):
            job._take({"stop": "cancelled"})
        until = time.monotonic() + LAST_SECONDS
        while self._jobs and time.monotonic() < until:
            time.sleep(0.01)
        if self._jobs:  # a stuck thread would prevent the interpreter from exiting
            sys.stderr.flush()
            os._exit(1)


def _die_with_parent(sock: socket.socket) -> None:
    """On Linux, let the kernel kill this process when the parent dies, even while C code holds the GIL."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    poll = select.poll()
    poll.register(sock, 0)
    if poll.poll(0):  # the parent died before this call
        os._exit(1)


def _raised(error: BaseException) -> Frame:
    return {
        "error": type(error).__name__,
        "message": _sentence(error)[:2000],
        "traceback": "".join(traceback.format_exception(error))[-16_000:],
    }


def _sentence(error: BaseException) -> str:
    """Return the exception's message, or its type if the message is empty or `__str__` fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return text or type(error).__name__

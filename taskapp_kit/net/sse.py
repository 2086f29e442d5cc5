"""Server-sent events, read from bytes as they arrive: frames of `event:`, `id:` and `data:` lines, a blank line after each."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_FRAME_BYTES = 4 * 1024 * 1024


class FrameTooLarge(ValueError):
    """A frame, or a line of one, is larger than this client keeps."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its name (`message` when it has none), its id, its data lines joined by line ends."""

    event: str
    data: str
    id: str = ""


@dataclass(slots=True)
class SseReader:
    """Bytes in, frames out. However the bytes are cut into pieces, the frames are the same."""

    max_bytes: int = MAX_FRAME_BYTES
    _rest: bytearray = field(default_factory=bytearray)
    _after_cr: bool = False
    _event: str = ""
    _id: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this piece completes. Raises FrameTooLarge."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the other half of a line end that was cut in two
        self._after_cr = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first  # in place: a long line may come in very small pieces
        if len(self._rest) > self.max_bytes:
            raise FrameTooLarge(f"a line of an event stream is longer than {self.max_bytes} bytes")
        if not others:
            return []
        lines = [bytes(self._rest), *others[:-1]]
        self._rest = bytearray(others[-1])
        found = (self._line(line) for line in lines)
        return [frame for frame in found if frame is not None]

    def _line(self, line: bytes) -> Frame | None:
        if not line:
            frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
            self._event, self._data, self._size = "", [], 0
            return frame
        self._size += len(line)
        if self._size > self.max_bytes:
            raise FrameTooLarge(f"an event is larger than {self.max_bytes} bytes")
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        return None

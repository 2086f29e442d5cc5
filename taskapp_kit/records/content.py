"""Observations (a string, a JSON object, or a list of text and image blocks), and the hash of JSON values.

`plain()` copies an author's value and makes it recordable: it can be represented as JSON, and all numbers are finite.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import orjson

Json = Any
"""None, bool, int, finite float, str, or nested lists and dicts with str keys. A precise type would be too slow to check."""

MAX_DEPTH = 64
"""The maximum nesting depth of an observation, an argument or a request body."""
INT_LIMIT = 2**63
"""Integers in JSON are in [-2⁶³, 2⁶³), because other JSON parsers lose digits of larger integers."""


def read_exactly(text: str | bytes) -> Json:
    """Parse JSON without losing digits.

    Raises ValueError if the text is not JSON, or if a float cannot represent one of its numbers (more than 17 digits, or an
    extreme exponent). Integers may have any size. `plain` rejects integers that cannot be recorded.
    """
    try:
        return json.loads(text, parse_float=_exact_float, parse_constant=_exact_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _exact_float(text: str) -> float:
    value, digits = float(text), text.lower().partition("e")[0].replace(".", "").strip("-0")
    if not math.isfinite(value) or ((len(digits) > 17 or value == 0) and Decimal(text) != Decimal(value)):
        raise ValueError(f"the number {text[:40]} cannot be held without a loss; write it in quotes")
    return value


class NotJson(ValueError):
    """A value cannot be recorded. `path` is the location of the problem, such as `observation.board[3]`."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path} {found}")
        self.path = path
        self.found = found


class Text:
    """A text block in a list observation.

    Args:
        text: The text.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Text({self.text!r})"


class Image:
    """An image in a list observation. The image is encoded when `png` or `hash` is first read.

    Args:
        data: PNG bytes, or an array of shape (H, W, 3) and dtype uint8, which is copied.

    Raises:
        ValueError: The data is neither PNG bytes nor an array with this shape and dtype.
    """

    __slots__ = ("_array", "_hash", "_pixels", "_png", "height", "width")

    def __init__(self, data: Any) -> None:
        self._hash: str | None = None
        self._pixels: str | None = None
        self._png: bytes | None = None
        self._array: Any = None
        if isinstance(data, (bytes, bytearray)):
            self._png = bytes(data)
            if self._png[:8] != b"\x89PNG\r\n\x1a\n" or len(self._png) < 24:
                raise ValueError("Image: the bytes are not a PNG. Pass PNG bytes or an HxWx3 uint8 array.")
            self.width, self.height = struct.unpack(">II", self._png[16:24])
            return
        shape = getattr(data, "shape", None)
        if shape is None or len(shape) != 3 or shape[2] != 3 or str(getattr(data, "dtype", "")) != "uint8":
            raise ValueError(
                f"Image: expected PNG bytes or an array of shape (H, W, 3) and dtype uint8, got "
                f"{type(data).__name__} with shape {shape} and dtype {getattr(data, 'dtype', None)}."
            )
        self._array = data.copy()  # copied, because the environment may draw into its buffer again
        self.height, self.width = int(shape[0]), int(shape[1])

    @classmethod
    def recorded(cls, png: bytes, pixels: str | None) -> Image:
        """Restore a recorded image from its PNG bytes and its `pixels`. Raises ValueError if the bytes are not a PNG."""
        picture = cls(png)
        picture._pixels = pixels
        return picture

    @property
    def pixels(self) -> str | None:
        """Return the SHA-256 (hex) of an array's width, height and raw RGB, or None for an image from PNG bytes."""
        if self._pixels is None and self._array is not None:
            self._pixels = _rgb_hash(self.width, self.height, self._array.tobytes())
        return self._pixels

    @property
    def png(self) -> bytes:
        """Return the image as PNG bytes, encoded on first use."""
        if self._png is None:
            raw = self._array.tobytes()
            # computed while the array exists, because PNG bytes depend on the machine's zlib, and pixels do not
            if self._pixels is None:
                self._pixels = _rgb_hash(self.width, self.height, raw)
            stride = self.width * 3
            rows = b"".join(b"\x00" + raw[y * stride : (y + 1) * stride] for y in range(self.height))
            header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
            chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
            self._png = b"\x89PNG\r\n\x1a\n" + b"".join(
                struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
                for name, body in chunks
            )
            self._array = None
        return self._png

    @property
    def hash(self) -> str:
        """Return the SHA-256 (hex) of the PNG bytes, which is the image's name in a store."""
        if self._hash is None:
            self._hash = hashlib.sha256(self.png).hexdigest()
        return self._hash

    def data_url(self) -> str:
        """Return the image as a `data:` URL."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()

    def __repr__(self) -> str:
        return f"Image({self.width}x{self.height})"


def _rgb_hash(width: int, height: int, raw: bytes) -> str:
    found = hashlib.sha256(b"rgb %d %d\n" % (width, height))
    found.update(raw)
    return found.hexdigest()


Content = Any
"""A recorded observation: None, str, JSON dict, or a list of str (text blocks) and Image."""


def plain(value: Any, path: str, depth: int = 0) -> Json:
    """Copy an author's value as plain JSON. numpy and pydantic values are converted to lists, numbers and dicts.

    Raises NotJson, with the path inside the value, if a part cannot be represented as JSON, is not finite, is nested too
    deeply or is too large.
    """
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _utf8(value, path)
        return value
    if kind is int:
        if not -INT_LIMIT <= value < INT_LIMIT:
            raise NotJson(path, "is an integer beyond 64 bits")
        return value
    if kind is float:
        if value - value != 0.0:  # true for NaN and both infinities, without a function call
            raise NotJson(path, f"is {value}, which is not a finite number")
        return value
    if value is None or kind is bool:
        return value
    if depth >= MAX_DEPTH:
        raise NotJson(path, f"is nested more than {MAX_DEPTH} deep (does it hold itself?)")
    if kind is dict or isinstance(value, Mapping):  # `is dict` first, because the abstract class is slower
        return _members(value, path, depth)
    if isinstance(value, (list, tuple)):
        result: list[Json] = []
        for index, item in enumerate(value):
            kind = type(item)
            if (
                (kind is int and -INT_LIMIT <= item < INT_LIMIT)
                or (kind is str and item.isascii())
                or (kind is float and item - item == 0.0)
                or kind is bool
                or item is None
            ):
                result.append(item)  # the common case, without building a path string
            else:
                result.append(plain(item, f"{path}[{index}]", depth + 1))
        return result
    return _foreign(value, path, depth)


def _members(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, item in value.items():
        if type(key) is not str or not key.isascii():
            key = _key(key, path)
        if key in result:
            raise NotJson(path, f"has two keys that are both {key!r} in JSON")
        kind = type(item)
        if (
            (kind is int and -INT_LIMIT <= item < INT_LIMIT)
            or (kind is str and item.isascii())
            or (kind is float and item - item == 0.0)
            or kind is bool
            or item is None
        ):
            result[key] = item
        else:
            result[key] = plain(item, f"{path}.{key}", depth + 1)
    return result


def has_surrogate(text: str) -> bool:
    """Return whether the text contains a lone surrogate, which UTF-8 and JSON cannot represent."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def without_surrogates(text: str) -> str:
    """Return the text with every lone surrogate replaced by `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _utf8(value: str, path: str) -> None:
    if has_surrogate(value):
        raise NotJson(path, "holds a lone surrogate, which is not valid text")


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):  # str subclasses and str enums become plain str
        key = str.__str__(key)
        _utf8(key, f"{path} (a key)")
        return str(key)
    if isinstance(key, int):
        return str(int(key)) if not isinstance(key, bool) else "true" if key else "false"
    raise NotJson(path, f"has the key {key!r} of type {type(key).__name__}; keys must be str")


def _foreign(value: Any, path: str, depth: int) -> Json:
    if isinstance(value, str):  # str subclasses and str enums
        return plain(str.__str__(value), path, depth)
    if isinstance(value, type):
        raise NotJson(path, f"is the class {value.__qualname__} itself, which is not JSON (did you forget `()`?)")
    if hasattr(value, "model_dump"):
        try:
            dumped = value.model_dump(mode="json")
        except ValueError as error:  # pydantic's serialization errors are ValueErrors
            raise NotJson(path, f"is a {type(value).__name__} that pydantic cannot serialize: {error}") from None
        return plain(dumped, path, depth)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # numpy arrays and scalars
        return plain(value.tolist(), path, depth)
    if hasattr(value, "__dataclass_fields__"):
        return plain({name: getattr(value, name) for name in value.__dataclass_fields__}, path, depth)
    if hasattr(type(value), "__members__"):  # Enum
        return plain(value.value, path, depth)
    if isinstance(value, (int, float)) and not isinstance(value, bool):  # subclasses of numbers
        return plain(int(value) if isinstance(value, int) else float(value), path, depth)
    named = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise NotJson(path, f"is of type {named}, which cannot be represented as JSON")


def as_object(value: Any) -> dict[str, Any]:
    """Convert a read-only mapping to a dict, for use as a serializer's hook. Raises TypeError for any other type."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be encoded as JSON")


def content(value: Any) -> Content:
    """Convert an author's observation to recorded content. Raises NotJson if it is not an observation."""
    kind = type(value)
    if kind is str or kind is dict or value is None:
        return plain(value, "observation")
    if isinstance(value, Text):
        return plain(value.text, "observation")
    if isinstance(value, Image):
        return [value]
    if isinstance(value, (list, tuple)) and any(isinstance(block, (Text, Image)) for block in value):
        return [_block(block, index) for index, block in enumerate(value)]
    result = plain(value, "observation")
    if isinstance(result, (str, dict)):
        return result
    raise NotJson(
        "observation",
        f"is a {type(value).__name__}; an observation must be a str, a dict, a pydantic model, or a list of Text and Image "
        '(put other lists and numbers into a dict: {"board": …})',
    )


def _block(block: Any, index: int) -> str | Image:
    if isinstance(block, Image):
        return block
    if isinstance(block, Text):
        return str(plain(block.text, f"observation[{index}].text"))
    if isinstance(block, str):
        return str(plain(block, f"observation[{index}]"))
    raise NotJson(f"observation[{index}]", f"is a {type(block).__name__}; a list may only contain Text and Image")


def images(recorded: Content) -> Iterator[Image]:
    """Return the images in a recorded observation."""
    if type(recorded) is list:
        for block in recorded:
            if isinstance(block, Image):
                yield block


def text_of(recorded: Content) -> str:
    """Return a recorded observation as a string: dicts are written as JSON, and images are omitted."""
    if isinstance(recorded, str):
        return recorded
    if recorded is None:
        return ""
    if isinstance(recorded, list):
        return "\n".join(block for block in recorded if isinstance(block, str))
    return json.dumps(recorded, ensure_ascii=False, separators=(", ", ": "))


def without_images(recorded: Content) -> Json:
    """Return the observation without images, for the digest. A list with one text block becomes that block's string."""
    if type(recorded) is list:
        texts = [block for block in recorded if isinstance(block, str)]
        return texts[0] if len(texts) == 1 else texts
    return recorded


def json_hash(value: Json) -> str:
    """Return the SHA-256 (hex) of the value's canonical JSON."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()

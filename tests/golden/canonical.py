"""What a rollout left, as texts that are equal wherever the same happened.

The bytes stay as they are (order of members, spelling of numbers), but for what is listed here by name; anything else
that differs between two runs is a difference.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

KINDS = ("digest", "answer", "row", "events", "model")
"""digest: both digests. answer: status, headers and body of the HTTP answer. row: the row of the store, its ticket, the
row of `GET /rollouts` and the answer of `GET /rollouts/{id}?events=1`. events: the events in the store, from beginning to
end. model: every request that the model got, in order."""

TIMES = ("seconds", "created_at", "lease_until", "settled_at")
"""Members of JSON, and columns, whose number is a time."""
TIMING = ("environment", "policy", "scoring", "framework", "total")
"""The members of `timing`; their names are compared, their numbers are not."""
VERSIONS = ("git", "kit", "kit_version")
"""Members and columns that another release or checkout has otherwise."""
IDS = ("rollout_id", "session_id", "error_id", "id")
"""Members whose value is random where it is 32 or (of errors) 12 hex digits."""
IDEMPOTENCY_TABLE = "idempotency_keys"
"""The table of the store with a rollout's idempotency record."""
RENAMED = {"lease_owner": "holder"}
"""Columns of the store that had another name when the golden answers were recorded, which they keep there."""
COLUMNS = {
    "rollout_id": "ID",
    "created_at": "TIME",
    "seconds": "TIME",
    "kit_version": "VERSION",
    "holder": "HOLDER",
    "process": "PROCESS",
    "lease_until": "TIME",
    "settled_at": "TIME",
}
"""Columns of the store that are not compared where they have a value, and what stands in their place."""
WITH_ADDRESS = {"fingerprint": "FINGERPRINT"}
"""The same, in rollouts whose request holds the model's address: its port enters the hash."""
MACHINE = ("sandbox_level",)
"""Members that say what this machine can do."""
HEADERS = ("date", "content-length", "server", "connection", "transfer-encoding", "keep-alive")
"""Headers of the HTTP answer that are not compared."""

_NUMBER = r"-?\d[\d.eE+-]*"
_TIMES = re.compile(rf'(?<!\\)"({"|".join(TIMES)})":( ?){_NUMBER}')
_MACHINE = re.compile(rf'(?<!\\)"({"|".join(MACHINE)})":{_NUMBER}')
_TIMING = re.compile(r'(?<!\\)"timing":\{[^{}]*\}')
_TIMING_LAST = re.compile(r'(,"timing":\{[^{}]*\})\}$')
_TIMING_NUMBER = re.compile(rf'"({"|".join(TIMING)})":{_NUMBER}')
_VERSIONS = re.compile(rf'(?<!\\)"({"|".join(VERSIONS)})":(?:null|"[^"]*")')
_IDS = re.compile(rf'(?<!\\)"({"|".join(IDS)})": ?"([0-9a-f]{{32}}|[0-9a-f]{{12}})"')
_NONCE = re.compile(r"(?<=[a-z]-)[0-9a-f]{32}(?![0-9a-f])")
"""Of a judge's boundaries, `<material-NONCE>`: 128 random bits."""
_DATA_URL = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
_MEMBER = re.compile(r'(?<=[\[{,])(?="(?:[^"\\]|\\.)*":|\{)')


class Words:
    """Texts that stand for addresses, paths and pictures in all of a server's rollouts."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = dict(sorted(words.items(), key=lambda item: -len(item[0])))
        self.pictures: dict[str, str] = {}
        """SHA-256 of a PNG to its name."""

    def learn(self, png: bytes) -> str:
        """The name of a picture: its size and pixels. PNG bytes differ between zlib's releases, their SHA-256 too."""
        sha256 = hashlib.sha256(png).hexdigest()
        if sha256 not in self.pictures:
            self.pictures[sha256] = _picture(png)
        return self.pictures[sha256]

    def text(self, text: str) -> str:
        """The text with everything replaced that this module lists."""
        for found in set(_IDS.findall(text)):
            text = text.replace(found[1], "ID")
        text = _DATA_URL.sub(lambda match: f"data:{self.learn(base64.b64decode(match[1]))}", text)
        if self.pictures and ("image" in text or "blob" in text):
            text = re.sub(r"[0-9a-f]{64}", lambda match: self.pictures.get(match[0], match[0]), text)
        for word, name in self.words.items():
            text = text.replace(word, name)
        text = _TIMING.sub(lambda match: _TIMING_NUMBER.sub(r'"\1":TIME', match[0]), text)
        text = _MACHINE.sub(r'"\1":MACHINE', _TIMES.sub(r'"\1":\2TIME', text))
        return _NONCE.sub("NONCE", _VERSIONS.sub(r'"\1":VERSION', text))


def _picture(png: bytes) -> str:
    """`PICTURE-width-height-hash`, the hash over its lines as they are before compression."""
    at, data, size = 8, b"", (0, 0)
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">II", chunk[:8])
        elif kind == b"IDAT":
            data += chunk
        at += length + 12
    return f"PICTURE-{size[0]}-{size[1]}-{hashlib.sha256(zlib.decompress(data)).hexdigest()[:16]}"


def answer(words: Words, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """An HTTP answer."""
    kept = sorted(f"{name.lower()}: {value}" for name, value in headers if name.lower() not in HEADERS)
    text = words.text("\n".join([str(status), *kept, "", body.decode()]))
    end = _TIMING_LAST.search(text)
    if end is not None:  # a worker wrote the answer, and the server put its timing at the end
        before, usage, after = text[: end.start()].rpartition(',"usage":')
        text = f"{before}{end[1]}{usage}{after}}}"
    return text


def row(words: Words, names: Iterable[str], values: Iterable[Any], *, with_address: bool) -> str:
    """A row of the store but for its events and answer, a column a line."""
    lines = []
    columns = {**COLUMNS, **WITH_ADDRESS} if with_address else COLUMNS
    for name, value in zip((RENAMED.get(name, name) for name in names), values, strict=True):
        if name in ("events", "events_encoding", "answer", "answer_encoding"):
            continue  # unpacked, they are compared themselves
        if value is not None and name in columns:
            value = columns[name]
        elif name == "timing":
            value = _TIMING_NUMBER.sub(r'"\1":TIME', value)
        elif name == "blob_hashes":
            value = sorted(words.text('{"image":' + one + "}") for one in re.findall(r'"[0-9a-f]{64}"', value))
        lines.append(f"{name}: {words.text(str(value))}")
    return "\n".join(lines)


def unpacked(encoding: str, data: bytes) -> bytes:
    """The events or the answer of a row: JSON, compressed where it is longer than 4096 bytes (docs/operate/store.md)."""
    text = zlib.decompress(data) if encoding == "zlib" else data
    if (encoding == "zlib") != (len(text) > 4096):
        raise AssertionError(f"{len(text)} bytes are stored as {encoding!r}")
    return text


def asked(words: Words, requests: Iterable[tuple[str, Any]]) -> str:
    """Requests to a model: path and body."""
    return words.text("\n".join(f"{path} {json.dumps(body, ensure_ascii=False)}" for path, body in requests))


def short_hash(text: str) -> str:
    """24 bits of SHA-256 in four characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:3]).decode()


def readable(text: str) -> str:
    """For a diff: each member of JSON on a line of its own."""
    return _MEMBER.sub("\n", text)

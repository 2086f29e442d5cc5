"""Where a key came out: everything that was written or answered, searched for every key in every form that it may have.

A search is given bytes or a folder. Files are also searched unpacked: each value of a SQLite database, what zlib, gzip,
zip or tar hold. A key is looked for whole, by its first and last six characters, and encoded: base64, hex, URL-quoted,
escaped as JSON, reversed, UTF-16, SHA-256.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

import numpy as np

PIECE = 6
"""No answer, log or file shows so many characters of a key's beginning or end."""
AROUND = 60
"""Bytes that are shown on each side of a hit."""
BLOCK = 1 << 23
MAX_DEPTH = 4
"""Packed things within packed things are opened so deep."""
_HEX = frozenset(b"0123456789abcdef")
_PACKED = (b"SQLite format 3\0", b"PK\x03\x04", b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x78\x5e")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: what it is, and its text. first, last: whether its first and last six letters say that it is this key."""

    name: str
    text: str
    first: bool = True
    last: bool = True

    def forms(self) -> dict[str, bytes]:
        """Name of a form to its bytes. Forms that another one is part of are left out."""
        text = self.text
        raw = text.encode()
        found = {"whole": raw}
        if self.first and len(text) > PIECE:
            found["first six"] = text[:PIECE].encode()
            found["first six, reversed"] = text[:PIECE][::-1].encode()
        if self.last and len(text) > PIECE:
            found["last six"] = text[-PIECE:].encode()
            found["last six, reversed"] = text[-PIECE:][::-1].encode()
        for shift in range(3):  # within a longer text it may begin at any of three places
            whole = base64.b64encode(b"\0" * shift + raw)
            core = whole[(0, 2, 3)[shift] : len(whole.rstrip(b"=")) - (1 if whole.endswith(b"=") else 0)]
            found[f"base64, {shift} bytes in"] = core
            found[f"url-safe base64, {shift} bytes in"] = core.replace(b"+", b"-").replace(b"/", b"_")
        digest = hashlib.sha256(raw)
        found |= {
            "reversed": text[::-1].encode(),
            "hex": raw.hex().encode(),
            "URL-quoted": quote(text, safe="").encode(),
            "URL-quoted as a form": quote_plus(text).encode(),
            "as JSON": json.dumps(text)[1:-1].encode(),
            "as JSON in JSON": json.dumps(json.dumps(text)[1:-1])[1:-1].encode(),
            "as Python": repr(text)[1:-1].encode(),
            "UTF-16": text.encode("utf-16-le"),
            "SHA-256": digest.hexdigest().encode(),
            "SHA-256, raw": digest.digest(),
        }
        kept: dict[str, bytes] = {}
        for name, form in sorted(found.items(), key=lambda item: len(item[1])):
            if not any(shorter in form for shorter in kept.values()):
                kept[name] = form
        return kept


@dataclass(frozen=True, slots=True)
class Hit:
    """A key came out: which, in what form, where, and what stands around it."""

    key: str
    form: str
    place: str
    around: bytes

    def __str__(self) -> str:
        return f"{self.key} ({self.form}) in {self.place}: {self.around!r}"


@dataclass
class Search:
    """Looks for keys, and counts what it looked at.

    allowed: a hit that it says yes to is none. Hits of the same key, form and place are one. excluded: files that were
    not looked at, with the reason.
    """

    keys: list[Key]
    allowed: Callable[[Hit], bool] = lambda hit: False
    hits: list[Hit] = field(default_factory=list)
    let_pass: list[Hit] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    places: int = 0
    files: int = 0
    databases: int = 0
    packed: int = 0
    searched_bytes: int = 0

    def __post_init__(self) -> None:
        self._needles = {form: (key, name) for key in self.keys for name, form in key.forms().items()}
        self._by_head: dict[bytes, list[bytes]] = {}
        for needle in self._needles:
            self._by_head.setdefault(needle[:PIECE], []).append(needle)
        self._pairs = np.zeros((PIECE // 2, 1 << 16), bool)
        """Which two bytes may stand in a needle's first, second and third place of two."""
        for head in self._by_head:
            self._pairs[range(PIECE // 2), np.frombuffer(head, "<u2")] = True

    def look(self, data: bytes, place: str) -> list[Hit]:
        """The hits in these bytes, as they are."""
        self.places += 1
        self.searched_bytes += len(data)
        found: dict[bytes, Hit] = {}
        passed: set[bytes] = set()
        for at in self._possible(data):
            for needle in self._by_head.get(data[at : at + PIECE], ()):
                if needle in found or not data.startswith(needle, at) or _chance(data, at, needle):
                    continue
                key, form = self._needles[needle]
                hit = Hit(key.name, form, place, data[max(0, at - AROUND) : at + len(needle) + AROUND])
                if not self.allowed(hit):
                    found[needle] = hit
                elif needle not in passed:
                    passed.add(needle)
                    self.let_pass.append(hit)
        self.hits += found.values()
        return list(found.values())

    def _possible(self, data: bytes) -> Iterator[int]:
        """Where a needle may begin. One pass over the bytes for all needles, since some runs leave gigabytes."""
        first, second, third = self._pairs
        for start in range(0, len(data) - PIECE + 1, BLOCK):
            block = np.frombuffer(data, np.uint8, min(BLOCK + PIECE - 1, len(data) - start), start).astype(np.uint16)
            pairs = block[:-1] | (block[1:] << 8)
            places = np.flatnonzero(first[pairs[: len(pairs) - 4]])
            places = places[second[pairs[places + 2]]]
            places = places[third[pairs[places + 4]]]
            yield from (start + int(place) for place in places)

    def unpack(self, data: bytes, place: str, depth: int = 0) -> None:
        """Looks at these bytes, and at what is packed in them."""
        self.look(data, place)
        if depth < MAX_DEPTH:
            for inner, name in _unpacked(data):
                self.packed += 1
                self.databases += data.startswith(_PACKED[0]) and name == "(rows)"
                self.unpack(inner, f"{place} > {name}", depth + 1)

    def folder(self, folder: Path, excluded: Callable[[Path], str | None] = lambda path: None) -> None:
        """Every file under the folder, and every file's name. excluded: the reason why a file is not looked at."""
        for path in sorted(folder.rglob("*")):
            self.look(path.name.encode("utf-8", "surrogateescape"), f"the name of {path.relative_to(folder)}")
            if path.is_symlink() or not path.is_file():
                continue
            reason = excluded(path)
            if reason is not None:
                self.excluded.append(f"{path.relative_to(folder)}: {reason}")
                continue
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # a journal of a database that is in use
            self.files += 1
            place = str(path.relative_to(folder))
            self.unpack(data, place)
            if data.startswith(_PACKED[0]) and path.with_name(path.name + "-wal").exists():
                self._with_journal(path, place)

    def _with_journal(self, path: Path, place: str) -> None:
        """A database whose last rows are in the journal beside it."""
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / path.name
            for suffix in ("", "-wal"):
                (copy.parent / (path.name + suffix)).write_bytes(path.with_name(path.name + suffix).read_bytes())
            for inner, name in _rows(copy):
                self.unpack(inner, f"{place} with its journal > {name}", 1)

    def told(self) -> str:
        """What was searched, in words."""
        return (
            f"{len(self.keys)} keys in {len(self._needles)} forms; {self.files} files, {self.databases} databases, "
            f"{self.packed} packed parts, {self.places} places, {self.searched_bytes / 1e6:.1f} MB; "
            f"{len(self.hits)} hits, {len(self.let_pass)} allowed, {len(self.excluded)} files left out"
        )


def _chance(data: bytes, at: int, needle: bytes) -> bool:
    """True when the needle is a short run of hex digits in a longer one: part of some other digest or id."""
    if len(needle) > PIECE or not _HEX.issuperset(needle):
        return False
    start, end = at, at + len(needle)
    while start > 0 and data[start - 1] in _HEX:
        start -= 1
    while end < len(data) and data[end] in _HEX:
        end += 1
    return end - start >= 12


def _unpacked(data: bytes) -> Iterator[tuple[bytes, str]]:
    if not data.startswith(_PACKED):
        if data[257:262] == b"ustar":
            yield from _tar(data)
        return
    if data.startswith(_PACKED[0]):
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "copy.db"
            copy.write_bytes(data)
            yield from _rows(copy)
    elif data.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    yield archive.read(name), name
        except zipfile.BadZipFile:
            return
    elif data.startswith(b"\x1f\x8b"):
        try:
            inner = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return
        yield inner, "gunzipped"
    else:
        unpacker = zlib.decompressobj()
        try:
            yield unpacker.decompress(data, 500_000_000), "inflated"
        except zlib.error:
            return


def _tar(data: bytes) -> Iterator[tuple[bytes, str]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                opened = archive.extractfile(member)
                if opened is not None:
                    yield opened.read(), member.name
    except tarfile.TarError:
        return


def _rows(path: Path) -> Iterator[tuple[bytes, str]]:
    """Each table's text in one piece, and each bytes value by itself."""
    try:
        connection = sqlite3.connect(path)
        connection.text_factory = bytes
        try:
            names = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
            texts: list[bytes] = []
            for name in names:
                for number, row in enumerate(connection.execute(f'SELECT * FROM "{name}"')):
                    for value in row:
                        packed = isinstance(value, bytes) and value.startswith(_PACKED)
                        if packed:
                            yield value, f"{name}[{number}]"
                        elif value is not None:
                            texts.append(value if isinstance(value, bytes) else str(value).encode())
            yield b"\n".join(texts), "(rows)"
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return

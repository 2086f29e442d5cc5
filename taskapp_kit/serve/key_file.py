"""The key file: how its lines are read, and how they are changed while a server reads them.

One key a line, with words between spaces; an empty line and one that begins with `#` say nothing:

    KEY
    LABEL KEY
    LABEL sha256:HEX                    the digest stands for the key, which is then nowhere
    LABEL sha256:HEX max_in_flight=8    how many rollouts this label may have in flight at once; a plain key may have it too
    LABEL sha256:HEX admin              sees and cancels the rollouts of every label; without it only its own

Several lines may share a label (while a key is rotated); what stands after their keys is then the same. No error shows a
key, nor a word that may be one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from taskapp_kit.config import MAX_KEY_BYTES
from taskapp_kit.errors import ConfigError, TaskappError, closest
from taskapp_kit.system.private_files import make_private_folder

MAX_QUOTA = 1_000_000
LABEL_RULE = "1 to 64 letters (a to z, A to Z), digits, dots, underscores or dashes, the first a letter or a digit"
EXPECTED = (
    f"Expected KEY, LABEL KEY or LABEL sha256:HEX, and after a labelled key perhaps max_in_flight=N (1 to {MAX_QUOTA}) "
    "and admin. "
    f"A label has {LABEL_RULE}; a key has no spaces or commas and at most {MAX_KEY_BYTES} bytes."
)
LOCK_SECONDS = 10.0
"""How long a change waits for another one to be done."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_LABEL = re.compile(r"environment|development|(alias|file)[0-9]+")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LIKE_A_HASH = re.compile(r"(sha-?[0-9]+|md5)[:=]", re.IGNORECASE)
_QUOTA = "max_in_flight="
_ADMIN = "admin"
_MARK = "\ufeff"  # the byte order mark of an editor


class KeyFileError(TaskappError):
    """A key file could not be changed or read as asked: the label is there, or is not, or the disk says no."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who holds a key.

    label: is logged and stored. max_in_flight: rollouts that it may have in flight, None for any number. admin: it sees
    the rollouts of every label, not only of its own.
    """

    label: str
    max_in_flight: int | None = None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of a file: its line (from 1), its holder, the digests that it is known by, and how it was written.

    hashed: the file has its digest, not the key. labelled: the file gives the label; else it is `file` and the line.
    """

    number: int
    holder: KeyHolder
    digests: tuple[bytes, ...] = field(repr=False)
    hashed: bool
    labelled: bool


def is_label(text: str) -> bool:
    """True for what LABEL_RULE describes."""
    return _LABEL.fullmatch(text) is not None


def is_own_label(text: str) -> bool:
    """True for the labels that a server gives to keys that have none; nobody else should have them."""
    return _OWN_LABEL.fullmatch(text) is not None


def digests_of(key: str) -> tuple[bytes, ...]:
    """A key's SHA-256 digests: a client writes what is not ASCII into a header as UTF-8 or as Latin-1."""
    spellings = {key.encode("utf-8")}
    if not key.isascii():
        with contextlib.suppress(UnicodeEncodeError):
            spellings.add(key.encode("latin-1"))
    return tuple(hashlib.sha256(spelling).digest() for spelling in sorted(spellings))


def written(holder: KeyHolder, key: str) -> str:
    """The line that lets a key in, without the key."""
    quota = "" if holder.max_in_flight is None else f" {_QUOTA}{holder.max_in_flight}"
    admin = f" {_ADMIN}" if holder.admin else ""
    return f"{holder.label} sha256:{hashlib.sha256(key.encode()).hexdigest()}{quota}{admin}"


def read(path: Path) -> list[KeyLine]:
    """The keys of a file. Raises OSError, or ConfigError with file:line."""
    return parse(_text(path, path), path)


def parse(text: str, path: Path) -> list[KeyLine]:
    """The keys in the text of a file; `path` is for the sentences. Raises ConfigError with file:line."""
    found = []
    for number, line in enumerate(text.removeprefix(_MARK).splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(_line(words, number, path))
    by_label: dict[str, KeyLine] = {}
    by_digest: dict[bytes, KeyLine] = {}
    for item in found:
        first = by_label.setdefault(item.holder.label, item)
        if first.holder != item.holder:
            raise ConfigError(
                f"{path}:{first.number} and {path}:{item.number} have one label, and differ in max_in_flight or admin.",
                hint="Give every line of a label the same words after its key.",
            )
        for digest in item.digests:
            same = by_digest.setdefault(digest, item)
            if same.holder != item.holder and (same.labelled or item.labelled):
                raise ConfigError(
                    f"{path}:{same.number} and {path}:{item.number} have one key and two labels.",
                    hint="A key says who asks: remove one of the lines.",
                )
    return found


def add(
    path: Path, label: str, key: str, *, max_in_flight: int | None = None, admin: bool = False, another: bool = False
) -> KeyHolder:
    """Lets a key in under a label; only its digest is written. The file and its directory are made when missing.

    admin: it sees the rollouts of every label. another: the label may be there already, whose quota and admin flag then
    hold for the new key too. Raises KeyFileError when the label is there, has another quota or no admin flag, or the
    file cannot be written; ConfigError when label, quota or file are broken.
    """
    if not is_label(label) or is_own_label(label):
        raise ConfigError("That is no label for a key.", hint=f"A label has {LABEL_RULE}; the server's own are taken.")
    if max_in_flight is not None and not 1 <= max_in_flight <= MAX_QUOTA:
        raise ConfigError(f"max_in_flight is from 1 to {MAX_QUOTA}.")
    holder = KeyHolder(label, max_in_flight, admin)

    def appended(text: str) -> str:
        nonlocal holder
        known = {item.holder.label: item.holder for item in parse(text, path)}.get(label)
        if known is not None:
            if not another:
                raise KeyFileError(
                    f"There is a key with the label {label} in {path}.",
                    hint=f"Revoke it (taskapp keys revoke {label}), or give --another for a second key beside it.",
                )
            if max_in_flight not in (None, known.max_in_flight):
                raise KeyFileError(
                    f"The label {label} in {path} has another quota ({known.max_in_flight or 'none'}).",
                    hint="A label has one quota: leave --max-in-flight out, or revoke the label first.",
                )
            if admin and not known.admin:
                raise KeyFileError(
                    f"The label {label} in {path} is no admin.",
                    hint="The keys of a label have the same rights: leave --admin out, or revoke the label first.",
                )
            holder = known
        gap = "" if not text.removeprefix(_MARK) or text.splitlines(keepends=True)[-1][-1:] in "\r\n" else "\n"
        return f"{text}{gap}{written(holder, key)}\n"

    _change(path, appended, create=True)
    return holder


def remove(path: Path, label: str, *, keep_newest: bool = False) -> tuple[int, int]:
    """Removes every line of a label; other lines stay as they are. Gives how many keys went and how many are left.

    keep_newest: the last line of the label stays, which ends a rotation. Raises KeyFileError when there is no such file
    or label, or no older key; ConfigError when the file is broken.
    """
    counts = (0, 0)

    def without(text: str) -> str:
        nonlocal counts
        found = parse(text, path)
        theirs = [item.number for item in found if item.holder.label == label]
        if not theirs:
            raise _no_such_label(label, found, path)
        gone = set(theirs[:-1] if keep_newest else theirs)
        if not gone:
            raise KeyFileError(
                f"The label {label} has one key in {path}, and that is its newest.",
                hint=f"To replace it: taskapp keys mint {label} --another, then revoke with --keep-newest.",
            )
        counts = len(gone), len(found) - len(gone)
        mark = _MARK if text.startswith(_MARK) else ""
        lines = text.removeprefix(_MARK).splitlines(keepends=True)
        return mark + "".join(line for number, line in enumerate(lines, start=1) if number not in gone)

    _change(path, without, create=False)
    return counts


def open_to_others(path: Path) -> bool:
    """True when other users of the machine may read or write the file."""
    return bool(path.stat().st_mode & 0o066)


def missing(path: Path) -> KeyFileError:
    """What is told where a key file should be and is not."""
    return KeyFileError(
        f"There is no key file {path}.",
        hint="Name yours with --keys-file or TASKAPP_KEYS_FILE, or make one: taskapp keys mint LABEL.",
    )


def _no_such_label(label: str, found: list[KeyLine], path: Path) -> KeyFileError:
    """The label itself is not repeated: somebody may have pasted a key there."""
    labels = sorted({item.holder.label for item in found})
    near = closest(label, labels)
    if near:
        hint = f"Did you mean {near}?"
    else:
        shown = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
        hint = f"Its labels are {shown}." if labels else "It has no keys."
    return KeyFileError(f"No key in {path} has that label.", hint=hint)


def _line(words: list[str], number: int, path: Path) -> KeyLine:
    def broken(reason: str) -> ConfigError:
        return ConfigError(f"{path}:{number} is no key: {reason}.", hint=EXPECTED)

    quota: int | None = None
    admin = False
    while len(words) > 1 and (words[-1].startswith(_QUOTA) or words[-1] == _ADMIN):
        word = words.pop()
        if len(words) == 1:  # a label whose key was forgotten must not become a key
            raise broken("it has max_in_flight or admin, and no label or no key")
        if word == _ADMIN:
            if admin:
                raise broken("it has admin twice")
            admin = True
            continue
        digits = word.removeprefix(_QUOTA)
        if not digits.isascii() or not digits.isdigit() or len(digits) > 7 or not 1 <= int(digits) <= MAX_QUOTA:
            raise broken(f"its quota is no whole number from 1 to {MAX_QUOTA}")
        if quota is not None:
            raise broken("it has two quotas")
        quota = int(digits)
    if len(words) > 2:
        raise broken("it has too many words")
    labelled, secret = len(words) == 2, words[-1]
    if labelled and not is_label(words[0]):
        raise broken("its first word is no label")
    if "," in secret:
        raise broken("a key has no comma")
    if len(secret.encode()) > MAX_KEY_BYTES:
        raise broken("the key is too long")
    hashed = _HASHED.fullmatch(secret)
    if not hashed and _LIKE_A_HASH.match(secret):  # as a plain key it would let in whoever saw the file
        raise broken("it looks like a digest, which is sha256: and 64 hexadecimal digits")
    digests = (bytes.fromhex(hashed[1]),) if hashed else digests_of(secret)
    holder = KeyHolder(words[0] if labelled else f"file{number}", quota, admin)
    return KeyLine(number, holder, digests, hashed=hashed is not None, labelled=labelled)


def _text(place: Path, shown: Path) -> str:
    try:
        return place.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"The key file {shown} is not UTF-8 text.", hint="Save it as UTF-8.") from None


def _change(path: Path, edit: Callable[[str], str], *, create: bool) -> None:
    """Replaces the file by what `edit` makes of its text, as a whole or not at all, one change at a time."""
    try:
        place = path.resolve()  # a link stays a link
        if create:
            make_private_folder(place.parent)
        elif not place.exists():
            raise missing(path)
        with _alone(place.parent, path):
            before = place.stat() if place.exists() else None
            if before is None and not create:
                raise missing(path)
            _replace(place, edit("" if before is None else _text(place, path)), before)
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be changed: {error.strerror or type(error).__name__}.",
            hint="It is replaced as a whole, so its directory must be writable too.",
        ) from None


@contextlib.contextmanager
def _alone(folder: Path, path: Path) -> Iterator[None]:
    """Holds a lock on the directory: the file itself is replaced, and a lock of its own would be left lying about."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise KeyFileError(
                        f"Another process has been changing {path} for {LOCK_SECONDS:.0f} s.", hint="Try again."
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _replace(place: Path, text: str, before: os.stat_result | None) -> None:
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(6)}.new")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8"))
            if before is not None:
                with contextlib.suppress(PermissionError):  # only root gives files away
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, 0o600 if before is None else stat.S_IMODE(before.st_mode))
            stream.flush()
            os.fsync(descriptor)
        fresh.replace(place)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""The key file: its format, and changes to it while a server reads it.

The file has one key per line, with words separated by spaces. Empty lines and lines that begin with `#` are ignored:

    KEY
    LABEL KEY
    LABEL sha256:HEX                    the digest of the key, without the key
    LABEL sha256:HEX max_in_flight=8    how many rollouts of this label may be in flight; also possible after LABEL KEY
    LABEL sha256:HEX admin              sees and cancels the rollouts of every label, not only its own

Several lines may share a label while a key is rotated; the words after their keys must then be the same. No error shows a
key, or a word that may be a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from taskapp_kit.config.parsers import MAX_KEY_BYTES
from taskapp_kit.errors import ConfigError, KitError, closest
from taskapp_kit.system.private_files import locked, make_private_folder, replaced

MAX_QUOTA = 1_000_000
LABEL_RULE = "1 to 64 characters (a to z, A to Z, 0 to 9, dot, underscore, dash), a letter or digit first"
EXPECTED = (
    f"Expected KEY, LABEL KEY or LABEL sha256:HEX, optionally with max_in_flight=N (1 to {MAX_QUOTA}) and admin after a "
    "labelled key. "
    f"A label has {LABEL_RULE}; a key has no spaces or commas and at most {MAX_KEY_BYTES} bytes."
)
LOCK_SECONDS = 10.0
"""How long a change waits for another change of the file."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_LABEL = re.compile(r"environment|development|(alias|file)[0-9]+")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LIKE_A_HASH = re.compile(r"(sha-?[0-9]+|md5)[:=]", re.IGNORECASE)
_QUOTA = "max_in_flight="
_ADMIN = "admin"
_MARK = "\ufeff"  # the byte order mark that some editors write


class KeyFileError(KitError):
    """A key file could not be read or changed as requested: the label exists, or does not, or the disk failed."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The holder of a key.

    label: what is logged and stored. max_in_flight: how many rollouts the label may have in flight, None for no limit.
    admin: whether it sees the rollouts of every label.
    """

    label: str
    max_in_flight: int | None = None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of a file: its line (from 1), its holder, its digests, and how it was written.

    hashed: the file contains only the digest. labelled: the file contains the label; otherwise it is `file` and the line.
    """

    number: int
    holder: KeyHolder
    digests: tuple[bytes, ...] = field(repr=False)
    hashed: bool
    labelled: bool


def is_label(text: str) -> bool:
    """Return whether the text satisfies LABEL_RULE."""
    return _LABEL.fullmatch(text) is not None


def is_own_label(text: str) -> bool:
    """Return whether the server assigns this label to keys without a label; no other key may have it."""
    return _OWN_LABEL.fullmatch(text) is not None


def digests_of(key: str) -> tuple[bytes, ...]:
    """Return a key's SHA-256 digests: clients encode non-ASCII characters in headers as UTF-8 or as Latin-1."""
    spellings = {key.encode("utf-8")}
    if not key.isascii():
        with contextlib.suppress(UnicodeEncodeError):
            spellings.add(key.encode("latin-1"))
    return tuple(hashlib.sha256(spelling).digest() for spelling in sorted(spellings))


def key_line(holder: KeyHolder, key: str) -> str:
    """Return the line of a key, with only its digest."""
    quota = "" if holder.max_in_flight is None else f" {_QUOTA}{holder.max_in_flight}"
    admin = f" {_ADMIN}" if holder.admin else ""
    return f"{holder.label} sha256:{hashlib.sha256(key.encode()).hexdigest()}{quota}{admin}"


def read(path: Path) -> list[KeyLine]:
    """Read the keys of a file. Raises OSError, or ConfigError with file:line."""
    return parse(_text(path, path), path)


def parse(text: str, path: Path) -> list[KeyLine]:
    """Parse the text of a key file; `path` is for error messages. Raises ConfigError with file:line."""
    found = []
    # an editor's byte order mark would become part of the first key
    for number, line in enumerate(text.removeprefix(_MARK).splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(_line(words, number, path))
    by_label: dict[str, KeyLine] = {}
    by_digest: dict[bytes, KeyLine] = {}
    for item in found:
        # a quota counts the rollouts of a label, so its keys cannot have different ones
        first = by_label.setdefault(item.holder.label, item)
        if first.holder != item.holder:
            raise ConfigError(
                f"{path}:{first.number} and {path}:{item.number} have the same label but differ in max_in_flight or admin.",
                hint="Give every key of a label the same max_in_flight and admin.",
            )
        for digest in item.digests:
            same = by_digest.setdefault(digest, item)
            if same.holder != item.holder and (same.labelled or item.labelled):
                raise ConfigError(
                    f"{path}:{same.number} and {path}:{item.number} have the same key and different labels.",
                    hint="A key identifies its holder: remove one of the lines.",
                )
    return found


def add(
    path: Path, label: str, key: str, *, max_in_flight: int | None = None, admin: bool = False, another: bool = False
) -> KeyHolder:
    """Add a key with a label; only its digest is written. Missing files and directories are created.

    Args:
        path: The key file.
        label: The label of the key.
        key: The key.
        max_in_flight: The quota of the label, None for no limit.
        admin: Whether it sees the rollouts of every label.
        another: Whether the label may already exist. Its quota and admin flag then also apply to the new key.

    Raises:
        KeyFileError: The label exists, has another quota or no admin flag, or the file cannot be written.
        ConfigError: The label, the quota or the file is invalid.
    """
    if not is_label(label) or is_own_label(label):
        raise ConfigError(
            "The label is not valid for a key.", hint=f"A label has {LABEL_RULE}; the server's own labels are reserved."
        )
    if max_in_flight is not None and not 1 <= max_in_flight <= MAX_QUOTA:
        raise ConfigError(f"max_in_flight must be from 1 to {MAX_QUOTA}.")
    holder = KeyHolder(label, max_in_flight, admin)

    def appended(text: str) -> str:
        nonlocal holder
        # read under the lock: another process may have added the label since
        known = {item.holder.label: item.holder for item in parse(text, path)}.get(label)
        if known is not None:
            if not another:
                raise KeyFileError(
                    f"{path} already has a key with the label {label}.",
                    hint=f"Revoke it (taskapp keys revoke {label}), or pass --another to add a second key.",
                )
            if max_in_flight not in (None, known.max_in_flight):
                raise KeyFileError(
                    f"The label {label} in {path} has a different quota ({known.max_in_flight or 'none'}).",
                    hint="A label has one quota: omit --max-in-flight, or revoke the label first.",
                )
            if admin and not known.admin:
                raise KeyFileError(
                    f"The label {label} in {path} is not an admin.",
                    hint="The keys of a label have the same rights: omit --admin, or revoke the label first.",
                )
            holder = known
        # without a line end, the new key would be appended to the last key
        gap = "" if not text.removeprefix(_MARK) or text.splitlines(keepends=True)[-1][-1:] in "\r\n" else "\n"
        return f"{text}{gap}{key_line(holder, key)}\n"

    _change(path, appended, create=True)
    return holder


def remove(path: Path, label: str, *, keep_newest: bool = False) -> tuple[int, int]:
    """Remove every line of a label and return the numbers of keys removed and left. Other lines stay unchanged.

    Args:
        path: The key file.
        label: The label.
        keep_newest: Keep the last line of the label, which ends a rotation.

    Raises:
        KeyFileError: The file or the label does not exist, or the label has no older key.
        ConfigError: The file is invalid.
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
                f"The label {label} has only one key in {path}, so there is no older key to revoke.",
                hint=f"To replace it, run taskapp keys mint {label} --another, then revoke with --keep-newest.",
            )
        counts = len(gone), len(found) - len(gone)
        mark = _MARK if text.startswith(_MARK) else ""
        lines = text.removeprefix(_MARK).splitlines(keepends=True)
        return mark + "".join(line for number, line in enumerate(lines, start=1) if number not in gone)

    _change(path, without, create=False)
    return counts


def open_to_others(path: Path) -> bool:
    """Return whether other users of the machine may read or write the file."""
    return bool(path.stat().st_mode & 0o066)


def missing(path: Path) -> KeyFileError:
    """Return the error for a key file that does not exist."""
    return KeyFileError(
        f"The key file {path} does not exist.",
        hint="Name another file with --keys-file or TASKAPP_KEYS_FILE, or create one with taskapp keys mint LABEL.",
    )


def _no_such_label(label: str, found: list[KeyLine], path: Path) -> KeyFileError:
    """Return the error, without the label, which may be a key pasted by mistake."""
    labels = sorted({item.holder.label for item in found})
    near = closest(label, labels)
    if near:
        hint = f"Did you mean {near}?"
    else:
        shown = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
        hint = f"Its labels are {shown}." if labels else "It has no keys."
    return KeyFileError(f"No key in {path} has this label.", hint=hint)


def _line(words: list[str], number: int, path: Path) -> KeyLine:
    def invalid(reason: str) -> ConfigError:
        return ConfigError(f"{path}:{number} is not a valid key: {reason}.", hint=EXPECTED)

    quota: int | None = None
    admin = False
    while len(words) > 1 and (words[-1].startswith(_QUOTA) or words[-1] == _ADMIN):
        word = words.pop()
        if len(words) == 1:  # a label whose key was forgotten must not become a key
            raise invalid("max_in_flight and admin need a label and a key before them")
        if word == _ADMIN:
            if admin:
                raise invalid("it has admin twice")
            admin = True
            continue
        digits = word.removeprefix(_QUOTA)
        if not digits.isascii() or not digits.isdigit() or len(digits) > 7 or not 1 <= int(digits) <= MAX_QUOTA:
            raise invalid(f"its quota is not an integer from 1 to {MAX_QUOTA}")
        if quota is not None:
            raise invalid("it has two quotas")
        quota = int(digits)
    if len(words) > 2:
        raise invalid("it has too many words")
    labelled, secret = len(words) == 2, words[-1]
    if labelled and not is_label(words[0]):
        raise invalid("its first word is not a valid label")
    if "," in secret:
        raise invalid("a key must not contain a comma")
    if len(secret.encode()) > MAX_KEY_BYTES:
        raise invalid(f"the key has more than {MAX_KEY_BYTES} bytes")
    hashed = _HASHED.fullmatch(secret)
    if not hashed and _LIKE_A_HASH.match(secret):  # as a plain key it would admit everyone who has seen the file
        raise invalid("it looks like a digest, but a digest is sha256: and 64 hexadecimal digits")
    digests = (bytes.fromhex(hashed[1]),) if hashed else digests_of(secret)
    holder = KeyHolder(words[0] if labelled else f"file{number}", quota, admin)
    return KeyLine(number, holder, digests, hashed=hashed is not None, labelled=labelled)


def _text(target: Path, shown: Path) -> str:
    try:
        return target.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"The key file {shown} is not UTF-8 text.", hint="Save it as UTF-8.") from None


def _change(path: Path, edit: Callable[[str], str], *, create: bool) -> None:
    """Replace the file's text by `edit(text)`, atomically and one change at a time."""
    try:
        target = path.resolve()  # a symbolic link stays a link
        if create:
            make_private_folder(target.parent)
        elif not target.exists():
            raise missing(path)
        with locked(target.parent, LOCK_SECONDS):  # the file itself is replaced
            before = target.stat() if target.exists() else None
            _replace(target, edit("" if before is None else _text(target, path)), before)
    except BlockingIOError:
        raise KeyFileError(
            f"Another process has been changing {path} for {LOCK_SECONDS:.0f} s.", hint="Try again later."
        ) from None
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be changed: {error.strerror or type(error).__name__}.",
            hint="It is replaced as a whole, so its directory must be writable too.",
        ) from None


def _replace(target: Path, text: str, before: os.stat_result | None) -> None:
    with replaced(target) as new:
        new.write_bytes(text.encode("utf-8"))
        if before is not None:
            with contextlib.suppress(PermissionError):  # only root may change a file's owner
                os.chown(new, before.st_uid, before.st_gid)
            # `replaced` makes it 600; a group that could read the old file can read the new one
            new.chmod(stat.S_IMODE(before.st_mode))

"""The format of the key file, and atomic changes while a server reads the file.

Each line contains one key, with fields separated by spaces. Empty lines and lines that begin with `#` are ignored:

    KEY
    LABEL KEY
    LABEL sha256:HEX                    the digest of the key instead of the key
    LABEL sha256:HEX max_in_flight=8    at most 8 rollouts of this label are in flight
    LABEL sha256:HEX admin              the key may read and cancel the rollouts of all labels

`max_in_flight` and `admin` are also allowed after LABEL KEY.

Several lines may have the same label while a key is rotated. The fields after the key must be the same in all of them.
Error messages never contain a key or a field that may be a key.
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
LABEL_RULE = "1 to 64 characters (a to z, A to Z, 0 to 9, dot, underscore, dash), starting with a letter or digit"
EXPECTED = (
    "Expected KEY, LABEL KEY or LABEL sha256:HEX. After a key with a label, "
    f"max_in_flight=N (1 to {MAX_QUOTA}) and admin are optional. A label has {LABEL_RULE}. "
    f"A key has no spaces or commas and at most {MAX_KEY_BYTES} bytes."
)
LOCK_SECONDS = 10.0
"""How many seconds a change waits while another process changes the file."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_LABEL = re.compile(r"environment|development|(alias|file)[0-9]+")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LIKE_A_HASH = re.compile(r"(sha-?[0-9]+|md5)[:=]", re.IGNORECASE)
_QUOTA = "max_in_flight="
_ADMIN = "admin"
_MARK = "\ufeff"  # a byte order mark, which some editors write


class KeyFileError(KitError):
    """A key file could not be changed, for example because a label already exists or a write failed."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The holder of a key.

    Attributes:
        label: Label in logs and stored rollouts.
        max_in_flight: Maximum number of rollouts in flight for the label, or None for no limit.
        admin: Whether the key has access to the rollouts of all labels.
    """

    label: str
    max_in_flight: int | None = None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key in a file.

    Attributes:
        number: Line number, starting at 1.
        holder: Holder of the key.
        digests: Accepted SHA-256 digests of the key.
        hashed: Whether the file contains only the digest.
        labelled: Whether the file contains a label. If not, the label is `file` and the line number.
    """

    number: int
    holder: KeyHolder
    digests: tuple[bytes, ...] = field(repr=False)
    hashed: bool
    labelled: bool


def is_label(text: str) -> bool:
    """Return whether the string satisfies LABEL_RULE."""
    return _LABEL.fullmatch(text) is not None


def is_own_label(text: str) -> bool:
    """Return whether this label is reserved, because the server assigns it to keys that have no label."""
    return _OWN_LABEL.fullmatch(text) is not None


def digests_of(key: str) -> tuple[bytes, ...]:
    """Return the SHA-256 digests of a key in UTF-8 and Latin-1, because HTTP clients use either encoding in headers."""
    spellings = {key.encode("utf-8")}
    if not key.isascii():
        with contextlib.suppress(UnicodeEncodeError):
            spellings.add(key.encode("latin-1"))
    return tuple(hashlib.sha256(spelling).digest() for spelling in sorted(spellings))


def key_line(holder: KeyHolder, key: str) -> str:
    """Return the line that stores a key. The line contains only the digest of the key."""
    quota = "" if holder.max_in_flight is None else f" {_QUOTA}{holder.max_in_flight}"
    admin = f" {_ADMIN}" if holder.admin else ""
    return f"{holder.label} sha256:{hashlib.sha256(key.encode()).hexdigest()}{quota}{admin}"


def read(path: Path) -> list[KeyLine]:
    """Return the keys in a file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: A line is invalid. The message contains the location `file:line`.
    """
    return parse(_text(path, path), path)


def parse(text: str, path: Path) -> list[KeyLine]:
    """Return the keys in the content of a key file. `path` is the file's path in messages.

    Raises:
        ConfigError: A line is invalid. The message contains the location `file:line`.
    """
    found = []
    # otherwise an editor's byte order mark would become part of the first key
    for number, line in enumerate(text.removeprefix(_MARK).splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(_line(words, number, path))
    by_label: dict[str, KeyLine] = {}
    by_digest: dict[bytes, KeyLine] = {}
    for item in found:
        # a quota applies to a label, so its keys cannot have different quotas
        first = by_label.setdefault(item.holder.label, item)
        if first.holder != item.holder:
            raise ConfigError(
                f"{path}:{first.number} and {path}:{item.number} have the same label but differ in max_in_flight or admin.",
                hint="Use the same max_in_flight and admin for all keys of a label.",
            )
        for digest in item.digests:
            same = by_digest.setdefault(digest, item)
            if same.holder != item.holder and (same.labelled or item.labelled):
                raise ConfigError(
                    f"{path}:{same.number} and {path}:{item.number} have the same key but different labels.",
                    hint="A key can have only one label. Remove one of the lines.",
                )
    return found


def add(
    path: Path, label: str, key: str, *, max_in_flight: int | None = None, admin: bool = False, another: bool = False
) -> KeyHolder:
    """Add the digest of a key to a key file. Missing files and directories are created.

    Args:
        path: The key file.
        label: The label of the key.
        key: The key.
        max_in_flight: The quota of the label, or None for no limit.
        admin: Whether the key has access to the rollouts of all labels.
        another: Whether the label may already exist. If it exists, its quota and admin flag also apply to the new key.

    Raises:
        KeyFileError: The label exists and `another` is false, its quota or admin flag differs, or the file cannot be
            written.
        ConfigError: The label, the quota or the file is invalid.
    """
    if not is_label(label) or is_own_label(label):
        raise ConfigError(
            "The label is invalid or reserved.", hint=f"Use {LABEL_RULE}. Labels that the server assigns are reserved."
        )
    if max_in_flight is not None and not 1 <= max_in_flight <= MAX_QUOTA:
        raise ConfigError(f"max_in_flight is invalid. Expected an integer from 1 to {MAX_QUOTA}.")
    holder = KeyHolder(label, max_in_flight, admin)

    def appended(text: str) -> str:
        nonlocal holder
        # read under the lock, because another process may have added the label
        known = {item.holder.label: item.holder for item in parse(text, path)}.get(label)
        if known is not None:
            if not another:
                raise KeyFileError(
                    f"{path} already has a key with the label {label}.",
                    hint=f"Pass --another to add a second key, or revoke the first: taskapp keys revoke {label}",
                )
            if max_in_flight not in (None, known.max_in_flight):
                raise KeyFileError(
                    f"The label {label} in {path} already has a different quota ({known.max_in_flight or 'none'}).",
                    hint="All keys of a label have the same quota. Omit --max-in-flight, or revoke the label first.",
                )
            if admin and not known.admin:
                raise KeyFileError(
                    f"The label {label} in {path} does not have the admin flag.",
                    hint="All keys of a label have the same rights. Omit --admin, or revoke the label first.",
                )
            holder = known
        # without a newline, the new key would be appended to the last key
        gap = "" if not text.removeprefix(_MARK) or text.splitlines(keepends=True)[-1][-1:] in "\r\n" else "\n"
        return f"{text}{gap}{key_line(holder, key)}\n"

    _change(path, appended, create=True)
    return holder


def remove(path: Path, label: str, *, keep_newest: bool = False) -> tuple[int, int]:
    """Remove the keys of a label. Return how many keys were removed, and how many keys remain in the file.

    Args:
        path: The key file.
        label: The label.
        keep_newest: Whether to keep the last key of the label, as at the end of a rotation.

    Raises:
        KeyFileError: The file or the label does not exist, or `keep_newest` is set and the label has only one key.
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
                f"The label {label} has only one key in {path}, so no older key can be revoked.",
                hint=f"First run `taskapp keys mint {label} --another`, then revoke with --keep-newest.",
            )
        counts = len(gone), len(found) - len(gone)
        mark = _MARK if text.startswith(_MARK) else ""
        lines = text.removeprefix(_MARK).splitlines(keepends=True)
        return mark + "".join(line for number, line in enumerate(lines, start=1) if number not in gone)

    _change(path, without, create=False)
    return counts


def open_to_others(path: Path) -> bool:
    """Return whether other users of the machine can read or write the file."""
    return bool(path.stat().st_mode & 0o066)


def missing(path: Path) -> KeyFileError:
    """Return the error for a key file that does not exist."""
    return KeyFileError(
        f"The key file {path} does not exist.",
        hint="Set --keys-file or TASKAPP_KEYS_FILE to an existing file. To create one, run: taskapp keys mint LABEL",
    )


def _no_such_label(label: str, found: list[KeyLine], path: Path) -> KeyFileError:
    """Return the error for an unknown label. The message omits the label, which may be a key pasted by mistake."""
    labels = sorted({item.holder.label for item in found})
    near = closest(label, labels)
    if near:
        hint = f"Did you mean {near}?"
    else:
        shown = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
        hint = f"The labels in this file are {shown}." if labels else "The file contains no keys."
    return KeyFileError(f"No key in {path} has this label.", hint=hint)


def _line(words: list[str], number: int, path: Path) -> KeyLine:
    def invalid(reason: str) -> ConfigError:
        return ConfigError(f"{path}:{number} is invalid: {reason}.", hint=EXPECTED)

    quota: int | None = None
    admin = False
    while len(words) > 1 and (words[-1].startswith(_QUOTA) or words[-1] == _ADMIN):
        word = words.pop()
        if len(words) == 1:  # a label without a key must not become a key
            raise invalid("a label and a key must precede max_in_flight and admin")
        if word == _ADMIN:
            if admin:
                raise invalid("admin is repeated")
            admin = True
            continue
        digits = word.removeprefix(_QUOTA)
        if not digits.isascii() or not digits.isdigit() or len(digits) > 7 or not 1 <= int(digits) <= MAX_QUOTA:
            raise invalid(f"max_in_flight is not an integer from 1 to {MAX_QUOTA}")
        if quota is not None:
            raise invalid("max_in_flight is repeated")
        quota = int(digits)
    if len(words) > 2:
        raise invalid("the line has too many fields")
    labelled, secret = len(words) == 2, words[-1]
    if labelled and not is_label(words[0]):
        raise invalid("the first field is not a valid label")
    if "," in secret:
        raise invalid("a key must not contain a comma")
    if len(secret.encode()) > MAX_KEY_BYTES:
        raise invalid(f"the key has more than {MAX_KEY_BYTES} bytes")
    hashed = _HASHED.fullmatch(secret)
    # used as a key, a digest would grant access to everyone who has read the file
    if not hashed and _LIKE_A_HASH.match(secret):
        raise invalid("the key looks like a digest, which must be written as sha256: and 64 hexadecimal digits")
    digests = (bytes.fromhex(hashed[1]),) if hashed else digests_of(secret)
    holder = KeyHolder(words[0] if labelled else f"file{number}", quota, admin)
    return KeyLine(number, holder, digests, hashed=hashed is not None, labelled=labelled)


def _text(target: Path, shown: Path) -> str:
    try:
        return target.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"The key file {shown} is not UTF-8 text.", hint="Save it as UTF-8.") from None


def _change(path: Path, edit: Callable[[str], str], *, create: bool) -> None:
    """Replace the content of the file with `edit(content)`. The change is atomic and is made under a lock.

    Raises:
        KeyFileError: The file cannot be read, locked or written.
    """
    try:
        target = path.resolve()  # preserves a symbolic link
        if create:
            make_private_folder(target.parent)
        elif not target.exists():
            raise missing(path)
        with locked(target.parent, LOCK_SECONDS):  # not the file, which is replaced
            before = target.stat() if target.exists() else None
            _replace(target, edit("" if before is None else _text(target, path)), before)
    except BlockingIOError:
        raise KeyFileError(
            f"{path} has been locked by another process for {LOCK_SECONDS:.0f} s.", hint="Try again later."
        ) from None
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be changed: {error.strerror or type(error).__name__}.",
            hint="The directory must also be writable, because the change replaces the file.",
        ) from None


def _replace(target: Path, text: str, before: os.stat_result | None) -> None:
    with replaced(target) as new:
        new.write_bytes(text.encode("utf-8"))
        if before is not None:
            with contextlib.suppress(PermissionError):  # only root can change the owner of a file
                os.chown(new, before.st_uid, before.st_gid)
            # `replaced` creates the file with mode 600; restore the group's right to read
            new.chmod(stat.S_IMODE(before.st_mode))

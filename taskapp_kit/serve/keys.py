"""The keys that open the door: kept as SHA-256 digests, compared in constant time, re-read from a file when it changes.

A key file holds one key a line: `KEY`, `LABEL KEY`, or `LABEL sha256:HEX` (the key itself is then nowhere); a line that
 begins with `#` is a comment. The label, never the key, goes into log lines and stored rollouts.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path

from taskapp_kit.config import MAX_KEY_BYTES, Settings
from taskapp_kit.errors import ConfigError

log = logging.getLogger("taskapp_kit.serve")

CHECK_SECONDS = 1.0
"""The key file is looked at once in this time at most."""
HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")


class Keys:
    """Every valid key. Its repr shows how it was configured, never a key."""

    def __init__(self, keys: Iterable[tuple[str, str]] = (), file: Path | None = None) -> None:
        """keys: (label, key) pairs. file: a key file, read now; raises ConfigError when it cannot be."""
        self._fixed = [pair for label, key in keys for pair in _digests(label, key)]
        self._file = file
        self._from_file: list[tuple[bytes, str]] = []
        self._stamp: tuple[int, int, int] | None = None
        self._look_again = 0.0
        if file is not None:
            try:
                self._stamp = _stamp(file)
                self._from_file = _read_file(file)
            except OSError as error:
                raise ConfigError(
                    f"The key file {file} (TASKAPP_KEYS_FILE) cannot be read: {error.strerror}.",
                    hint="Give a readable file with one key a line.",
                ) from None
            self._look_again = time.monotonic() + CHECK_SECONDS
        self._all = self._fixed + self._from_file

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """The keys that the settings name."""
        named: list[tuple[str, str]] = []
        if settings.environment_api_key:
            named.append(("environment", settings.environment_api_key))
        named += [(f"alias{n}", key) for n, key in enumerate(settings.environment_api_key_aliases, start=1)]
        if settings.dev_environment_api_key:
            named.append(("development", settings.dev_environment_api_key))
        return cls(named, settings.keys_file)

    def __repr__(self) -> str:
        return f"Keys({'some' if self._all else 'none'} configured)"

    def configured(self) -> bool:
        """True when at least one key is valid now."""
        if self._file is not None:
            self._refresh()
        return bool(self._all)

    def match(self, candidates: Iterable[bytes]) -> str | None:
        """The label of the key that one of the candidates is, else None. Every pair is compared, without early exit."""
        found: str | None = None
        for candidate in candidates:
            digest = hashlib.sha256(candidate).digest()
            for known, label in self._all:
                if hmac.compare_digest(digest, known):
                    found = label
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._look_again or self._file is None:
            return
        self._look_again = now + CHECK_SECONDS
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            self._from_file = _read_file(self._file)
            self._stamp = stamp
            log.info("key file read again keys=%d", len({label for _, label in self._from_file}))
        except (OSError, ConfigError) as error:
            if self._stamp is not None:
                log.error("key file unusable (%s): none of its keys is valid until it is mended", type(error).__name__)
            self._from_file, self._stamp = [], None  # closed by default: a file taken away takes its keys along
        self._all = self._fixed + self._from_file


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digests(label: str, key: str) -> list[tuple[bytes, str]]:
    """A key's digests: a client writes what is not ASCII into a header as UTF-8 or as Latin-1."""
    spellings = {key.encode("utf-8")}
    if not key.isascii():
        with contextlib.suppress(UnicodeEncodeError):
            spellings.add(key.encode("latin-1"))
    return [(hashlib.sha256(spelling).digest(), label) for spelling in sorted(spellings)]


def _read_file(path: Path) -> list[tuple[bytes, str]]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"The key file {path} is not UTF-8 text.", hint="Save it as UTF-8.") from None
    found: list[tuple[bytes, str]] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or "," in words[-1] or len(words[-1].encode()) > MAX_KEY_BYTES:
            raise ConfigError(
                f"{path}:{number} is no key.",
                hint="Expected KEY, LABEL KEY or LABEL sha256:HEX; a key has no spaces or commas and at most "
                f"{MAX_KEY_BYTES} bytes.",
            )
        label = words[0] if len(words) == 2 else f"file{number}"
        hashed = HASHED.fullmatch(words[-1])
        found += [(bytes.fromhex(hashed[1]), label)] if hashed else _digests(label, words[-1])
    return found

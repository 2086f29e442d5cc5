"""The valid API keys of a task app, and the authentication of requests.

The label and the rights of a request's key are stored in the request's ASGI scope. Keys are stored as SHA-256 digests,
compared in constant time, and reloaded when the key file (`key_file.py`) changes. Logs and stored rollouts contain the
label of a key, never the key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from starlette.types import Scope

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.net.auth import candidates
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Headers
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.serve.key_file import KeyHolder, digests_of, read

log = logging.getLogger("taskapp_kit.serve")

CHECK_SECONDS = 1.0
"""The minimum time between two checks of the key file, in seconds."""
Known = list[tuple[bytes, KeyHolder]]
CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="taskapp", Basic realm="taskapp", charset="UTF-8"')]
DOCUMENTS: Final = frozenset({"/docs", "/openapi.json"})
LABEL = "taskapp_kit.key_label"
"""Scope key: the label of the API key."""
QUOTA = "taskapp_kit.key_quota"
"""Scope key: the maximum number of rollouts in flight for the label, or None for no limit."""
ADMIN = "taskapp_kit.key_admin"
"""Scope key: whether the API key has access to the rollouts of all labels."""


class Keys:
    """All valid keys. The repr shows whether any keys are configured, but never a key."""

    def __init__(self, keys: Iterable[tuple[str, str]] = (), file: Path | None = None) -> None:
        """Read the key file.

        Args:
            keys: Pairs of label and key.
            file: A key file.

        Raises:
            ConfigError: The file cannot be read.
        """
        # keys in environment variables belong to the operator
        self._fixed: Known = [
            (digest, KeyHolder(label, admin=True)) for label, key in keys for digest in digests_of(key)
        ]
        self._file = None if file is None else file.absolute()  # environments may change the working directory
        self._from_file: Known = []
        # time, size and inode, because an edit may leave the time or the size unchanged
        self._stamp: tuple[int, int, int] | None = None
        self._look_again = 0.0
        if file is not None:
            try:
                # before reading the content, so that the next check notices a change between the two
                self._stamp = _stamp(file)
                self._from_file = _known(file)
            except OSError as error:
                raise ConfigError(
                    f"The key file {file} (TASKAPP_KEYS_FILE) cannot be read: {error.strerror}.",
                    hint="Set TASKAPP_KEYS_FILE to a readable key file. To create one, run: taskapp keys mint LABEL",
                ) from None
            self._look_again = time.monotonic() + CHECK_SECONDS
        self._all = self._fixed + self._from_file

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """Return the keys from the settings and the key file."""
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
        """Return whether at least one key is currently valid."""
        if self._file is not None:
            self._refresh()
        return bool(self._all)

    def has_label(self, label: str) -> bool:
        """Return whether a currently valid key has this label."""
        return self.configured() and any(holder.label == label for _, holder in self._all)

    def has_key(self, text: str) -> bool:
        """Return whether the string is a valid key."""
        return self.match((text.encode("utf-8", "replace"),)) is not None

    def match(self, candidates: Iterable[bytes]) -> KeyHolder | None:
        """Return the holder of the last valid candidate, or None if no candidate is a valid key.

        If a key is both in a setting and in the key file, the label, quota and admin flag in the file apply.
        """
        found: KeyHolder | None = None
        # no early exit, so that the response time reveals nothing about the valid keys
        for candidate in candidates:
            found = self.holder(hashlib.sha256(candidate).digest()) or found
        return found

    def holder(self, digest: bytes) -> KeyHolder | None:
        """Return the holder of the key with this SHA-256 digest, or None if the key is not valid. See `match`."""
        found: KeyHolder | None = None
        for known, holder in self._all:
            # all digests have the same length, so the time does not depend on the length of the key
            if hmac.compare_digest(digest, known):
                found = holder
        return found

    def operator(self) -> bytes | None:
        """Return the SHA-256 of the first key that an environment variable sets, or None if no variable sets a key.

        Keys in environment variables have access to all rollouts.
        """
        return self._fixed[0][0] if self._fixed else None

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._look_again or self._file is None:
            return
        # set before the check, so that a slow disk does not delay every request
        self._look_again = now + CHECK_SECONDS
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            self._from_file = _known(self._file)
            self._stamp = stamp
            log.info("key file read again labels=%d", len({holder.label for _, holder in self._from_file}))
        except (OSError, ConfigError) as error:
            if self._stamp is not None:
                reason = str(error) if isinstance(error, ConfigError) else f"{self._file}: {error.strerror}"
                log.error("key file unusable, so its keys are not valid until the file is fixed: %s", reason)
            self._from_file, self._stamp = [], None  # no key is valid if the file cannot be read
        self._all = self._fixed + self._from_file


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _known(path: Path) -> Known:
    return [(digest, line.holder) for line in read(path) for digest in line.digests]


def authenticator(keys: Keys) -> Callable[[Scope], RequestRefused | None]:
    """Return the check that `ApiKeyMiddleware` calls for each request.

    The check stores the label of a valid key in the scope and returns None. For a missing or invalid key, it returns the error.
    """

    def authenticate(scope: Scope) -> RequestRefused | None:
        if not keys.configured():
            return no_key_configured()
        try:
            holder = keys.match(candidates(scope["headers"], CHALLENGE))
        except RequestRefused as refused:
            return refused
        if holder is None:
            return RequestRefused(
                # the same response to missing, wrong and revoked keys, so that it reveals nothing
                "unauthorised",
                "API key missing or invalid",
                hint="Send the key in the X-API-Key header or as Authorization: Bearer.",
                headers=CHALLENGE,
            )
        note_holder(scope, holder)
        return None

    return authenticate


def no_key_configured() -> RequestRefused:
    """Return the error with which a server without keys rejects every request."""
    # a server whose operator forgot the key must not be open to everyone
    return RequestRefused(
        "missing_environment_api_key",
        "ENVIRONMENT_API_KEY is not configured",
        hint="Set ENVIRONMENT_API_KEY or TASKAPP_KEYS_FILE on the server, and restart it.",
    )


def note_holder(scope: Scope, holder: KeyHolder) -> None:
    """Store the label and the rights of a key in the scope of a request, where `caller_of` reads them."""
    scope[LABEL], scope[QUOTA], scope[ADMIN] = holder.label, holder.max_in_flight, holder.admin


def open_paths(documents: bool) -> Callable[[Scope], bool]:
    """Return a function that returns whether a request is allowed without a key.

    `GET /` never needs a key. If `documents` is set, `/docs` and `/openapi.json` need no key either.
    """

    def is_open(scope: Scope) -> bool:
        # only GET and HEAD, because the body of an unauthenticated request must not be read
        if scope["method"] not in ("GET", "HEAD"):
            return False
        # the paths of a mounted application follow the prefix of the mount
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path == "/" or (documents and path in DOCUMENTS)

    return is_open


def caller_of(scope: Scope, *, traceparent: str | None = None, tracestate: str | None = None) -> Caller:
    """Return the caller of an authenticated request."""
    return Caller(scope.get(LABEL), scope.get(QUOTA), traceparent, tracestate, admin=scope.get(ADMIN, False))

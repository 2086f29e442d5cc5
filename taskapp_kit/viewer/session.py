"""The logins of the viewer: sessions with cookies, one-time links, and a limit on attempts.

Sessions are stored only in this process's memory. A cookie contains a random id, which the server maps to the SHA-256
of the API key that was used to log in. The API key is looked up for each request, so a session ends when its key is
revoked.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.protocols import Clock, SystemClock
from taskapp_kit.serve.auth import Keys
from taskapp_kit.serve.key_file import KeyHolder

SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 3600.0
"""How long a one-time link is valid, in seconds."""
MAX_SESSIONS = 1000
"""The maximum number of sessions. If there are more, the oldest session ends."""
TRIES_AT_ONCE = 4
"""How many logins are checked concurrently. Further logins are rejected."""
FAILED_SECONDS = 1.0
"""How long a failed login takes, in seconds. Until then it counts as a concurrent login, which limits attempts."""


@dataclass(frozen=True, slots=True)
class _Session:
    digest: bytes
    until: float


class Sessions:
    """The sessions of one server. They must be used only on its event loop.

    Args:
        keys: The valid API keys.
        failed_seconds: How long a failed login takes, in seconds.
    """

    def __init__(self, keys: Keys, clock: Clock | None = None, *, failed_seconds: float = FAILED_SECONDS) -> None:
        self._keys = keys
        self._clock = clock or SystemClock()
        self._failed_seconds = failed_seconds
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._codes: dict[bytes, _Session] = {}
        self._tries = 0

    async def log_in(self, given: str) -> str | None:
        """Return the id of a new session for a valid API key or one-time code. For any other value, return None after a delay.

        Raises RequestRefused (429) if the maximum number of logins is being checked.
        """
        if self._tries >= TRIES_AT_ONCE:
            raise RequestRefused(
                "too_many_tries",
                "Too many logins are being checked at the moment.",
                hint="Try again in a few seconds.",
                headers=[(b"retry-after", b"2")],
            )
        self._tries += 1
        try:
            digest = _digest(given)
            code = self._codes.pop(digest, None)
            if code is not None and code.until > self._now():
                digest = code.digest
            if self._holder(digest) is None:
                await asyncio.sleep(self._failed_seconds)
                return None
            return self._begin(digest)
        finally:
            self._tries -= 1

    def one_time_code(self) -> str | None:
        """Return a code that logs in once, as the operator. Return None if no environment variable sets an API key."""
        digest = self._keys.operator()
        if digest is None:
            return None
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = _Session(digest, self._now() + CODE_SECONDS)
        return code

    def holder(self, session_id: str) -> KeyHolder | None:
        """Return the key holder of a session. Return None if the session is unknown or expired, or its key was revoked."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        found = self._holder(session.digest) if session.until > self._now() else None
        if found is None:
            del self._sessions[session_id]
        return found

    def end(self, session_id: str) -> None:
        """End a session. Do nothing if the session is unknown."""
        self._sessions.pop(session_id, None)

    def _begin(self, digest: bytes) -> str:
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(digest, self._now() + SESSION_SECONDS)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session_id

    def _holder(self, digest: bytes) -> KeyHolder | None:
        return self._keys.holder(digest) if self._keys.configured() else None

    def _now(self) -> float:
        return self._clock.monotonic()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()

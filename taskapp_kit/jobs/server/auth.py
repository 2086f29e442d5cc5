"""The backend's API keys, and the organization of each API key.

Jobs and uploaded task-app keys belong to the organization of the API key that created or uploaded them. The name of an
organization is a slow hash of its API key. If a local backend creates an API key for itself, that key's organization is
`local`. The next local backend with this store then finds the jobs, even if it has another API key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Sequence

from starlette.types import Scope

from taskapp_kit.config.parsers import MAX_KEY_BYTES
from taskapp_kit.errors import ConfigError
from taskapp_kit.net.auth import candidates
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Headers

LOCAL = "local"
ORG = "taskapp_kit.jobs.server.org"
"""Scope key: the caller's organization."""
OPEN = frozenset({"/", "/health", "/api/health"})
CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="taskapp backend"')]
ROUNDS = 50_000
"""The number of rounds of the hash. At startup, hashing takes about 20 ms for each key."""


def org_of(key: bytes) -> str:
    """Return the organization of a key, which is the same in every backend."""
    return hashlib.pbkdf2_hmac("sha256", key, b"taskapp backend organisation", ROUNDS).hex()


class BearerKeys:
    """The valid keys. minted: The key that this process created, or None.

    Raises ConfigError if `keys` is empty, or if a key contains characters that a header cannot contain.
    """

    def __init__(self, keys: Sequence[str], *, minted: str | None = None) -> None:
        self._orgs: dict[bytes, str] = {}
        """Organizations by the digest of their key. The operator's key comes first."""
        for key in keys:
            raw = key.strip().encode()
            if not 0 < len(raw) <= MAX_KEY_BYTES or any(byte <= 32 or byte >= 127 for byte in raw) or b"," in raw:
                raise ConfigError(
                    f"A backend key is invalid. Expected 1 to {MAX_KEY_BYTES} visible ASCII characters without a comma.",
                    hint="Change SYNTH_API_KEY. Separate several keys with commas.",
                )
            self._orgs[hashlib.sha256(raw).digest()] = org_of(raw)
        self.minted_org = None if minted is None else org_of(minted.encode())
        if minted is not None:
            self._orgs[hashlib.sha256(minted.encode()).digest()] = LOCAL
        if not self._orgs:
            raise ConfigError("The backend has no key.", hint="Set SYNTH_API_KEY.")

    def __repr__(self) -> str:
        return f"BearerKeys({len(self._orgs)})"

    @property
    def operator(self) -> str:
        """The organization of the backend's operator: `local` if a key was minted, and otherwise the first key's."""
        return LOCAL if self.minted_org is not None else next(iter(self._orgs.values()))

    def adopt(self, minted: Collection[str]) -> None:
        """Assign the organization `local` to valid keys that an earlier backend created for this store."""
        self._orgs = {digest: LOCAL if org in minted else org for digest, org in self._orgs.items()}

    def org(self, candidates: Sequence[bytes]) -> str | None:
        """Return the organization of the valid keys, or None if no key is valid or the organizations differ."""
        digests = [hashlib.sha256(candidate).digest() for candidate in candidates]
        # every pair is compared in constant time
        orgs = {org for valid, org in self._orgs.items() for digest in digests if hmac.compare_digest(digest, valid)}
        return orgs.pop() if len(orgs) == 1 else None


def authenticator(keys: BearerKeys) -> Callable[[Scope], RequestRefused | None]:
    """Return the check for `ApiKeyMiddleware`.

    It returns an error response, or stores the organization in the scope.
    """

    def authenticate(scope: Scope) -> RequestRefused | None:
        try:
            org = keys.org(candidates(scope["headers"], CHALLENGE, more_schemes=False))
        except RequestRefused as refused:
            return refused
        if org is None:
            return RequestRefused(
                "unauthorised",
                "The backend's key is missing or invalid.",
                hint="Send SYNTH_API_KEY as Authorization: Bearer.",
                headers=CHALLENGE,
            )
        scope[ORG] = org
        return None

    return authenticate


def is_open(scope: Scope) -> bool:
    """Return whether a request needs no key. If it has a valid key, store the key's organization in the scope."""
    return scope["path"] in OPEN and scope["method"] in ("GET", "HEAD")

"""The key check, as pure ASGI in front of everything: no byte of a body is read before it passes.

Jobs and environment keys belong to a key's organisation, whose name is derived from the key by a slow hash: the store has
that name. The key that a local backend makes for itself has the organisation `local`, so that the next one finds what was
kept, also when the same key is configured then.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.backend.response import BackendRequestRefused, error_answer
from taskapp_kit.errors import ConfigError
from taskapp_kit.net.peer import peer_of

LOCAL = "local"
ORG = "taskapp_kit.backend.org"
"""Where the scope holds the caller's organisation."""
OPEN = frozenset({"/", "/health", "/api/health"})
MAX_CANDIDATES = 16
MAX_BYTES = 512
ROUNDS = 50_000
"""Some 20 ms, once a key and start."""


def org_of(key: bytes) -> str:
    """The organisation of a key: the same one for every backend."""
    return hashlib.pbkdf2_hmac("sha256", key, b"taskapp backend organisation", ROUNDS).hex()


class BearerKeys:
    """The keys that open the backend. minted: one that this process made. Raises ConfigError for a key nobody can send."""

    def __init__(self, keys: Sequence[str], *, minted: str | None = None) -> None:
        self._orgs: dict[bytes, str] = {}
        for key in keys:
            raw = key.strip().encode()
            if not 0 < len(raw) <= MAX_BYTES or any(byte <= 32 or byte >= 127 for byte in raw) or b"," in raw:
                raise ConfigError(
                    f"A key of the backend should be 1 to {MAX_BYTES} visible ASCII characters without a comma.",
                    hint="Give SYNTH_API_KEY another value; several keys go into it as a comma list.",
                )
            self._orgs[hashlib.sha256(raw).digest()] = org_of(raw)
        self.minted_org = None if minted is None else org_of(minted.encode())
        if minted is not None:
            self._orgs[hashlib.sha256(minted.encode()).digest()] = LOCAL
        if not self._orgs:
            raise ConfigError("The backend has no key.", hint="Set SYNTH_API_KEY.")

    def __repr__(self) -> str:
        return f"BearerKeys({len(self._orgs)})"

    def adopt(self, minted: Collection[str]) -> None:
        """Gives `local` to the keys whose organisation an earlier backend of this store had made."""
        self._orgs = {digest: LOCAL if org in minted else org for digest, org in self._orgs.items()}

    def org(self, candidates: Sequence[bytes]) -> str | None:
        """Whose keys the candidates are; None for nobody's, and for those of several callers.

        Every pair is compared, in constant time.
        """
        found: set[str] = set()
        for candidate in candidates:
            digest = hashlib.sha256(candidate).digest()
            for known, org in self._orgs.items():
                if hmac.compare_digest(digest, known):
                    found.add(org)
        return found.pop() if len(found) == 1 else None


class BackendApiKeyMiddleware:
    """Lets a request through whose key is known, and answers any other one; `/` and `/health` ask for none."""

    def __init__(self, app: ASGIApp, keys: BearerKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or lifespan."""
        if scope["type"] == "http":
            org = self._keys.org(_candidates(scope["headers"]))
            if org is None and not (scope["path"] in OPEN and scope["method"] in ("GET", "HEAD")):
                await error_answer(_unauthorised())(scope, receive, send)
                return
            peer_of(scope).keyed |= org is not None
            scope[ORG] = org
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        await self._app(scope, receive, send)


def _unauthorised() -> BackendRequestRefused:
    return BackendRequestRefused(
        "unauthorised",
        "The backend's key is missing or invalid.",
        hint="Send SYNTH_API_KEY as Authorization: Bearer.",
        headers={"www-authenticate": 'Bearer realm="taskapp backend"'},
    )


def _candidates(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Bearer and X-API-Key values; none when one of the two is there twice: two readers must not see two callers."""
    found: list[bytes] = []
    seen: set[bytes] = set()
    for name, value in headers:
        if name not in (b"authorization", b"x-api-key"):
            continue
        if name in seen:
            return []
        seen.add(name)
        if name == b"authorization":
            scheme, _, value = value.strip(b" \t").partition(b" ")
            if scheme.lower() != b"bearer":
                continue
        found += [part.strip(b" \t") for part in value.split(b",", MAX_CANDIDATES)[:MAX_CANDIDATES]]
    return [item for item in found[:MAX_CANDIDATES] if 0 < len(item) <= MAX_BYTES]

"""The checks of every request to the viewer: the Host, the Origin, then an API key or a session.

The login page needs no API key or session. A page of another site must not read or change anything in the viewer, even
if the browser sends the cookie, or if a host name of the other site resolves to this machine (DNS rebinding). Therefore
the Host must be a name of this server for every method, and the Origin, if present, must equal the Host.
"""

from __future__ import annotations

from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie

from starlette.types import Scope

from taskapp_kit.net.auth import SiteRules, candidates, read_host
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Headers, peer_of
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.serve.auth import Keys, caller_of, no_key_configured, note_holder
from taskapp_kit.viewer.session import SESSION_SECONDS, Sessions

COOKIE = "taskapp_ui"
CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="taskapp"')]
"""The authentication challenge. It omits Basic, because browsers would open a password dialog for it."""
SAFE = frozenset(("GET", "HEAD"))
KEY_HEADERS = frozenset((b"x-api-key", b"x-api-keys", b"authorization"))


class UiGate:
    """A gate that checks the requests to the viewer.

    hosts: Host names that requests may use, in addition to the server's bound address.
    """

    def __init__(self, keys: Keys, sessions: Sessions, hosts: Sequence[str]) -> None:
        self._keys = keys
        self._sessions = sessions
        self._sites = SiteRules(hosts)

    def check_site(self, scope: Scope) -> None:
        """Raise RequestRefused if the Host is not a name of this server (421) or another site sent the request (403)."""
        refusal = self._sites.refusal(scope)
        if refusal is not None:
            raise refusal
        headers = dict(scope["headers"])
        site, mode = headers.get(b"sec-fetch-site", b"none"), headers.get(b"sec-fetch-mode", b"navigate")
        if site not in (b"none", b"same-origin") and (mode != b"navigate" or scope["method"] not in SAFE):
            raise RequestRefused(
                "origin_not_allowed",
                "Another website sent this request.",
                hint="Open the viewer in the browser and use its pages.",
            )

    def caller(self, scope: Scope) -> Caller:
        """Return the caller, identified by an API key in the headers or by a session. The caller is also stored in the scope.

        Raises RequestRefused if there is no valid API key or session (401), if no API key is configured (503), or if a
        request with a cookie changes something and has no Origin header (403).
        """
        if not self._keys.configured():
            raise no_key_configured()
        named = {name for name, _ in scope["headers"]}
        if named & KEY_HEADERS:
            holder = self._keys.match(candidates(scope["headers"], CHALLENGE))
        else:
            holder = self._sessions.holder(session_id(scope))
            if holder is not None and scope["method"] not in SAFE and b"origin" not in named:
                raise RequestRefused("origin_not_allowed", "A request that changes something needs an Origin header.")
        if holder is None:
            raise RequestRefused(
                "unauthorised",
                "You are not logged in, or the API key is missing or invalid.",
                hint="Log in at /ui/login, or send an API key in the X-API-Key header.",
                headers=CHALLENGE,
            )
        peer_of(scope).keyed = True
        note_holder(scope, holder)
        return caller_of(scope)


def cookie_name(scope: Scope) -> str:
    """Return the cookie's name. It contains the port, because browsers share cookies between all ports of a host."""
    host = read_host([value for name, value in scope["headers"] if name == b"host"])
    return COOKIE if host is None or host.port is None else f"{COOKIE}_{host.port}"


def session_id(scope: Scope) -> str:
    """Return the session's id from the cookie, or an empty string if the cookie is missing."""
    name = cookie_name(scope)
    for header, value in scope["headers"]:
        if header == b"cookie":
            try:
                found = SimpleCookie(value.decode("latin-1")).get(name)
            except CookieError:
                continue
            if found is not None:
                return found.value
    return ""


def set_cookie(scope: Scope, value: str, base: str) -> tuple[bytes, bytes]:
    """Return the header that sets the session's cookie. An empty value removes the cookie. base: The viewer's path.

    The cookie is `Secure` if the browser uses https. If a proxy terminates TLS, the Origin header shows this.
    """
    seconds = int(SESSION_SECONDS) if value else 0
    over_tls = scope["scheme"] == "https" or any(
        name == b"origin" and sent.startswith(b"https://") for name, sent in scope["headers"]
    )
    secure = "; Secure" if over_tls else ""
    text = f"{cookie_name(scope)}={value}; Path={base}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode("latin-1")

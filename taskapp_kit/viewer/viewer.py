"""The viewer as an ASGI application. All routes are under `/ui` and behind a `UiGate`. Pages have no inline scripts."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.errors import RequestError
from taskapp_kit.net.body import read_form
from taskapp_kit.net.error_response import ClientGone, RequestRefused
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.records.protocols import Clock
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.serve.auth import Keys
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.viewer import annotate_pages, environment_pages, job_pages, play_pages, rollout_pages, run_pages
from taskapp_kit.viewer.gate import SAFE, UiGate, session_id, set_cookie
from taskapp_kit.viewer.page import Page, PageFunction, PageRequest, linked, not_found, redirect
from taskapp_kit.viewer.pages import FOLDER, render, style_hash
from taskapp_kit.viewer.session import Sessions
from taskapp_kit.viewer.source import UiSource

log = logging.getLogger("taskapp_kit.serve")

UI = "/ui"
LOGIN = "/login"
MAX_LOGIN_BYTES = 4096
MAX_FORM_BYTES = 64 * 1024
MAX_QUERY_BYTES = 8192
STATIC = {
    "ui.js": b"text/javascript; charset=utf-8",
    "style.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
ID, HASH = "(?P<rollout_id>[0-9a-f]{32})", "(?P<sha256>[0-9a-f]{64})"
SITTING = "(?P<sitting>[0-9a-f]{16})"
JOB = "(?P<job_id>[0-9A-Za-z_-]{1,64})"
PAGES: Sequence[tuple[str, str, PageFunction]] = (
    ("GET", "(?:runs)?", run_pages.runs),
    ("GET", "run", run_pages.run),
    ("GET", "rollouts", rollout_pages.rollouts),
    ("GET", f"rollouts/{ID}", rollout_pages.rollout),
    ("GET", "compare", rollout_pages.compare),
    ("GET", "group", rollout_pages.group),
    ("GET", "live", rollout_pages.live),
    ("GET", f"live/{ID}", rollout_pages.live_rollout),
    ("GET", "environments", environment_pages.environments),
    ("GET", "environment", environment_pages.environment),
    ("POST", "environment", environment_pages.start),
    ("GET", f"play/{SITTING}", play_pages.play),
    ("POST", f"play/{SITTING}", play_pages.act),
    ("GET", "jobs", job_pages.jobs),
    ("GET", f"jobs/{JOB}", job_pages.job),
    ("GET", "annotate", annotate_pages.annotate),
    ("POST", "annotate", annotate_pages.store_annotation),
    ("GET", "annotations", annotate_pages.annotation_list),
    ("GET", "annotations.jsonl", annotate_pages.annotations_file),
    ("GET", f"blobs/{HASH}.png", rollout_pages.blob),
)
"""The method, the pattern below `/ui/` and the function of each page. With `.json` appended, GET returns its data."""
_ROUTES = [(method, re.compile(pattern), function) for method, pattern, function in PAGES]
_NEXT = re.compile(r"[a-z]+(?:/[0-9A-Za-z_-]{1,64})?(?:\?[A-Za-z0-9._~%=&+-]*)?")
"""The paths to which a login may redirect. They are always pages of the viewer."""

HTML = (b"content-type", b"text/html; charset=utf-8")
COMMON: Headers = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
CONTENT = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class Viewer:
    """The ASGI application with the pages at `/ui`.

    Args:
        source: The source of the pages' data.
        keys: The valid API keys.
        title: The title in the bar at the top.
        hosts: Host names that requests may use, in addition to the server's bound address.
        clock: The clock of the sessions. Defaults to the system's clock.
        sessions: The logged-in sessions. Defaults to a new, empty `Sessions`.
        on_answer: A function that is called with the method and the status of each response.
    """

    def __init__(
        self,
        source: UiSource,
        keys: Keys,
        *,
        title: str,
        hosts: Sequence[str] = (),
        clock: Clock | None = None,
        sessions: Sessions | None = None,
        on_answer: Callable[[str, int], None] | None = None,
    ) -> None:
        self._source = source
        self._title = title
        self.sessions = sessions or Sessions(keys, clock)
        self._gate = UiGate(keys, self.sessions, hosts)
        self._on_answer = on_answer

    def login_link(self, url: str) -> str:
        """Return the address of the login page below `url`. If the operator has an API key, it contains a one-time code."""
        code = self.sessions.one_time_code()
        return f"{url}{UI}{LOGIN}" + ("" if code is None else f"?code={code}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Websockets are closed."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            answer = await self._answer(scope, receive)
        except ClientGone:
            return
        except Exception as error:
            answer = self._error(scope, error)
        if self._on_answer is not None:
            self._on_answer(scope["method"], answer.status)
        if scope["method"] == "HEAD":
            answer = _Headers(answer.status, b"", [*answer.headers, (b"content-length", b"%d" % len(answer.body))])
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> EncodedResponse:
        self._gate.check_site(scope)
        base, path = _split(scope)
        if path == LOGIN:
            return await self._login(scope, receive, base)
        caller = self._gate.caller(scope)
        if path == "":
            return redirect(f"{base}/")
        if path == "/logout":
            _require(scope, "POST")
            self.sessions.end(session_id(scope))
            return EncodedResponse(
                303, b"", [(b"location", f"{base}{LOGIN}".encode()), set_cookie(scope, "", base), *COMMON]
            )
        if path.startswith("/static/"):
            _require(scope, *SAFE)
            return _static(path.removeprefix("/static/"))
        if path == "/report" and self._source.report is not None:
            _require(scope, *SAFE)
            return _report(self._source.report.read_bytes())
        return await self._page(scope, receive, caller, base, path.removeprefix("/"))

    async def _page(self, scope: Scope, receive: Receive, caller: Caller, base: str, path: str) -> EncodedResponse:
        as_json = path.endswith(".json")
        method = "GET" if scope["method"] in SAFE else scope["method"]
        wanted = path.removesuffix(".json")
        found = [(verb, match, function) for verb, pattern, function in _ROUTES if (match := pattern.fullmatch(wanted))]
        if not found:
            raise not_found("page")
        chosen = next(((match, function) for verb, match, function in found if verb == method), None)
        if chosen is None:
            raise _wrong_method({verb for verb, _, _ in found})
        match, function = chosen
        form = await read_form(scope, receive, MAX_FORM_BYTES) if method == "POST" else {}
        request = PageRequest(self._source, caller, base, _api_url(scope, base), match.groupdict(), _query(scope), form)
        made = await function(request)
        if isinstance(made, EncodedResponse):
            made.headers = [*made.headers, *(item for item in COMMON if item[0] not in dict(made.headers))]
            return made
        # in a thread, because rendering a long page takes tenths of a second and would block the event loop
        if as_json:
            return await asyncio.to_thread(json_answer, made.data, headers=COMMON[2:])
        return await asyncio.to_thread(self._html, scope, made, caller, base)

    def _html(self, scope: Scope, made: Page, caller: Caller, base: str) -> EncodedResponse:
        text = render(
            made.template,
            **{
                **made.data,
                **made.view,
                "app_title": self._title,
                "title": made.title,
                "section": made.section,
                "base": base,
                "link": functools.partial(linked, base),
                "static": functools.partial(linked, f"{base}/static"),
                "version": _version(),
                "caller_label": caller.key_label,
                "with_cookie": bool(session_id(scope)),
                "source": self._source,
                "json_link": _json_link(scope),
            },
        )
        return EncodedResponse(
            200, text.encode("utf-8", "replace"), [HTML, (b"content-security-policy", CONTENT.encode()), *COMMON]
        )

    # -- login ----------------------------------------------------------------------------------------------------

    async def _login(self, scope: Scope, receive: Receive, base: str) -> EncodedResponse:
        _require(scope, *SAFE, "POST")
        query = _query(scope)
        if scope["method"] == "POST":
            form = await read_form(scope, receive, MAX_LOGIN_BYTES)
            return await self._logged_in(scope, form.get("key", ""), form.get("next", ""), base)
        if query.get("code") and scope["method"] == "GET":
            return await self._logged_in(scope, query["code"], query.get("next", ""), base)
        return _bare(render("login.html", base=base, title=self._title, wrong=False, next=_next(query.get("next", ""))))

    async def _logged_in(self, scope: Scope, given: str, wanted: str, base: str) -> EncodedResponse:
        session = await self.sessions.log_in(given.strip())
        if session is None:
            page = render("login.html", base=base, title=self._title, wrong=True, next=_next(wanted))
            return _bare(page, 401, [(b"www-authenticate", b'Bearer realm="taskapp"')])
        self.sessions.end(session_id(scope))  # end the browser's previous session
        # a page with a link, because browsers do not send a Strict cookie with a redirect that another site's link started
        page = render("logged_in.html", base=base, title=self._title, next=_next(wanted))
        return _bare(page, 200, [set_cookie(scope, session, base)])

    def _error(self, scope: Scope, error: Exception) -> EncodedResponse:
        """Return the error as a page if the client accepts HTML, and otherwise as JSON."""
        answer = error_answer(error, where=UI)
        accepts = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        if b"text/html" not in accepts or scope["path"].endswith(".json"):
            answer.headers = [*answer.headers, *(item for item in COMMON if item[0] not in dict(answer.headers))]
            return answer
        base, path = _split(scope)
        members = orjson.loads(answer.body)["detail"]["error"]
        more = [item for item in answer.headers if item[0] in (b"www-authenticate", b"retry-after", b"allow")]
        query = scope["query_string"].decode("latin-1")
        wanted = _next(path.removeprefix("/") + (f"?{query}" if query else ""))
        page = render("error.html", base=base, status=answer.status, error=members, next=wanted, title=self._title)
        return _bare(page, answer.status, more)


class UiMount:
    """An ASGI application that routes `/ui` and all paths below it to the viewer, and all other paths to `app`.

    The app's checks of CORS and API keys do not apply to the viewer.
    """

    def __init__(self, viewer: Viewer, app: ASGIApp) -> None:
        self._viewer = viewer
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request, websocket or lifespan to the viewer or the app."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        here = scope["type"] != "lifespan" and (path == UI or path.startswith(f"{UI}/"))
        await (self._viewer if here else self._app)(scope, receive, send)


class _Headers(EncodedResponse):
    """The response to a HEAD request. Its content length is the length of the body that GET would return."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": b""})


def _split(scope: Scope) -> tuple[str, str]:
    """Split the path into the viewer's path, which includes the application's root path, and the rest."""
    root = scope.get("root_path", "")
    return root + UI, scope["path"].removeprefix(root).removeprefix(UI)


def _api_url(scope: Scope, base: str) -> str:
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return f"{scope['scheme']}://{host}{base.removesuffix(UI)}"


def _query(scope: Scope) -> dict[str, str]:
    raw = scope["query_string"]
    if len(raw) > MAX_QUERY_BYTES:
        raise RequestError("The query string is too long.", code="invalid_query")
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=64))
    except ValueError:
        raise RequestError("The query string cannot be parsed.", code="invalid_query") from None


def _next(wanted: str) -> str:
    return wanted if _NEXT.fullmatch(wanted) else ""


def _json_link(scope: Scope) -> str:
    path = scope["path"] if not scope["path"].endswith("/") else scope["path"] + "runs"
    query = scope["query_string"].decode("latin-1")
    return f"{path}.json" + (f"?{query}" if query else "")


def _require(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise _wrong_method(set(methods))


def _wrong_method(allowed: set[str]) -> RequestRefused:
    names = ", ".join(sorted(allowed))
    return RequestRefused(
        "method_not_allowed",
        "This page does not support this method.",
        hint=f"Use {names}.",
        headers=[(b"allow", names.encode())],
    )


def _static(name: str) -> EncodedResponse:
    if name not in STATIC:
        raise not_found("file")
    data = (FOLDER / "static" / name).read_bytes()
    headers = [(b"content-type", STATIC[name]), *COMMON[1:], (b"cache-control", b"private, max-age=3600")]
    return EncodedResponse(200, data, headers)


@functools.cache
def _version() -> str:
    """Return a hash of the static files. Their addresses contain it, so that browsers do not use old files."""
    return hashlib.sha256(b"".join((FOLDER / "static" / name).read_bytes() for name in STATIC)).hexdigest()[:12]


def _bare(page: str, status: int = 200, more: Headers | None = None) -> EncodedResponse:
    """Return a page that needs no session. Its Content-Security-Policy allows only the style sheet, by hash."""
    policy = CONTENT.replace("'self'", f"'{style_hash()}'", 1).replace(
        "script-src 'self'; img-src 'self'", "img-src data:"
    )
    headers = [
        HTML,
        (b"content-security-policy", policy.encode()),
        *COMMON,
        *(more or []),
    ]
    return EncodedResponse(status, page.encode("utf-8", "replace"), headers)


def _report(data: bytes) -> EncodedResponse:
    """Return an evaluation's `report.html`. It may come from another user, so its Content-Security-Policy is strict.

    `sandbox` disables scripts and forms and gives the report a separate origin, so it cannot send requests as the viewer.
    """
    policy = (
        b"sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    )
    policy += b"frame-ancestors 'none'"
    return EncodedResponse(200, data, [HTML, (b"content-security-policy", policy), *COMMON])

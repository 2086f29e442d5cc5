"""What a site's answers become: pages with a policy, redirects by a page of their own, forms read, assets."""

from __future__ import annotations

import re

import pytest

from environments.web.browser import Browser
from environments.web.replies import LEAVING_POLICY, PAGE_POLICY, SiteHandler, asset
from environments.web.sites.site import Page, Request
from environments.web.window import Window

ORIGIN = "https://site.test"


class Recorder:
    """A site that keeps its requests and answers with one page."""

    origin = ORIGIN

    def __init__(self, page: Page | None = None) -> None:
        self.page = page or Page("<h1>Here</h1>")
        self.seen: list[Request] = []

    def handle(self, request: Request) -> Page:
        self.seen.append(request)
        return self.page if request.path == "/" else Page("<h1>Other</h1>")

    def record(self) -> dict[str, object]:
        return {}


def asked(url: str, body: str = "", method: str = "GET") -> Request:
    site = Recorder()
    SiteHandler(site)(method, ORIGIN + url, body)
    [request] = site.seen
    return request


def test_a_page_is_sent_as_it_is_with_its_status_and_no_script_allowed() -> None:
    reply = SiteHandler(Recorder(Page("<p>é</p>", 404)))("GET", ORIGIN + "/", "")
    assert (reply.body, reply.status, reply.policy) == ("<p>é</p>".encode(), 404, PAGE_POLICY)
    assert reply.content_type == "text/html; charset=utf-8"
    assert "script" not in PAGE_POLICY


def test_queries_and_forms_are_read() -> None:
    assert asked("/find?q=a%20b+c&empty=&q=last").query == {"q": "last", "empty": ""}
    request = asked("/save", "name=%C3%A9+x&tick=1&tick=2&empty=&%5B=%26", "POST")
    assert request.form == {"name": ("é x",), "tick": ("1", "2"), "empty": ("",), "[": ("&",)}
    assert (request.method, request.path) == ("POST", "/save")
    assert request.value("name") == "é x"
    assert request.value("tick") == "2"
    assert request.value("absent") == ""


@pytest.mark.parametrize("body", ["", "&&==&", "%", "%ZZ=%", "a", "=x", "a=%ff%fe", "\x00=\x00", "a=1;b=2"])
def test_broken_forms_are_no_failure(body: str) -> None:
    assert isinstance(asked("/", body, "POST").form, dict)


def test_an_address_without_a_path_is_that_of_the_first_page() -> None:
    assert asked("").path == "/"


def test_only_known_assets_are_served(chromium_here: None) -> None:
    site = Recorder()
    handler = SiteHandler(site)
    style = handler("GET", ORIGIN + "/assets/site.css", "")
    assert (style.status, style.content_type) == (200, "text/css; charset=utf-8")
    for font in ("regular.otf", "bold.otf"):
        assert handler("GET", f"{ORIGIN}/assets/{font}", "").body[:4] == b"OTTO"
    for other in ("", "no.css", "../site.py", "site.css/", "..%2fsite.py"):
        assert handler("GET", f"{ORIGIN}/assets/{other}", "").status == 404
    assert asset("nothing").body == b""
    assert site.seen == []


def redirect(location: str) -> str:
    reply = SiteHandler(Recorder(Page(location=location)))("POST", ORIGIN + "/", "")
    assert (reply.status, reply.policy) == (200, LEAVING_POLICY)
    return reply.body.decode()


HOSTILE = [
    '/"); alert(1); ("',
    "/</script><script>alert(1)</script>",
    "/<!--<script>",
    '/\\";alert(1)//',
    "/\u2028alert(1)\n'`${1}",
    "/é?q=a%22&b=<>#ü",
    "/\U0001f600",
]


@pytest.mark.parametrize("location", HOSTILE)
def test_a_redirects_address_stays_inside_its_string(location: str) -> None:
    found = re.fullmatch(
        r'<!doctype html><title>…</title><script>location\.replace\("([^"<>]*)"\)</script>',
        redirect(location),
        re.DOTALL,
    )
    assert found is not None
    assert "\n" not in found[1]
    assert re.sub(r"\\u\{([0-9a-f]+)\}", lambda code: chr(int(code[1], 16)), found[1]) == ORIGIN + location


@pytest.mark.parametrize("location", HOSTILE)
def test_the_browser_goes_where_the_site_said_and_runs_nothing_else(browser: Browser, location: str) -> None:
    site = Recorder(Page(location=location))

    async def visit() -> tuple[str, str, Window]:
        opened = await browser.open(1, {ORIGIN: SiteHandler(site)}, ORIGIN + "/")
        window = opened.window
        await window.settle()
        found = (window.page.url, await window.look(), window)
        await opened.close()
        return found

    url, text, window = browser.run(visit())
    assert url.startswith(ORIGIN + "/")
    assert 'heading "Other"' in text
    assert "dialog" not in text
    assert window.refused == []
    assert [request.method for request in site.seen] == ["GET", "GET"]

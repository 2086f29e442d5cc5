"""No page reaches what is outside, and no two windows share anything.

Each probe is a page that tries one way out, to a port of its own of a canary. The pages allow themselves everything
(`OPEN_POLICY`), so it is the browser's walls that hold. The same pages in a browser without walls reach the canary.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.web import chromium
from environments.web.browser import Browser
from environments.web.replies import Reply
from taskapp_kit import InvalidAction
from taskapp_kit.client.blocking_portal import DaemonLoop
from tests.environments.web.canary import Canary
from tests.environments.web.pages import ORIGIN, PageWindow
from tests.environments.web.probes import PROBES, Probe
from tests.environments.web.visits import OPEN_POLICY, pages, script
from tests.waiting import until_async

pytestmark = [pytest.mark.process, pytest.mark.server, pytest.mark.usefixtures("chromium_here")]

SENTINEL = "sentinel-of-the-file"
NAMES = tuple(probe.name for probe in PROBES)


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    found = Canary(NAMES)
    yield found
    found.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files") / "canary.html"
    found.write_text(SENTINEL)
    return found


def filled(probe: Probe, canary: Canary, file: Path) -> Callable[[str], str]:
    """Puts a probe's addresses into a text."""
    port = str(canary.port(probe.name))
    return lambda text: text.replace("CANARY", f"127.0.0.1:{port}").replace("PORT", port).replace("FILE", file.as_uri())


def answering(probe: Probe, fill: Callable[[str], str]) -> Callable[[Any], Any]:
    """A route that answers with the probe's page and headers, which a Reply cannot have."""
    headers = {"content-type": probe.content_type, "content-security-policy": OPEN_POLICY, **probe.headers}

    async def answer(route: Any) -> None:
        if route.request.url.endswith("/worker.js"):
            body = fill("fetch('http://CANARY/', {mode: 'no-cors'}).catch(() => 0)")
            await route.fulfill(body=body, content_type="text/javascript")
        else:
            filled = {name: fill(value) for name, value in headers.items()}
            await route.fulfill(status=probe.status, headers=filled, body=fill(probe.body))

    return answer


@pytest.mark.parametrize("probe", PROBES, ids=NAMES)
def test_a_page_does_not_get_out(probe: Probe, browser: Browser, canary: Canary, file: Path) -> None:
    fill = filled(probe, canary, file)
    with PageWindow(browser, pages({"/": "<p>The start.</p>"})) as visit:
        page = visit._window.page

        async def go() -> None:
            from playwright.async_api import Error

            await page.context.route(ORIGIN + "/probe**", answering(probe, fill))
            await page.context.route(ORIGIN + "/worker.js", answering(probe, fill))
            with contextlib.suppress(Error):  # the page goes elsewhere, or the answer is no page
                await page.goto(ORIGIN + "/probe", timeout=10_000)
            await visit._window.settle()

        browser.run(go())
        seen = str(visit.noop().observation)
        if probe.act != "nothing":
            seen += str(visit.click(1, "middle" if probe.act == "middle click" else "left").observation)
        assert SENTINEL not in seen
        assert visit._window.tabs == 1
        assert page.url.startswith((ORIGIN, "about:", "blob:" + ORIGIN, "chrome-error:"))
        assert str(visit.goto(ORIGIN + "/").observation).endswith("paragraph: The start.")
    assert canary.hits(probe.name) == []


def test_a_browser_without_walls_reaches_the_canary(chromium_here: None, file: Path) -> None:
    plain = Canary(NAMES)
    loop = DaemonLoop("no-walls")

    async def visit_all() -> None:
        from playwright.async_api import Error, async_playwright

        async with async_playwright() as driver:
            process = await driver.chromium.launch(
                executable_path=chromium.find(), chromium_sandbox=os.getuid() != 0, args=["--disable-gpu"]
            )
            for probe in PROBES:
                if not probe.plain:
                    continue
                context = await process.new_context()
                await context.route(ORIGIN + "/**", answering(probe, filled(probe, plain, file)))
                page = await context.new_page()
                try:
                    await page.goto(ORIGIN + "/probe", wait_until="commit")
                    if probe.act != "nothing":
                        button: Any = "middle" if probe.act == "middle click" else "left"
                        await page.locator("a, button").click(button=button)
                except Error:  # the page is at the canary already
                    pass
            reached = [probe.name for probe in PROBES if probe.plain]
            try:
                await until_async(lambda: all(map(plain.hits, reached)), 20, "each probe reaches the canary")
            finally:
                await process.close()

    try:
        loop.run(visit_all())
        assert [name for name in NAMES if not plain.hits(name)] == [probe.name for probe in PROBES if not probe.plain]
    finally:
        loop.stop()
        plain.close()


FOREIGN = (
    "http://127.0.0.1:80/", "https://example.test/", "http://page.test/", "https://page.test:444/", "https://page.test.evil/",
    "https://user@page.test/", "https://page.test@evil.test/", "https://page.test\\@evil.test/", "//page.test/", "/", "",
    "file:///etc/passwd", "FILE:///etc/passwd", "view-source:https://page.test/", "view-source:file:///etc/passwd",
    "data:text/html,hello", "javascript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)",
    "blob:https://page.test/1", "filesystem:https://page.test/temporary/x", "about:blank", "about:version",
    "chrome://version", "chrome://crash", "chrome://inducebrowsercrashforrealz", "devtools://devtools/bundled/inspector.html",
    "chrome-extension://abc/x", "ws://127.0.0.1/", "ftp://127.0.0.1/", "mailto:a@b.test", "intent://x", "https://[", "http://[::1",
    "https:page.test", "https:///page.test", "\x00", "https://p\u00e4ge.test/", "https://\ud800/",
)  # fmt: skip


def test_a_policy_opens_no_foreign_address(browser: Browser) -> None:
    with PageWindow(browser, pages({"/": "<p>The start.</p>"})) as visit:
        for url in FOREIGN:
            with pytest.raises(InvalidAction):
                visit.goto(url)
        assert "The start." in str(visit.noop().observation)


ODD = (
    "https://page.test/\x00",
    "https://page.test/\ud800",
    "HTTPS://page.test/%",
    "https://page.test/#\n",
    "https://page.test/bytes",
)


def test_an_odd_address_of_the_site_is_refused_or_opened_and_breaks_nothing(browser: Browser) -> None:
    served = pages({"/": "<p>The start.</p>", "/bytes": Reply(b"x", "application/octet-stream")})
    with PageWindow(browser, served) as visit:
        for url in ODD:
            with contextlib.suppress(InvalidAction):
                visit.goto(url)
        assert "The start." in str(visit.goto(ORIGIN + "/").observation)


KEEP = """(async () => {
  document.cookie = 'a=1'; localStorage.a = '1'; sessionStorage.a = '1';
  await (await caches.open('a')).put('/a', new Response('1'));
  await new Promise((done) => {
    const opening = indexedDB.open('a');
    opening.onupgradeneeded = () => opening.result.createObjectStore('a');
    opening.onsuccess = () => { opening.result.close(); done() };
  });
  await (await navigator.storage.getDirectory()).getFileHandle('a', {create: true});
  await navigator.locks.request('a', {ifAvailable: true}, (lock) => { if (lock) return new Promise(() => 0) }).catch(() => 0);
})()"""

KEPT = """(async () => {
  const files = [];
  for await (const name of (await navigator.storage.getDirectory()).keys()) files.push(name);
  return [document.cookie, localStorage.a ?? null, sessionStorage.a ?? null, await caches.keys(),
          (await indexedDB.databases()).map((found) => found.name), files, (await navigator.locks.query()).held.length];
})()"""


def test_two_windows_share_nothing(browser: Browser) -> None:
    served = pages({"/": script("new BroadcastChannel('a').onmessage = (event) => { document.title = event.data }")})
    with PageWindow(browser, served) as one, PageWindow(browser, served) as other:
        nothing = other.evaluate(KEPT)
        one.evaluate(KEEP.replace("await navigator.locks", "navigator.locks"))
        one.evaluate("new BroadcastChannel('a').postMessage('heard')")
        assert one.evaluate(KEPT) == ["a=1", "1", "1", ["a"], ["a"], ["a"], 1]
        assert other.evaluate(KEPT) == nothing == ["", None, None, [], [], [], 0]
        assert "Tab 0 (active): A page" in str(other.noop().observation)
    with PageWindow(browser, served) as later:
        assert later.evaluate(KEPT) == nothing


def test_nothing_gets_out_when_the_browser_has_ended(browser: Browser, canary: Canary) -> None:
    browser.close()
    assert {name: canary.hits(name) for name in NAMES if canary.hits(name)} == {}

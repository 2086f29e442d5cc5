"""What breaks: each failure ends its episode at the boundary `environment`, a policy's fault is refused, and what
comes next is well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from environments.web import browser as browsers
from environments.web.browser import Browser
from environments.web.memory import renderers
from environments.web.replies import Reply
from environments.web.window import PageFailed
from taskapp_kit import InvalidAction
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.testing import play
from tests.environments.web.broken_app import app
from tests.environments.web.pages import ORIGIN, PageWindow
from tests.environments.web.test_web_processes import family, lives
from tests.environments.web.visits import html, pages, script
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("chromium_here")]

WELL = pages({"/": "<p>All is well.</p>"})
ROOT = Path(__file__).resolve().parents[3]


def is_well(browser: Browser) -> bool:
    """A new episode can be begun and ended."""
    with PageWindow(browser, WELL) as visit:
        return "All is well." in visit.text and "All is well." in str(visit.noop().observation)


def chromiums() -> list[psutil.Process]:
    """The browsers' own processes, above those of their pages."""
    found = []
    for child in family(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(child.cmdline())
            if "--remote-debugging-pipe" in line and "--type=" not in line:
                found.append(child)
    return found


def the_chromium() -> psutil.Process:
    """That of this module's browser: tests before it may have used the one that episodes share."""
    return max(chromiums(), key=lambda process: process.create_time())


def the_driver() -> psutil.Process:
    """The node process between us and the Chromium."""
    return the_chromium().parents()[0]


# The browser and its processes


def test_a_page_whose_process_is_killed_fails_its_episode_alone(browser: Browser) -> None:
    with PageWindow(browser, WELL) as other:
        before = set(renderers(os.getpid()))
        with PageWindow(browser, WELL) as visit:
            for renderer in set(renderers(os.getpid())) - before:
                os.kill(renderer, signal.SIGKILL)
            with pytest.raises(PageFailed, match="crashed"):
                visit.noop()
            with pytest.raises(PageFailed, match="crashed"):
                visit.goto(ORIGIN + "/")
        assert "All is well." in str(other.noop().observation)
    assert is_well(browser)


@pytest.mark.parametrize("whose", [the_chromium, the_driver], ids=["browser", "driver"])
def test_a_browser_that_is_killed_is_replaced(whose: object, browser: Browser) -> None:
    with PageWindow(browser, WELL) as visit, PageWindow(browser, WELL) as other:
        killed = whose()  # type: ignore[operator]
        killed.kill()
        assert is_well(browser)  # at once, and while the windows of the other are open
        for broken in (visit, other):
            with pytest.raises(PageFailed):
                broken.noop()
    assert is_well(browser)
    until(lambda: not lives(killed), what="the process has ended")


def test_a_browser_is_replaced_after_its_episodes() -> None:
    browser = Browser(episodes_each=3)
    before = {process.pid for process in chromiums()}
    seen = set()
    try:
        with PageWindow(browser, WELL) as long:
            for _ in range(5):
                assert is_well(browser)
                seen |= {process.pid for process in chromiums()} - before
            assert "All is well." in str(long.noop().observation)  # it keeps its own until it ends
        assert len(seen) == 2
        until(lambda: len({process.pid for process in chromiums()} - before) == 1, what="the first one has ended")
    finally:
        browser.close()
        browser.close()
    assert {process.pid for process in chromiums()} <= before


def test_processes_and_memory_stay_as_they_are(browser: Browser) -> None:
    def size() -> tuple[int, int]:
        members = family(os.getpid())
        return len(members), sum(member.memory_info().rss for member in members)

    for _ in range(3):
        assert is_well(browser)
    until(lambda: not renderers(os.getpid()), what="the pages' processes have ended")
    count, resident = size()
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: is_well(browser), range(12)))
    until(lambda: not renderers(os.getpid()), what="the pages' processes have ended")
    until(lambda: size()[0] <= count, what="the browser has no more processes than before")
    assert size()[1] < resident + 60_000_000


def test_a_window_is_closed_twice(browser: Browser) -> None:
    with PageWindow(browser, WELL) as visit:
        opened = visit.opened
        assert opened is not None
        browser.run(opened.close())
        browser.run(opened.close())
    assert is_well(browser)


# Pages


def test_a_page_that_eats_memory_is_ended() -> None:
    browser = Browser(page_bytes=400_000_000)
    eats = (
        "const kept = []; for (let i = 0; i < 60; i++) kept.push(new Uint8Array(2 ** 24).fill(1)); window.kept = kept"
    )
    try:
        with (
            PageWindow(browser, pages({"/": f"<button onclick='{eats}'>Eat</button>"})) as visit,
            pytest.raises(PageFailed),
        ):
            visit.click(1)
            until(lambda: visit.noop() is None, what="the page's process was ended")
        assert is_well(browser)
    finally:
        browser.close()


def test_an_endless_script_harms_no_other_window(browser: Browser) -> None:
    loops = pages({"/": '<button onclick="for (;;) {}">Go</button>'})
    with PageWindow(browser, WELL) as other, PageWindow(browser, loops) as visit, ThreadPoolExecutor(1) as threads:
        stuck = threads.submit(visit.click, 1)
        assert "All is well." in str(other.noop().observation)
        with pytest.raises(PageFailed, match="did not answer"):
            stuck.result()


@pytest.mark.parametrize(
    "way", ["loop at start", "loop at click", "dialogs at start", "dialogs at click", "site at start", "site at click"]
)
def test_an_episode_ends_at_its_boundary(way: str, chromium_here: None) -> None:
    with pytest.raises(RolloutFailed) as failed:
        play(app, seed=0, config={"way": way}, policy="clicks")
    assert failed.value.boundary == "environment"
    expected = {"loop": "PageFailed", "dialogs": "dialogs", "site": "no such shelf"}[way.split(maxsplit=1)[0]]
    assert expected in f"{failed.value} {failed.value.__cause__!r}"
    assert play(app, seed=0, policy="clicks").reward == 1.0


@pytest.fixture(scope="module", autouse=True)
def _the_shared_browser_ends() -> Iterator[None]:
    yield
    browsers.shared().close()
    browsers._browsers.clear()


def test_a_page_is_left_although_it_asks_not_to(browser: Browser) -> None:
    keeps = html("<button>Go</button>" + script("addEventListener('beforeunload', (event) => event.preventDefault())"))
    with PageWindow(browser, pages({"/": keeps, "/next": "<p>The next.</p>"})) as visit:
        visit.click(1)  # without it, the browser does not ask
        assert "The next." in str(visit.goto(ORIGIN + "/next").observation)


def test_dialog_is_dismissed_and_reported(browser: Browser) -> None:
    asks = '<button onclick="document.title = String(confirm(`Sure?`)) + prompt(`Who?`)">Go</button>'
    with PageWindow(browser, pages({"/": asks})) as visit:
        for _ in range(15):  # more than a page may show at once
            seen = str(visit.click(1).observation)
            assert "Sure?" in seen and "Who?" in seen and "(active): falsenull" in seen


def test_windows_that_a_page_opens_are_closed(browser: Browser) -> None:
    opens = '<button onclick="for (let i = 0; i < 3; i++) window.open(`/next`)">Go</button>'
    with PageWindow(browser, pages({"/": opens, "/next": "<p>The next.</p>"})) as visit:
        seen = str(visit.click(1).observation)
        assert "Tab 1" not in seen
        context = visit._window.page.context
        until(lambda: len(context.pages) == 1, what="the windows are closed")
        assert "A window that the page opened was closed." in seen + str(visit.noop().observation)
        assert "Tab 1 (active)" in str(visit.new_tab().observation)


def test_a_timer_of_the_page_may_fail(browser: Browser) -> None:
    fails = "<p>All is well.</p><script>setInterval(() => { throw new Error('a timer') }, 100)</script>"
    with PageWindow(browser, pages({"/": fails})) as visit:
        assert "All is well." in str(visit.noop().observation)


def test_requests_without_end_do_not_hold_an_episode_up(browser: Browser) -> None:
    asks = script("(function again() { fetch('/' + Math.random()).finally(again) })(); new EventSource('/events')")
    with PageWindow(browser, pages({"/": asks})) as visit:
        assert "A page." in visit.text


def test_undecodable_bytes_are_sent_to_a_site(browser: Browser) -> None:
    sends = (
        "fetch('/', {method: 'POST', body: new Uint8Array([255, 254])}).then((found) => document.title = found.status)"
    )
    with PageWindow(browser, pages({"/": script(sends)})) as visit:
        assert "(active): 200" in str(visit.noop().observation)


# The policy's own faults


def test_file_that_is_not_a_page_is_rejected(browser: Browser) -> None:
    with PageWindow(browser, pages({"/": "<p>All is well.</p>", "/font": Reply(b"x", "font/otf")})) as visit:
        with pytest.raises(InvalidAction):
            visit.goto(ORIGIN + "/font")
        assert "All is well." in str(visit.goto(ORIGIN + "/").observation)


# What is missing


def test_a_missing_browser_or_package_is_named(tmp_path: Path, chromium_here: None) -> None:
    play_one = (
        "from environments.web.browser import shared\n"
        "from taskapp_kit.errors import Unavailable\n"
        "try:\n    shared().version()\nexcept Unavailable as error:\n    print(error)\n"
    )

    def printed(before: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", before + play_one],
            cwd=ROOT,
            check=False,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "TASKAPP_CHROMIUM" in printed("", TASKAPP_CHROMIUM=str(tmp_path / "none"))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no library >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "could not be started" in printed("", TASKAPP_CHROMIUM=str(broken))
    without = "import sys; sys.modules['playwright'] = sys.modules['playwright.async_api'] = None\n"
    assert "taskapp-kit[web]" in printed(without)

"""The browser of this process: one thread with an event loop, one driver and one Chromium, with a context per episode."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.errors import Unavailable

from . import chromium
from .memory import LIMIT_BYTES, watch_memory
from .replies import Handler
from .window import HEIGHT, WIDTH, PageFailed, Window

if TYPE_CHECKING:
    from playwright.async_api import Browser as Process
    from playwright.async_api import BrowserContext, Playwright

Result = TypeVar("Result")

AT_ONCE = 4
"""How many episodes use the browser concurrently. The others wait, because more would be slower on two cores."""
EPISODES_EACH = 500
"""After how many episodes a browser is replaced, when the last of them has ended. Its memory grows slowly."""

CONTEXT: Mapping[str, Any] = {
    "viewport": {"width": WIDTH, "height": HEIGHT},
    "device_scale_factor": 1,
    "locale": "en-US",
    "timezone_id": "UTC",
    "color_scheme": "light",
    "reduced_motion": "reduce",
    "service_workers": "block",
    "accept_downloads": False,
}


class Browser:
    """Opens windows for episodes. Methods may be called from any thread; they block."""

    def __init__(self, episodes_each: int = EPISODES_EACH, page_bytes: int = LIMIT_BYTES) -> None:
        """page_bytes: resident memory that a page's process may have."""
        self._page_bytes = page_bytes
        self._loop = DaemonLoop("web-browser")
        self._episodes_each = episodes_each
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()
        self._driver: Playwright | None = None
        self._running: Running | None = None
        self._closing = threading.Lock()
        self._closed = False

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of work on windows, in its turn."""
        return self._loop.run(self._in_turn(work))

    async def _in_turn(self, work: Coroutine[Any, Any, Result]) -> Result:
        async with self._turns:
            return await work

    def version(self) -> str:
        """Return the browser's version, such as "156.0.8078.79"; starts it if it does not run."""
        return self._loop.run(self._version())

    async def _version(self) -> str:
        return (await self._process()).versions["chromium"]

    async def open(self, seed: int, origins: Mapping[str, Handler], url: str, number_all: bool = False) -> OpenWindow:
        """Return a new window on a site, in a context that shares nothing with others. Raises Unavailable, PageFailed."""
        running, context = await self._context()
        opened = OpenWindow(self, running, Window(context, origins, number_all))
        try:
            await opened.window.open(seed, url)
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _context(self) -> tuple[Running, BrowserContext]:
        """Return an empty context, of a new Chromium if the previous one turns out to be gone."""
        while True:
            running = await self._process()
            from playwright.async_api import Error  # after _process, which reports a missing extra

            first = running.episodes == 0
            running.episodes += 1
            running.open += 1
            try:
                return running, await asyncio.wait_for(running.process.new_context(**CONTEXT), 20)
            except BaseException as error:
                running.gone = isinstance(error, Error)
                await self._left(running)
                if isinstance(error, TimeoutError) or (first and running.gone):
                    raise PageFailed(f"the browser opened no window: {error}") from error
                if not running.gone:
                    raise

    async def _process(self) -> Running:
        """Return the Chromium that runs, or a new one where it is gone or has had its number of episodes."""
        async with self._starting:
            running = self._running
            if running is not None and running.usable and running.episodes < self._episodes_each:
                return running
            if running is not None:
                self._running = None
                if running.open == 0:
                    await running.end()
            self._running = running = Running(await self._launched())
            running.watch = asyncio.create_task(watch_memory(self._page_bytes))
            return running

    async def _launched(self) -> Process:
        while True:
            new = self._driver is None
            if self._driver is None:
                self._driver = await _playwright()
            program = chromium.find(playwrights=self._driver.chromium.executable_path)
            try:
                return await self._driver.chromium.launch(
                    executable_path=program,
                    chromium_sandbox=os.getuid() != 0,  # as root, Chromium does not start with its own sandbox
                    args=list(chromium.ARGUMENTS),
                )
            except Exception as error:  # a killed driver can raise any exception
                if new:
                    raise Unavailable(f"{program} could not be started: {str(error)[:1000]}") from error
                self._driver = None

    async def _left(self, running: Running) -> None:
        running.open -= 1
        if running.open == 0 and running is not self._running:
            await running.end()

    def close(self) -> None:
        """End the Chromium, the driver and the thread, once."""
        with self._closing:
            closed, self._closed = self._closed, True
        if not closed:
            self._loop.run(self._end())
            self._loop.stop()

    async def _end(self) -> None:
        if self._running is not None:
            await self._running.end()
        if self._driver is not None:
            await self._driver.stop()


class Running:
    """One Chromium: how many episodes it has had, and how many windows are open."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.versions = {"chromium": str(process.version), "playwright": metadata.version("playwright")}
        self.episodes = 0
        self.open = 0
        self.gone = False
        self.watch: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """As far as is known: a Chromium that was killed seems connected for half a second."""
        return not self.gone and self.process.is_connected()

    async def end(self) -> None:
        """Close it, unless it was killed."""
        from playwright.async_api import Error

        if self.watch is not None:
            self.watch.cancel()
        try:
            await asyncio.wait_for(self.process.close(), 10)
        except (Error, TimeoutError):
            return


class OpenWindow:
    """A window with the browser that it belongs to."""

    def __init__(self, browser: Browser, running: Running, window: Window) -> None:
        self._browser = browser
        self._running: Running | None = running
        self.window = window
        self.versions = running.versions
        """The versions of browser and playwright. The same versions produce the same images and trees."""

    async def close(self) -> None:
        """Close it, once; the browser's last window takes a replaced browser with it."""
        running, self._running = self._running, None
        if running is None:
            return
        await self.window.close()
        await self._browser._left(running)


async def _playwright() -> Playwright:
    try:
        from playwright.async_api import async_playwright
    except ImportError as error:
        raise Unavailable(
            "environment 'web' needs the package playwright, which is not installed here; install the extra that has "
            "it: pip install 'taskapp-kit[web]'."
        ) from error
    return await async_playwright().start()


_lock = threading.Lock()
_browsers: dict[int, Browser] = {}


def shared() -> Browser:
    """Return the browser of this process. A forked process gets a separate browser."""
    with _lock:
        if (found := _browsers.get(os.getpid())) is None:
            _browsers.clear()
            found = _browsers[os.getpid()] = Browser()
        return found

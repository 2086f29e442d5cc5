"""The browser of this process: one thread with an event loop, one driver, one Chromium; a context for each episode."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.adapters.daemon_loop import DaemonLoop
from taskapp_kit.errors import Unavailable

from . import chromium
from .memory import watch_memory
from .replies import Handler
from .window import HEIGHT, WIDTH, PageFailed, Window

if TYPE_CHECKING:
    from playwright.async_api import Browser as Process
    from playwright.async_api import Playwright

Result = TypeVar("Result")

AT_ONCE = 4
"""How many episodes use the browser at one moment; others wait their turn. More are slower on two cores."""
EPISODES_EACH = 500
"""A browser that has had this many episodes is replaced once they have ended: its memory grows slowly."""


class Browser:
    """Opens windows for episodes. Methods may be called from any thread; they block."""

    def __init__(self, episodes_each: int = EPISODES_EACH) -> None:
        self._loop = DaemonLoop("web-browser")
        self._episodes_each = episodes_each
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()
        self._driver: Playwright | None = None
        self._running: Running | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work on windows, in its turn."""
        return self._loop.run(self._in_turn(work))

    async def _in_turn(self, work: Coroutine[Any, Any, Result]) -> Result:
        async with self._turns:
            return await work

    def version(self) -> str:
        """The browser's version, such as "156.0.8078.79"; starts it if it does not run."""
        return self._loop.run(self._version())

    async def _version(self) -> str:
        return str((await self._process()).process.version)

    async def open(self, seed: int, origins: Mapping[str, Handler], url: str, number_all: bool = False) -> OpenWindow:
        """A new window on a site, in a context that shares nothing with others. Raises Unavailable, PageFailed."""
        from playwright.async_api import Error

        running = await self._process()
        running.episodes += 1
        running.open += 1
        try:
            context = await asyncio.wait_for(
                running.process.new_context(
                    viewport={"width": WIDTH, "height": HEIGHT},
                    device_scale_factor=1,
                    locale="en-US",
                    timezone_id="UTC",
                    color_scheme="light",
                    reduced_motion="reduce",
                    service_workers="block",
                    accept_downloads=False,
                ),
                20,
            )
        except (Error, TimeoutError) as error:
            await self._left(running)
            raise PageFailed(f"the browser opened no window: {error}") from error
        opened = OpenWindow(self, running, Window(context, origins, number_all))
        try:
            await opened.window.open(seed, url)
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _process(self) -> Running:
        """The Chromium that runs, or a new one where it is gone or has had its number of episodes."""
        from playwright.async_api import Error

        async with self._starting:
            running = self._running
            if running is not None and running.process.is_connected() and running.episodes < self._episodes_each:
                return running
            if running is not None:
                self._running = None
                if running.open == 0:
                    await running.end()
            if self._driver is None:
                self._driver = await _playwright()
            program = chromium.find(playwrights=self._driver.chromium.executable_path)
            try:
                process = await self._driver.chromium.launch(
                    executable_path=program,
                    chromium_sandbox=os.getuid() != 0,  # Chromium refuses its own sandbox for root
                    args=list(chromium.ARGUMENTS),
                )
            except Error as error:
                raise Unavailable(f"{program} could not be started: {str(error)[:1000]}") from error
            self._running = running = Running(process)
            running.watch = asyncio.create_task(watch_memory())
            return running

    async def _left(self, running: Running) -> None:
        running.open -= 1
        if running.open == 0 and running is not self._running:
            await running.end()

    def close(self) -> None:
        """Ends the Chromium, the driver and the thread."""
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
        self.episodes = 0
        self.open = 0
        self.watch: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Closes it; one that was killed is closed already."""
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

    async def close(self) -> None:
        """Closes it, once; the browser's last window takes a replaced browser with it."""
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
    """The browser of this process; a forked process has one of its own."""
    with _lock:
        if (found := _browsers.get(os.getpid())) is None:
            _browsers.clear()
            found = _browsers[os.getpid()] = Browser()
        return found

"""The window of an episode: a separate browser context. Functions in this process create its pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from taskapp_kit import InvalidAction

from .replies import Handler
from .tree import Control, PageText, page_text

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, FloatRect, Page, Request, Route, WebSocketRoute

Result = TypeVar("Result")

WIDTH, HEIGHT = 640, 480
ACTION_SECONDS = 3.0
"""How long the browser tries to carry out an action on an element."""
PAGE_SECONDS = 10.0
"""How long a page may take for anything else. A page that takes longer hangs."""
SETTLE_FRAMES = 100
SETTLE_CLOCK_MS = 500
MAX_TABS = 8
MAX_DIALOGS = 20
"""How many dialogs a page may show in one step. If it shows more, the episode fails."""
MAX_REFUSED = 100
STARTED_AT = 1_750_000_000_000
"""Where the pages' clock starts, in ms since 1970. Only actions advance it, each by SETTLE_CLOCK_MS."""

_START = (Path(__file__).parent / "page_start.js").read_text()
_NEXT_FRAME = "window.__nextFrame ? window.__nextFrame() : {leaving: false, said: []}"
_CLOCK = (Path(__file__).parent / "page_clock.js").read_text().replace("STARTED_AT", str(STARTED_AT))


class PageFailed(RuntimeError):
    """The browser, not the policy, is at fault: the page crashed, hangs, or could not be served."""


class Window:
    """The tabs of one episode. All methods run on the browser's event loop."""

    def __init__(self, context: BrowserContext, origins: Mapping[str, Handler], number_all: bool) -> None:
        self._context = context
        self._origins = origins
        self._number_all = number_all
        self._tabs: list[Page] = []
        self._active = 0
        self._opening = False
        self._requests: set[Request] = set()
        self._shown: dict[int, Control] = {}
        self._notes: list[str] = []
        self._dialogs = 0
        self._failed: PageFailed | None = None
        self.refused: list[str] = []
        """Addresses that pages requested, but that this process does not serve."""

    async def open(self, seed: int, url: str) -> None:
        """Prepare the context (the same seed gives pages the same random numbers) and opens the first page."""
        context = self._context
        await context.add_init_script(_START.replace("SEED", str(seed & 0xFFFFFFFF)))
        await context.clock.install(time=STARTED_AT / 1000)
        await context.clock.pause_at(STARTED_AT / 1000 + 1)
        await context.add_init_script(_CLOCK)
        await context.route("**/*", self._answer)
        await context.route_web_socket("**/*", _close_socket)
        context.on("page", self._appeared)
        context.on("dialog", self._dialog)
        context.on("request", self._asked)
        context.on("requestfinished", self._loaded_one)
        context.on("requestfailed", self._loaded_one)
        await self.new_tab()
        await self.within(self.page.goto(url))

    async def close(self) -> None:
        """End the context. A browser that is gone is closed already."""
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(self._context.close(), PAGE_SECONDS)
        except (Error, TimeoutError):
            return

    # Responses to the pages' requests

    async def _answer(self, route: Route, request: Request) -> None:
        handler = self._origins.get(_origin(request.url))
        if handler is None:
            if len(self.refused) < MAX_REFUSED:
                self.refused.append(request.url[:200])
            await _if_open(route.abort())
            return
        try:
            reply = handler(request.method, request.url, (request.post_data_buffer or b"").decode(errors="replace"))
        except Exception as error:
            self._failed = PageFailed(f"the site's own code failed at {request.method} {request.url[:200]}: {error!r}")
            self._failed.__cause__ = error
            await _if_open(route.abort())
            return
        headers = {
            "content-type": reply.content_type,
            "content-security-policy": reply.policy,
            "cache-control": "no-store",
        }
        await _if_open(route.fulfill(status=reply.status, headers=headers, body=reply.body))

    def _asked(self, request: Request) -> None:
        self._requests.add(request)

    def _loaded_one(self, request: Request) -> None:
        self._requests.discard(request)

    async def _appeared(self, page: Page) -> None:
        if self._opening:
            return
        self._notes.append("A window that the page opened was closed.")
        await _if_open(page.close())

    async def _dialog(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":  # a page must not prevent the policy from leaving the page
            await _if_open(dialog.accept())
            return
        self._dialogs += 1
        await _if_open(dialog.dismiss())
        if self._dialogs <= MAX_DIALOGS:
            self._notes.append(f"The page showed a dialog, which was dismissed: {dialog.message[:200]}")
        elif self._failed is None:
            self._failed = PageFailed(f"the page showed more than {MAX_DIALOGS} dialogs in one step")
            await _if_open(self.page.close())  # otherwise endless dialogs would block everything

    # Tabs

    @property
    def page(self) -> Page:
        """The active tab."""
        return self._tabs[self._active]

    @property
    def tabs(self) -> int:
        """How many tabs are open."""
        return len(self._tabs)

    async def new_tab(self) -> None:
        """Open an empty tab and makes it the active one."""
        if len(self._tabs) >= MAX_TABS:
            raise InvalidAction(f"There are {MAX_TABS} tabs already; close one first.")
        self._opening = True
        try:
            page = await self.within(self._context.new_page())
        finally:
            self._opening = False
        page.on("crash", self._crashed)
        page.on("download", lambda download: download.cancel())
        self._tabs.append(page)
        self._active = len(self._tabs) - 1
        for other in self._context.pages:  # pages may have opened windows in the meantime
            if other not in self._tabs:
                await self._appeared(other)

    async def close_tab(self) -> None:
        """Close the active tab; the one before it becomes active, or a new one if it was the last."""
        page = self._tabs.pop(self._active)
        await self.within(page.close())
        self._requests.clear()  # the end of the closed page's pending requests is never reported
        self._active = max(0, self._active - 1)
        if not self._tabs:
            await self.new_tab()

    async def focus_tab(self, index: int) -> None:
        """Make a tab the active one."""
        if not 0 <= index < len(self._tabs):
            raise InvalidAction(f"There is no tab {index}; the tabs are 0 to {len(self._tabs) - 1}.")
        self._active = index
        await self.within(self.page.bring_to_front())

    async def goto(self, url: str) -> None:
        """Open an address of the sites that are served here. Any other is refused, and what is not a page (a font)."""
        if _origin(url) not in self._origins:
            raise InvalidAction(f"{url[:200]} cannot be opened here; open pages of {', '.join(sorted(self._origins))}.")
        await self.acted(self.page.goto(url), f"opening {url[:200]}", PAGE_SECONDS)

    def _crashed(self, page: Page) -> None:
        self._failed = PageFailed("the page crashed (its process ended)")

    # Acting and looking

    def control(self, bid: int) -> Control:
        """Return the element of a number in the last observation. Raises InvalidAction, which names the nearest numbers."""
        if (found := self._shown.get(bid)) is not None:
            return found
        near = sorted(self._shown, key=lambda number: (abs(number - bid), number))[:3]
        listed = ", ".join(f"[{number}] {self._shown[number]}" for number in sorted(near))
        raise InvalidAction(f"The page has no element [{bid}]." + (f" The nearest are {listed}." if near else ""))

    async def within(self, awaitable: Awaitable[Result], seconds: float = PAGE_SECONDS) -> Result:
        """Await something of the page. Raises PageFailed if it takes too long or the page is gone."""
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(awaitable, seconds)
        except TimeoutError as error:
            raise self._failed or PageFailed(f"the page did not answer within {seconds:g} s") from error
        except Error as error:
            raise self._failed or PageFailed(f"the browser failed: {_first_line(error)}") from error

    async def acted(self, action: Awaitable[Any], what: str, seconds: float = ACTION_SECONDS + 2) -> None:
        """Await an action of playwright's. Raises InvalidAction if the page is well but does not allow it."""
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(action, seconds)
        except (Error, TimeoutError) as error:
            if self._failed is not None:
                raise self._failed from error
            if not await self._stays() or _was_done(error):
                return  # the page is still changing, and `settle` waits for that
            # without a reason, the machine is too slow, which is not the policy's fault
            if (reason := _reason(error)) is None:
                raise PageFailed(f"{what} did not happen within {seconds:g} s") from error
            raise InvalidAction(f"{what} was not possible: {reason}") from error

    async def _stays(self) -> bool:
        """Return the page is well, and does not go to another one just now. Raises PageFailed if it hangs."""
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(self.page.evaluate("1"), 2.0)
        except TimeoutError as error:
            raise self._failed or PageFailed("the page did not answer within 2 s") from error
        except Error as error:
            if self._failed is not None or "context was destroyed" not in str(error):
                raise self._failed or PageFailed(f"the browser failed: {_first_line(error)}") from error
            return False
        return True

    async def settle(self) -> None:
        """Wait until nothing is being loaded, lets the page's clock run a little, and waits again."""
        await self._loaded()
        try:
            await self.within(self._context.clock.run_for(SETTLE_CLOCK_MS))
        except PageFailed as error:
            # the page's own timers can raise this error; if the page is gone, the next line raises PageFailed
            await self.within(self.page.evaluate("1"), 2.0)
            self._notes.append(f"A script of the page failed: {error}")
        await self._loaded()
        if self._failed is not None:
            raise self._failed

    async def _loaded(self) -> None:
        from playwright.async_api import Error

        for _ in range(SETTLE_FRAMES):
            if self._failed is not None:
                raise self._failed
            try:
                await self.within(self.page.wait_for_load_state())
                state = await asyncio.wait_for(self.page.evaluate(_NEXT_FRAME), PAGE_SECONDS)
            except TimeoutError as error:
                raise self._failed or PageFailed(f"the page drew nothing for {PAGE_SECONDS:g} s") from error
            except Error as error:
                if self._failed is not None or self.page.is_closed():
                    raise self._failed or PageFailed("the page was closed") from error
                continue  # another page is loading
            self._notes += state["said"]
            if not self._requests and not state["leaving"]:
                return

    async def look(self) -> str:
        """Return the observation: tabs, what has the focus, what happened, and the page's tree."""
        if self.page.url == "about:blank":
            shown = PageText("", {}, None)
        else:
            shown = page_text(await self.within(self.page.aria_snapshot(mode="ai")), self._number_all)
        self._shown = shown.controls
        titles = [await self.within(tab.title()) for tab in self._tabs]
        lines = [
            f"Tab {index}{' (active)' if index == self._active else ''}: {title or 'Untitled'} {tab.url}"
            for index, (tab, title) in enumerate(zip(self._tabs, titles, strict=True))
        ]
        lines.append(f"Focused: {'none' if shown.focused is None else f'[{shown.focused}]'}")
        lines += [f"Note: {note}" for note in self._notes[:5]]
        self._notes.clear()
        self._dialogs = 0
        return "\n".join([*lines, "Page:", shown.text])

    async def picture(self, width: int = WIDTH, height: int = HEIGHT) -> bytes:
        """Return a PNG of the visible page, 640 × 480, or of its upper left part. Its pixels are the mouse's coordinates."""
        part: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
        return await self.within(self.page.screenshot(animations="disabled", caret="hide", scale="css", clip=part))


def _origin(url: str) -> str:
    """Return scheme, host and port, or "" for an invalid URL (such as brackets without an IPv6 address)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"


async def _if_open(awaitable: Awaitable[Any]) -> None:
    """Await an operation on a page, ignoring errors because the page may have been left or closed."""
    from playwright.async_api import Error

    with contextlib.suppress(Error):
        await awaitable


async def _close_socket(socket: WebSocketRoute) -> None:
    await socket.close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


_REASONS = (
    ("intercepts pointer events", "another element covers it"),
    ("not enabled", "it is disabled"),
    ("not editable", "it is read-only"),
    ("not visible", "it cannot be seen"),
    ("not stable", "it keeps moving"),
    ("outside of the viewport", "it is outside of what can be seen"),
    ("did not find some options", "it has no such option"),
    ("not an <input>", "it is not a field"),
    ("not a <select>", "it is not a drop-down list"),
    ("Unknown key", "there is no such key"),
)
_DONE = "performing "


def _was_done(error: BaseException) -> bool:
    """By playwright's log, the last try went through, and nothing stood in its way."""
    text = str(error)
    return text.rfind(_DONE) > max(text.rfind(words) for words, _ in _REASONS)


def _reason(error: BaseException) -> str | None:
    """Return what stood in the way, by playwright's log; None if nothing did and it only took too long."""
    text = str(error)
    for words, reason in _REASONS:
        if words in text:
            return reason
    if "imeout" not in text and text:
        return _first_line(error)
    gone = "waiting for locator" in text and "resolved to" not in text
    return "it is not there any more" if gone else None

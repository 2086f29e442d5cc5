"""The typed actions, with the names and parameters of BrowserGym. No action is ever executed as code."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from taskapp_kit import Image, InvalidAction, Step, Text, action

from .browser import Browser, OpenWindow
from .window import ACTION_SECONDS, HEIGHT, WIDTH, Window

Bid = Annotated[int, Field(ge=1, description="number of an element of the page, as in [12]")]
Words = Annotated[str, Field(max_length=5000)]
Key = Annotated[str, Field(max_length=40, description='such as "Enter", "Tab", "ArrowDown", "Control+a"')]
X = Annotated[float, Field(ge=0, le=WIDTH, description="pixels from the left")]
Y = Annotated[float, Field(ge=0, le=HEIGHT, description="pixels from the top")]
Button = Literal["left", "middle", "right"]

ActionName = Literal[
    "click", "dblclick", "hover", "fill", "select_option", "press", "focus", "clear", "drag_and_drop", "scroll",
    "keyboard_press", "keyboard_type", "mouse_move", "mouse_click", "mouse_dblclick", "mouse_drag_and_drop", "goto",
    "go_back", "go_forward", "new_tab", "tab_close", "tab_focus", "noop", "send_msg_to_user", "report_infeasible",
]  # fmt: skip
ACTIONS: tuple[ActionName, ...] = get_args(ActionName)

MODIFIERS = frozenset({"Alt", "Control", "ControlOrMeta", "Meta", "Shift"})

MILLISECONDS = ACTION_SECONDS * 1000


def _number(rng: random.Random) -> dict[str, Any]:
    return {"bid": rng.randint(1, 20)}


def _text(rng: random.Random) -> dict[str, Any]:
    return {"text": rng.choice(("Done.", "1", "yes", "I do not know."))}


class Acting:
    """The actions of a policy in a window. A subclass sets `self.opened`, and `_ended` returns whether the episode ended."""

    browser: Browser
    opened: OpenWindow | None = None
    screenshot = False
    _versions_sent = False

    # Elements

    @action(sample=_number)
    def click(self, bid: Bid, button: Button = "left") -> Step:
        """Click an element."""
        return self._on(bid, "click", lambda target: target.click(button=button, timeout=MILLISECONDS))

    @action(sample=_number)
    def dblclick(self, bid: Bid) -> Step:
        """Double-click an element."""
        return self._on(bid, "double click", lambda target: target.dblclick(timeout=MILLISECONDS))

    @action(sample=_number)
    def hover(self, bid: Bid) -> Step:
        """Move the mouse over an element."""
        return self._on(bid, "hovering", lambda target: target.hover(timeout=MILLISECONDS))

    @action(sample=lambda rng: {**_number(rng), "value": rng.choice(("a", "1", "tea"))})
    def fill(self, bid: Bid, value: Words) -> Step:
        """Replace the text of a field."""
        return self._on(bid, "filling", lambda target: target.fill(value, timeout=MILLISECONDS))

    @action(sample=lambda rng: {**_number(rng), "options": ["1"]})
    def select_option(self, bid: Bid, options: Annotated[list[Words], Field(min_length=1, max_length=50)]) -> Step:
        """Choose options of a drop-down list, by the words that it shows."""
        return self._on(bid, "choosing", lambda target: target.select_option(label=options, timeout=MILLISECONDS))

    @action(sample=lambda rng: {**_number(rng), "key_comb": rng.choice(("Enter", "Tab", "ArrowDown"))})
    def press(self, bid: Bid, key_comb: Key) -> Step:
        """Press a key or a combination of keys in an element."""

        def press(target: Any) -> Awaitable[None]:
            return _released(self._window, key_comb, target.press(key_comb, timeout=MILLISECONDS))

        return self._on(bid, "pressing a key", press)

    @action(sample=_number)
    def focus(self, bid: Bid) -> Step:
        """Give an element the focus."""
        return self._on(bid, "focusing", lambda target: target.focus(timeout=MILLISECONDS))

    @action(sample=_number)
    def clear(self, bid: Bid) -> Step:
        """Empty a field."""
        return self._on(bid, "emptying", lambda target: target.clear(timeout=MILLISECONDS))

    @action(sample=lambda rng: {"from_bid": rng.randint(1, 20), "to_bid": rng.randint(1, 20)})
    def drag_and_drop(self, from_bid: Bid, to_bid: Bid) -> Step:
        """Drag an element onto another."""
        window = self._window
        window.control(to_bid)
        target = window.page.locator(f"aria-ref={window.control(to_bid).ref}")
        return self._on(from_bid, "dragging", lambda source: source.drag_to(target, timeout=MILLISECONDS))

    # Keyboard and mouse

    @action(sample=lambda rng: {"delta_x": 0, "delta_y": rng.choice((-200, 200))})
    def scroll(
        self, delta_x: Annotated[float, Field(ge=-5000, le=5000)], delta_y: Annotated[float, Field(ge=-5000, le=5000)]
    ) -> Step:
        """Scroll by so many pixels; the text of the page always includes what is out of sight."""
        return self._at("scrolling", lambda window: window.page.mouse.wheel(delta_x, delta_y))

    @action(sample=lambda rng: {"key": rng.choice(("Enter", "Tab", "Escape"))})
    def keyboard_press(self, key: Key) -> Step:
        """Press a key or a combination of keys, wherever the focus is."""
        return self._at("pressing a key", lambda window: _released(window, key, window.page.keyboard.press(key)))

    @action(sample=lambda rng: {"text": rng.choice(("a", "1"))})
    def keyboard_type(self, text: Words) -> Step:
        """Type text, wherever the focus is."""
        return self._at("typing", lambda window: window.page.keyboard.type(text))

    @action
    def mouse_move(self, x: X, y: Y) -> Step:
        """Move the mouse to a place of the visible part."""
        return self._at("moving the mouse", lambda window: window.page.mouse.move(x, y))

    @action
    def mouse_click(self, x: X, y: Y, button: Button = "left") -> Step:
        """Click at a place of the visible part."""
        return self._at("clicking", lambda window: window.page.mouse.click(x, y, button=button))

    @action
    def mouse_dblclick(self, x: X, y: Y) -> Step:
        """Double-click at a place of the visible part."""
        return self._at("clicking", lambda window: window.page.mouse.dblclick(x, y))

    @action
    def mouse_drag_and_drop(self, from_x: X, from_y: Y, to_x: X, to_y: Y) -> Step:
        """Drag with the mouse from one place to another."""

        async def drag(window: Window) -> None:
            mouse = window.page.mouse
            await mouse.move(from_x, from_y)
            await mouse.down()
            await mouse.move(to_x, to_y, steps=5)
            await mouse.up()

        return self._at("dragging", drag)

    # Tabs and addresses

    @action(sample=lambda rng: {"url": "https://shop.test/"})
    def goto(self, url: Annotated[str, Field(max_length=2000)]) -> Step:
        """Open an address in the active tab."""
        return self._at(None, lambda window: window.goto(url))

    @action
    def go_back(self) -> Step:
        """Go to the page before."""
        return self._at("going back", lambda window: window.page.go_back(timeout=MILLISECONDS))

    @action
    def go_forward(self) -> Step:
        """Go to the page after."""
        return self._at("going forward", lambda window: window.page.go_forward(timeout=MILLISECONDS))

    @action
    def new_tab(self) -> Step:
        """Open an empty tab."""
        return self._at(None, lambda window: window.new_tab())

    @action
    def tab_close(self) -> Step:
        """Close the active tab."""
        return self._at(None, lambda window: window.close_tab())

    @action(sample=lambda rng: {"index": 0})
    def tab_focus(self, index: Annotated[int, Field(ge=0, le=100)]) -> Step:
        """Make another tab the active one."""
        return self._at(None, lambda window: window.focus_tab(index))

    @action(noop={})
    def noop(self) -> Step:
        """Do nothing, and look again."""
        return self._at(None, _nothing)

    # Ends

    @action(sample=_text)
    def send_msg_to_user(self, text: Words) -> Step:
        """Send the user a message: the answer, or that it is done. This ends the episode."""
        return Step("The message was sent.", terminated=True, info={"message": text, **self._versions_once()})

    @action(sample=lambda rng: {"reason": "it is not there"})
    def report_infeasible(self, reason: Words) -> Step:
        """Report that the task cannot be done, and why. This ends the episode."""
        return Step("The report was sent.", terminated=True, info={"infeasible": reason, **self._versions_once()})

    # How an action is carried out

    @property
    def _window(self) -> Window:
        assert self.opened is not None  # `reset` always runs before the first action
        return self.opened.window

    def _on(self, bid: int, what: str, act: Callable[[Any], Awaitable[Any]]) -> Step:
        """Return an action on an element. Raises InvalidAction for a number that is not on the page, or if it is disabled."""
        control = self._window.control(bid)
        if "disabled" in control.states:
            raise InvalidAction(f"[{bid}] {control} is disabled.")
        return self._at(
            f"{what} at [{bid}] {control}", lambda window: act(window.page.locator(f"aria-ref={control.ref}"))
        )

    def _at(self, what: str | None, act: Callable[[Window], Awaitable[Any]]) -> Step:
        """Return an action in the window. what: its name for a refusal; None where the action refuses by itself."""

        async def work() -> Step:
            window = self._window
            if what is None:
                await act(window)
            else:
                await window.acted(act(window), what)
            await window.settle()
            return await self._seen()

        return self.browser.run(work())

    async def _seen(self) -> Step:
        window = self._window
        return Step(await self._observation(window), terminated=await self._ended(), info=self._versions_once())

    def _versions_once(self) -> dict[str, str]:
        """With an episode's first step only: the browser's version and its driver's."""
        if self.opened is None or self._versions_sent:
            return {}
        self._versions_sent = True
        return self.opened.versions

    async def _observation(self, window: Window, before: str = "") -> str | list[Text | Image]:
        text = before + await window.look()
        return [Text(text), Image(await self._picture(window))] if self.screenshot else text

    async def _picture(self, window: Window) -> bytes:
        return await window.picture()

    async def _ended(self) -> bool:
        return False

    def close(self) -> None:
        """Close the window."""
        opened, self.opened = self.opened, None
        if opened is not None:
            self.browser.run(opened.close())


async def _released(window: Window, combination: str, press: Awaitable[None]) -> None:
    """Press, and lets go of Control and the like where the last key of a combination does not exist."""
    from playwright.async_api import Error

    try:
        await press
    except Error:
        for key in sorted(MODIFIERS.intersection(combination.split("+"))):
            await window.page.keyboard.up(key)
        raise


async def _nothing(window: Window) -> None:
    """No action at all: the page's clock moves as after any."""

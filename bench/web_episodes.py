"""Episodes in a real browser: ours, beside the same pages opened and clicked by playwright alone.

Ours settles, reads the page as numbered text and scores nothing here; the peer opens a context, clicks links of the same
pages and reads nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import TICKS_PER_SECOND, cpu_ticks_of_family
from bench.tables import Budget, Table, middle
from taskapp_kit.errors import Unavailable

AT_ONCE = (1, 2, 4)
STEPS = 8
EPISODES = 8
TASK = ("admin/edit", "medium")
OURS, SEEING, BARE = "text", "text and pictures", "bare playwright"
AIM = 1.05


@dataclass(frozen=True)
class Driven:
    """One run of episodes; CPU is of this process, the driver and the browser together."""

    cpu_seconds: float
    per_second: float


def missing() -> str:
    """What is not installed, as a sentence; empty where all is there."""
    from environments.web import chromium

    lacking = [name for name in ("playwright", "font_hanken_grotesk") if importlib.util.find_spec(name) is None]
    try:
        chromium.find()
    except Unavailable as error:
        return str(error)
    return f"{', '.join(lacking)} is not installed: pip install -e '.[web]'" if lacking else ""


def _task(number: int) -> Any:
    from environments.web.tasks import WebTask

    return WebTask(kind=TASK[0], difficulty=TASK[1], number=number, feasible=True, tags=[])


def ours(number: int, screenshot: bool) -> None:
    """One episode: reset, and clicks on the links of the site's head in turn."""
    from environments.web.app import Web
    from environments.web.view import View

    episode = Web(screenshot=screenshot)
    try:
        seen: Any = episode.reset(_task(number))
        for step in range(STEPS):
            view = View(seen if isinstance(seen, str) else "".join(part.text for part in seen[:-1]))
            link = view.all("link")[1 + step % 4]
            assert link.bid is not None
            seen = episode.click(bid=link.bid).observation
    finally:
        episode.close()


async def bare(browser: Any, number: int) -> None:
    """The same pages and clicks, with a context of playwright's defaults and nothing read."""
    from environments.web import tasks
    from environments.web.replies import SiteHandler

    site = tasks.problem(_task(number)).site
    handler = SiteHandler(site)

    async def answer(route: Any, request: Any) -> None:
        reply = handler(request.method, request.url, request.post_data or "")
        await route.fulfill(status=reply.status, headers={"content-type": reply.content_type}, body=reply.body)

    context = await browser.new_context(viewport={"width": 640, "height": 480})
    try:
        await context.route("**/*", answer)
        page = await context.new_page()
        await page.goto(site.origin + "/")
        for step in range(STEPS):
            await page.get_by_role("link").nth(1 + step % 4).click()
            await page.wait_for_load_state()
    finally:
        await context.close()


def _measured(play: Callable[[], None]) -> Driven:
    ticks, begun = cpu_ticks_of_family(os.getpid()), time.perf_counter()
    play()
    seconds = time.perf_counter() - begun
    return Driven((cpu_ticks_of_family(os.getpid()) - ticks) / TICKS_PER_SECOND / EPISODES, EPISODES / seconds)


def _play_ours(at_once: int, screenshot: bool) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda number: ours(number, screenshot), range(EPISODES)))


async def _with_bare(use: Callable[[Any], Awaitable[None]]) -> None:
    """A Chromium of the peer's own, with playwright's own flags."""
    from playwright.async_api import async_playwright

    from environments.web import chromium

    async with async_playwright() as driver:
        sandboxed = os.getuid() != 0
        browser = await driver.chromium.launch(executable_path=chromium.find(), chromium_sandbox=sandboxed)
        await use(browser)
        await browser.close()


async def _play_bare(browser: Any, at_once: int) -> None:
    turns = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with turns:
            await bare(browser, number)

    await asyncio.gather(*(one(number) for number in range(EPISODES)))


def measure(repetitions: int, _scratch: Path) -> Table:
    """Measures in turns, in one browser each; both stay open meanwhile."""
    from environments.web.browser import shared

    driven: dict[tuple[str, int], list[Driven]] = {}
    loads = [os.getloadavg()[0]]

    async def run(browser: Any) -> None:
        await asyncio.to_thread(_play_ours, 1, False)
        await _play_bare(browser, 1)
        for _ in range(repetitions):
            for at_once in AT_ONCE:
                for name, screenshot in ((OURS, False), (SEEING, True)):

                    def play(at_once: int = at_once, screenshot: bool = screenshot) -> None:
                        _play_ours(at_once, screenshot)

                    driven.setdefault((name, at_once), []).append(await asyncio.to_thread(_measured, play))
                ticks, begun = cpu_ticks_of_family(os.getpid()), time.perf_counter()
                await _play_bare(browser, at_once)
                seconds = time.perf_counter() - begun
                cpu = (cpu_ticks_of_family(os.getpid()) - ticks) / TICKS_PER_SECOND / EPISODES
                driven.setdefault((BARE, at_once), []).append(Driven(cpu, EPISODES / seconds))
        loads.append(os.getloadavg()[0])

    asyncio.run(_with_bare(run))
    shared().close()
    return table(driven, repetitions, max(loads))


def table(driven: dict[tuple[str, int], list[Driven]], repetitions: int, load: float) -> Table:
    """One row for each contender and number of contexts."""
    rows = []
    for name in (OURS, SEEING, BARE):
        for at_once in AT_ONCE:
            runs = driven[name, at_once]
            rows.append(
                [
                    f"{name}, {at_once}",
                    middle([run.per_second for run in runs]),
                    middle([run.cpu_seconds for run in runs]),
                ]
            )
    seen = median(run.per_second for run in driven[OURS, AT_ONCE[-1]])
    budget = Budget(f"{AT_ONCE[-1]} at once, text only: at least {AIM} episodes/s", f"{seen:.2f}", seen >= AIM)
    return Table(
        title="Episodes in a browser, beside playwright alone",
        header=["observation, contexts at once", "episodes/s", "CPU seconds an episode"],
        rows=rows,
        notes=[
            (
                f"Episodes of {STEPS} clicks on links of the site `admin`, a context each, opened and closed; {EPISODES} a "
                f"run, {repetitions} repetitions in turns: median (lowest to highest). CPU is of this process, the driver "
                "and the browser. Playwright alone clicks through the same pages, served by the same function, with its own "
                "flags; it fixes no clock, draws no picture, reads no page and does not wait for one to come to rest. "
                f"Highest load average at the run's begin and end: {load:.1f}."
            ),
            budget.sentence(),
        ],
    )

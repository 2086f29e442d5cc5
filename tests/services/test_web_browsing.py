"""`WebBrowsingEnv`: tasks in a real Chromium as a service; windows share a browser, whatever `num_replicas` says."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import psutil
import pytest

from environments.web import chromium, tasks
from environments.web.view import View
from taskapp_kit.errors import BadArgument, ServiceError, Unavailable
from taskapp_kit.services import WebBrowsingEnv
from tests.environments.web.miniwob.episodes import needs_pages
from tests.services.backends import BACKENDS
from tests.waiting import until_async

WINDOWS = 8


@pytest.fixture(scope="module")
def chromium_here() -> None:
    """Skips where the browser or its driver is missing."""
    try:
        chromium.find()
    except Unavailable as error:
        pytest.skip(str(error))
    if find_spec("playwright") is None:
        pytest.skip("needs playwright: pip install 'taskapp-kit[web]'")


def browsers() -> list[int]:
    """The Chromiums of this process and its children, each by its first process."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            words = process.cmdline()
            if words and "chrom" in words[0] and not any(word.startswith("--type=") for word in words):
                found[process.pid] = process.ppid()
    return [
        pid for pid, parent in found.items() if parent not in found
    ]  # a process that was forked is another program soon


async def solved(session: Any, seed: int) -> tuple[float, list[Any]]:
    """Play a task by the scripted solver through `execute_action`; its reward and its steps."""
    task = tasks.rows("train", seed + 1)[seed]
    solver = tasks.solution(task.kind, task.difficulty, task.number, task.feasible)
    observation, done, steps = await session.reset.route(seed=seed), False, []
    while not done:
        action = {name: dict(arguments) for name, arguments in solver.gold(View(observation)).items()}
        steps.append(await session.execute_action.route(action))
        observation, _, done = steps[-1]
    return sum(step.reward for step in steps), steps


@pytest.mark.browser
@pytest.mark.server
@pytest.mark.anyio
@pytest.mark.parametrize("backend", BACKENDS)
async def test_gold_solves_tasks_and_eight_windows_are_of_one_browser(backend: Any, chromium_here: None) -> None:
    others = set(browsers())  # of earlier tests, in this process
    options = WebBrowsingEnv.options(procs=1, with_gpus=False, num_replicas=WINDOWS, browsers=1, backend=backend)
    async with options.as_service() as browser:
        with pytest.raises(ServiceError, match="without a session"):
            await browser.execute_action.route({"noop": {}})
        barrier = asyncio.Barrier(WINDOWS)

        async def window(seed: int) -> tuple[float, int]:
            async with browser.session() as session:
                await session.reset.route(seed=seed)
                await barrier.wait()  # all are open now
                count = len(set(browsers()) - others)
                reward, steps = await solved(session, seed)
                assert steps[0].info["chromium"]
                return reward, count

        found = await asyncio.gather(*map(window, range(WINDOWS)))
        assert found == [(1.0, 1)] * WINDOWS
        assert sum(replica.calls for replica in browser.stats().replicas) > WINDOWS
        async with browser.session() as session:
            await session.reset.route(seed=0, split="test", difficulty="easy")
            step = await session.execute_action.route('I press it: {"click": {"bid": 99999}}')
            assert "99999" in step.refused and not step.done
    await until_async(lambda: not set(browsers()) - others, what="the browser has ended")


@pytest.mark.browser
@pytest.mark.process
@pytest.mark.server
@pytest.mark.anyio
@needs_pages
async def test_miniwob_is_the_other_environment(chromium_here: None) -> None:
    async with WebBrowsingEnv.as_service(environment="miniwob") as browser, browser.session() as session:
        observation = await session.reset.route(seed=0)
        assert isinstance(observation, str) and observation
        assert (await session.describe.route())["environment"] == "miniwob"
        assert (await session.finish.route()).truncated


@pytest.mark.parametrize("windows", [1, 3, 8, 100])
def test_at_most_one_browser_for_two_cores(windows: int) -> None:
    most = max(1, (os.cpu_count() or 1) // 2)
    options = WebBrowsingEnv.options(num_replicas=windows).options
    assert options.num_replicas == min(windows, most)
    assert windows <= options.num_replicas * options.sessions_per_replica < windows + options.num_replicas


def test_more_browsers_only_where_there_are_more_cores() -> None:
    with pytest.raises(BadArgument, match="one per 2 cores"):
        WebBrowsingEnv.options(num_replicas=1000, browsers=1000)
    assert WebBrowsingEnv.options(num_replicas=1000, browsers=100, backend="ray").options.sessions_per_replica == 10
    for wrong in (0, True, 1.5):
        with pytest.raises(BadArgument, match="`browsers` is"):
            WebBrowsingEnv.options(num_replicas=8, browsers=wrong)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="miniwob"):
        WebBrowsingEnv.as_service(environment="shop")

"""The watchdog on a loop that is really blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from taskapp_kit.logs import LogMessage
from taskapp_kit.serve.event_loop_watchdog import Watchdog
from tests.waiting import until


def blocks_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [item.msg.fields for item in caplog.records if isinstance(item.msg, LogMessage) and item.msg.name == name]


def watched(*blocked_seconds: float, quiet_seconds: float = 10.0, rest_seconds: float = 0.3) -> Watchdog:
    """A watchdog over a loop that was blocked as long as this, with rests between."""

    async def main() -> Watchdog:
        watchdog = Watchdog(quiet_seconds=quiet_seconds)
        watchdog.start()
        try:
            await asyncio.sleep(rest_seconds)
            for seconds in blocked_seconds:
                blocks_the_loop(seconds)
                await asyncio.sleep(rest_seconds)
        finally:
            watchdog.stop()
        return watchdog

    return asyncio.run(main())


def test_blocked_loop_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watchdog = watched(0.8)
    (line,) = told(caplog, "event loop blocked")
    assert float(str(line["lag_seconds"])) >= 0.25
    culprit = str(line["culprit"])
    assert "test_event_loop_watchdog.py" in culprit.split(" < ", maxsplit=1)[0]
    assert "blocks_the_loop" in culprit.split(" < ", maxsplit=1)[0]
    (after,) = told(caplog, "event loop runs again")
    assert float(str(after["blocked_seconds"])) >= 0.6
    assert watchdog.blocked == 1
    assert watchdog.blocked_seconds >= 0.6


def test_blocked_loop_is_logged_while_it_is_blocked(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def blocks_until_told() -> None:
        until(lambda: told(caplog, "event loop blocked"), 5)
        seen.append(len(told(caplog, "event loop blocked")))

    async def main() -> None:
        watchdog = Watchdog()
        watchdog.start()
        await asyncio.sleep(0.15)
        blocks_until_told()
        watchdog.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert seen == [1]


@pytest.mark.ci
def test_blocked_loop_is_logged_rarely_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watchdog = watched(0.5, 0.5)
    assert len(told(caplog, "event loop blocked")) == 1
    assert watchdog.blocked == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        watched(0.5, 0.5, quiet_seconds=0.0, rest_seconds=0.15)
    assert len(told(caplog, "event loop blocked")) == 2


def test_watchdog_leaves_no_thread_and_may_stop_before_start() -> None:
    threads = set(threading.enumerate())
    watched(rest_seconds=0.0)
    Watchdog().stop()
    assert set(threading.enumerate()) <= threads

"""What the whole suite has in common.

The markers `server` and `process` are compared with what each test does; the summary says what was skipped, and what
would run it; `--sentinels DIR` stores all that the run writes and answers in DIR and searches it for keys at its end.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis.internal.conjecture.optimiser  # noqa: F401 - it would parse itself later, and Python 3.11.2 may fail then
import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.idempotency_contract")

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Where exhaustive repetitions are left out, a test of a law draws fewer examples.
settings.register_profile("fewer", settings.get_profile("untimed"), max_examples=30)

_new_context = ssl.create_default_context
_shared_context = cache(lambda cafile: _new_context(cafile=cafile))


def _context(*args: Any, **named: Any) -> ssl.SSLContext:
    """One for all that read the same certificates: each `httpx.get` reads 140 of them anew, 30 ms of processor time."""
    return _shared_context(named["cafile"]) if not args and named.keys() == {"cafile"} else _new_context(*args, **named)


ssl.create_default_context = _context


os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="taskapp-state-")
"""Which evaluations are the user's own is recorded there: tests and their commands record in a directory of the run."""
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

NEEDS = {
    "socket.bind": "server",
    **dict.fromkeys(("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"), "process"),
}
"""What Python reports when it happens, and the marker of tests that do it: `make test-fast` leaves them out."""

_unmarked: set[str] = set()
"""The markers that the running test lacks."""


def _refuse_what_is_unmarked(event: str, arguments: tuple[Any, ...]) -> None:
    marker = NEEDS.get(event)
    if marker not in _unmarked or (event == "socket.bind" and arguments[0].family == socket.AF_UNIX):
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("sandbox/probe.py"):  # once in each process, by the test that comes first
            return
        frame = frame.f_back
    raise RuntimeError(f"{event} in a test without the marker {marker!r}: add @pytest.mark.{marker}")


sys.addaudithook(_refuse_what_is_unmarked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "not server" in item.config.option.markexpr:  # elsewhere servers of other tests may still be starting processes
        _unmarked.update(marker for marker in NEEDS.values() if item.get_closest_marker(marker) is None)
    try:
        return (yield)
    finally:
        _unmarked.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sentinels", type=Path, metavar="DIR", help="keep what the run writes in DIR; search it for keys"
    )
    parser.addoption("--order-seed", type=int, metavar="N", help="the modules and their tests in an order drawn with N")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background has it, and the children with it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "not exhaustive" in config.option.markexpr:
        settings.load_profile("fewer")
    if config.option.sentinels is not None:
        from tests.sentinel_run import SentinelRun

        config.pluginmanager.register(SentinelRun(config.option.sentinels.absolute(), config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end, so the garbage collector walks through none of it, now or in the tests.

    It took a third of a collection's time. The doctor thaws what it froze, which would thaw this, too: from then on
    each of its own collections took half a second.
    """
    gc.disable()
    gc.unfreeze = lambda: None
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: Counter[str] = Counter()
    for item in items:
        mark = next((mark for mark in item.own_markers if mark.name == "ci"), None)
        test = item.nodeid.partition("[")[0]
        if (
            mark is not None
            and item.get_closest_marker("exhaustive") is None
            and kept[test] < mark.kwargs.get("keep", 0)
        ):
            kept[test] += 1
            item.own_markers.remove(mark)
    if config.option.order_seed is not None:
        modules: dict[str, list[pytest.Item]] = {}
        for item in items:
            modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
        draw = random.Random(config.option.order_seed)
        shuffled = draw.sample(list(modules.values()), len(modules))
        items[:] = [item for module in shuffled for item in draw.sample(module, len(module))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A log with half a surrogate pair, which some tests provoke, could not be handed to the process that prints."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines: how many tests were skipped, and what each of them needs."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "no reason given"
        for report in terminalreporter.stats.get("skipped", [])
    )
    if not skipped:
        return
    terminalreporter.write_line(f"\n{skipped.total()} skipped:")
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")

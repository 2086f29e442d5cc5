"""Commands as a user runs them: in an empty directory, with no key in the environment."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from tests.waiting import until

ROOT = Path(__file__).parents[2]
ADDER = str(ROOT / "examples" / "adder.py")
CAPITALS = str(ROOT / "examples" / "capitals.py")
SETTINGS = ("ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_ALIASES", "DEV_ENVIRONMENT_API_KEY")
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """A command decides where its process logs to; the process of the tests gets its own back."""
    names = ("taskapp_kit", "taskapp_kit.environment", "taskapp_kit.jobs.client.stream", "uvicorn.error")
    kept = [(log, log.handlers, log.propagate, log.level) for log in map(logging.getLogger, names)]
    yield
    for log, handlers, propagate, level in kept:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `taskapp ARGS` in an empty directory, or in `folder`, `width` columns wide; stdout and stderr apart.

    status: the exit status that is expected; None leaves it to the test.
    """
    from taskapp_kit.cli.main import main

    def once(
        *args: str,
        status: int | None = None,
        width: int = 100,
        stdin: str | None = None,
        folder: Path = tmp_path,
        **variables: str,
    ) -> Result:
        environ: dict[str, str | None] = dict.fromkeys(SETTINGS)
        environ |= {"COLUMNS": str(width), **variables}
        before = Path.cwd()
        os.chdir(folder)
        try:
            result = CliRunner().invoke(main, list(args), input=stdin, env=environ, prog_name="taskapp")
        finally:
            os.chdir(before)
        assert status is None or result.exit_code == status, f"{result.output}{result.exception!r}"
        return result

    return once


@pytest.fixture
def run_at_terminal(run: Run) -> Run:
    """As `run`, with an output that is treated as a terminal of `width` columns; styles are taken out of stdout."""

    def once(*args: str, **options: Any) -> Result:
        result = run(*args, FORCE_COLOR="1", TERM="xterm", **options)
        result.stdout_bytes = unstyle(result.stdout).encode()
        return result

    return once


def clean_environ(**variables: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in SETTINGS},
        "COLUMNS": "100",
        **variables,
    }


@dataclass
class Served:
    """A running `taskapp serve`: its address, the key that it printed (None when it printed none), its files."""

    process: subprocess.Popen[bytes]
    url: str
    key: str | None
    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()


@contextmanager
def serving(folder: Path, *args: str, start: Sequence[str] = (), **variables: str) -> Iterator[Served]:
    """A real `taskapp serve ARGS --port 0` (the installed script adds no working directory either), stopped by SIGINT at the end when it still runs."""
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *start, "-P", "-m", "taskapp_kit", "serve", *args, "--port", "0"],
            cwd=folder,
            stdout=out,
            stderr=err,
            env=clean_environ(**variables),
        )
    served = Served(process, "", None, folder)
    try:
        until(lambda: "Ctrl-C stops the server." in served.out or process.poll() is not None, 30, "the banner")
        assert process.poll() is None, served.err
        text = served.out
        url = re.search(r" at (http://\S+)", text)
        key = re.search(r"^export ENVIRONMENT_API_KEY=(\S+)$", text, re.MULTILINE)
        assert url is not None, text
        served.url, served.key = url[1], key[1] if key else None
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def assert_no_key(text: str, *keys: str, piece: int = 6) -> None:
    """No `piece` letters of a key that stand together are in the text."""
    for key in keys:
        assert not any(key[at : at + piece] in text for at in range(len(key) - piece + 1)), text


@pytest.fixture(scope="session")
def adder_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of examples/adder.py for the tests that only ask."""
    with serving(tmp_path_factory.mktemp("adder"), ADDER) as served:
        yield served

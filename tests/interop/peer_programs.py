"""Programs that tests run in the environments of peers, and servers in separate processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interop.peers import PeerUnavailable, peer
from tests.waiting import until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment. If it is unavailable the test fails; it is never skipped."""
    try:
        return peer(name).python
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def variables_of(home: Path, **variables: str) -> dict[str, str]:
    """Return variables without anything of the developer's: no vendor key, no home, no telemetry."""
    quiet = {"SYNTH_DISABLE_LOGGING": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), **quiet, **variables}


def output_of(
    command: Sequence[str | Path],
    folder: Path,
    *,
    seconds: float = 280,
    logs: Callable[[], str] = str,
    preexec: Callable[[], object] | None = None,
    **variables: str,
) -> str:
    """Run a command in a directory and return its output. It must succeed. logs: further text of a failure."""
    done = subprocess.run(
        [str(part) for part in command],
        env=variables_of(folder, **variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        preexec_fn=preexec,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n{logs()[-4000:]}"
    return done.stdout


def found_by(name: str, script: str, folder: Path, *arguments: str | Path, **options: Any) -> Any:
    """Return the JSON that a script of this directory prints last. A peer's Python runs it. options: of `output_of`."""
    return json.loads(output_of([python_of(name), HERE / script, *arguments], folder, **options).splitlines()[-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server_process(command: Sequence[str | Path], url: str, log: Path, **variables: str) -> Iterator[None]:
    """Run a server in a separate process, in the directory of its log. It answers at `url` before the block begins."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(part) for part in command],
            env=variables_of(log.parent, **variables),
            cwd=log.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def answers() -> bool:
        assert server.poll() is None, f"the server ended with status {server.returncode}: {log.read_text()[-4000:]}"
        try:
            httpx.get(url, timeout=5)
        except httpx.TransportError:
            return False
        return True

    try:
        until(answers, 60, f"{url} answers: {log}")
        yield
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)  # Synth AI's SDK handles SIGTERM and does not end
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def framework_server(name: str, script: str, *arguments: str) -> Iterator[str]:
    """Yield the URL of a server that a peer runs. It prints `PACKAGE RELEASE PORT` and ends when its stdin closes."""
    with subprocess.Popen(
        [str(python_of(name)), str(HERE / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        package, release, port = server.stdout.readline().split()
        assert f"{package}-{release}" == name
        yield f"http://127.0.0.1:{port}"
        server.stdin.close()
        assert server.wait(30) is not None

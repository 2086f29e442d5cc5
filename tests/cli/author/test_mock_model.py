from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run, clean_environ

ASKED = {"model": "small", "messages": [{"role": "user", "content": "Hello."}]}


@contextmanager
def running(folder: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A real `taskapp mock-model ARGS --port 0` and the lines that it printed at its start."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskapp_kit", "mock-model", *args, "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environ(), "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell's background ignores it
    )
    assert process.stdout is not None
    lines: list[str] = []
    end = "}\n" if "--json" in args else "Ctrl-C stops the server.\n"
    try:
        while not lines or lines[-1] != end:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            lines.append(line)
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.process
def test_it_says_where_it_is_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with running(tmp_path, "--model", "small", "--fault", "429=1", "--seed", "3") as (process, lines):
        text = "".join(lines)
        url = re.search(r"Mock model at (http://127\.0\.0\.1:\d+/v1)\n", text)
        assert url is not None
        assert f'{{"model": "small", "inference_url": "{url[1]}"}}' in text
        assert f"  taskapp eval APP --model small --inference-url {url[1]}\n" in text
        curl = re.search(r"^  (curl .*chat/completions .*)$", text, re.MULTILINE)
        assert curl is not None and f"{url[1]}/chat/completions" in curl[1] and json.dumps(ASKED) in curl[1]
        assert httpx.get(f"{url[1]}/models").json()["data"][0]["id"] == "small"
        answer = httpx.post(
            f"{url[1]}/chat/completions", json=ASKED, headers={"authorization": "Bearer sk-sentinel-77"}
        )
        assert answer.status_code == 429
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert process.returncode == 0
        assert err == "\nStopped. Requests: 2; regular replies: 0; faults: 429 1.\n"
        assert "sk-sentinel" not in out + err


@pytest.mark.process
def test_script_latency_and_json(tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_text('"first"\n{"add": {"amount": 1}}\n')
    with running(tmp_path, "--script", "script.jsonl", "--latency-ms", "60-80", "--json", "--weight-version", "v9") as (
        _,
        lines,
    ):
        told = json.loads("".join(lines))
        assert told["models"] == ["mock"]
        begun = time.monotonic()
        answer = httpx.post(f"{told['url']}/chat/completions", json=ASKED).json()
        assert time.monotonic() - begun >= 0.06
        assert answer["choices"][0]["message"]["content"] == "first"
        assert answer["metadata"] == {"weight_version": "v9"}


def test_the_kinds_of_faults_are_listed(run: Run) -> None:
    from taskapp_kit.testing import FAULTS

    listed = run("mock-model", "--faults").stdout
    assert all(re.search(rf"^{kind} +{re.escape(words)}$", listed, re.MULTILINE) for kind, words in FAULTS.items())
    assert json.loads(run("mock-model", "--faults", "--json").stdout).keys() > FAULTS.keys()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--fault", "rset=0.1"], "Did you mean 'reset'?"),
        (["--fault", "429"], "KIND=PROBABILITY"),
        (["--latency-ms", "soon"], "neither a number of milliseconds"),
        (["--latency-ms", "80-20"], "latency"),
        (["--script", "none.json"], "cannot be read"),
        (["--script", "none.json", "--behaviour", "bad"], "were passed"),
        (["--port", "70000"], "70000"),
    ],
)
def test_what_cannot_be_used(run: Run, args: list[str], told: str) -> None:
    refused = run("mock-model", *args, status=2)
    assert told in refused.stderr and refused.stdout == ""


@pytest.mark.server
def test_a_busy_port_is_one_sentence_and_status_1(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused = run("mock-model", "--port", str(other.getsockname()[1]))
    assert (
        refused.exit_code == 1 and "cannot be used" in refused.stderr and len(refused.stderr.strip().splitlines()) == 1
    )

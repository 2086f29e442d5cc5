"""`taskapp backend serve` as a person starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from taskapp_kit.cli.main import main
from tests.waiting import until

pytestmark = pytest.mark.process


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taskapp_kit", "backend", "serve", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_elsewhere_than_on_loopback_a_key_is_asked_for(tmp_path: Path) -> None:
    ran = run(tmp_path, "--host", "0.0.0.0", "--port", "0")
    assert ran.returncode == 2
    assert "SYNTH_API_KEY" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "words"),
    [
        (["--store", "postgresql://u:sentinel@h/d"], {}, 2, "SQLite"),
        (["--allow-task-app", "http://x"], {}, 2, "no host and no network"),
        (["--host", "no such host"], {}, 2, "Host"),
        (["--store", "."], {}, 1, "is a directory"),
        ([], {"SYNTH_API_KEY": "sentinel with spaces"}, 2, "visible ASCII"),
    ],
)
def test_what_cannot_be_served_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environ: dict[str, str],
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["backend", "serve", "--port", "0", *arguments]
    ran = CliRunner().invoke(main, command, env={"SYNTH_API_KEY": None, "HOME": str(tmp_path), **environ})
    assert ran.exit_code == status, ran.stderr
    assert words in ran.stderr
    assert "sentinel" not in ran.output
    assert ran.exception is None or isinstance(ran.exception, SystemExit)


def test_a_minted_key_is_shown_once_and_opens(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        serving = subprocess.Popen(
            [sys.executable, "-m", "taskapp_kit", "backend", "serve", "--port", "0"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
    try:
        until(lambda: "Ctrl-C" in out.read_text() or serving.poll() is not None)
        told = out.read_text()
        key = re.search(r"export SYNTH_API_KEY=(\S+)", told)
        url = re.search(r"at (http://\S+)", told)
        assert key is not None, err.read_text()
        assert url is not None
        assert told.count(key[1]) == 1
        assert "no weights are updated" in told
        headers = {"Authorization": f"Bearer {key[1]}"}
        health = httpx.get(f"{url[1]}/api/health", headers=headers, trust_env=False)
        assert health.json()["updates_weights"] is False
    finally:
        serving.send_signal(signal.SIGINT)
        status = serving.wait(30)
    assert status == 0
    assert key[1] not in err.read_text()
    assert sorted(path.name for path in (tmp_path / ".taskapp").iterdir()) == [
        "backend.db", "backend.db.key", "backend.db.lock",
    ]  # fmt: skip

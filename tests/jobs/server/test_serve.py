"""`taskapp backend serve` as a person starts it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from taskapp_kit.cli.main import main
from tests.jobs.server.exchange import BackendProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("arguments", "environ", "status"),
    [
        (["--host", "0.0.0.0"], {}, 2),  # elsewhere than on loopback without a key
        (["--store", "postgresql://u:sentinel@h/d"], {}, 2),
        (["--allow-task-app", "http://x"], {}, 2),
        (["--host", "no such host"], {}, 2),
        (["--store", "."], {}, 1),
        ([], {"SYNTH_API_KEY": "sentinel with spaces"}, 2),
    ],
)
def test_what_cannot_be_served_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], environ: dict[str, str], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["backend", "serve", "--port", "0", *arguments]
    ran = CliRunner().invoke(main, command, env={"SYNTH_API_KEY": None, "HOME": str(tmp_path), **environ})
    assert ran.exit_code == status, ran.stderr
    assert "sentinel" not in ran.output
    assert ran.exception is None or isinstance(ran.exception, SystemExit)


def test_a_minted_key_is_shown_once_and_opens(tmp_path: Path) -> None:
    process = BackendProcess(tmp_path, "--port", "0")
    try:
        process.start()
        key = re.search(r"export SYNTH_API_KEY=(\S+)", process.out)
        assert key is not None
        assert process.out.count(key[1]) == 1
        assert "no weights are updated" in process.out
        headers = {"Authorization": f"Bearer {key[1]}"}
        health = httpx.get(f"{process.url}/api/health", headers=headers, trust_env=False)
        assert health.json()["updates_weights"] is False
    finally:
        status = process.end(signal.SIGINT)
    assert status == 0
    assert key[1] not in process.err
    assert sorted(path.name for path in (tmp_path / ".taskapp").iterdir()) == [
        "backend.db", "backend.db.key", "backend.db.lock",
    ]  # fmt: skip

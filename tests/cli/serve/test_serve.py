from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import ADDER, Run, Served, serving
from tests.waiting import until

pytestmark = pytest.mark.process

BODY = {"run_id": "r1", "env": {"seed": 3}, "policy": {"config": {"policy": "gold"}}, "ops": [], "mode": "eval"}
ROUTES = [("GET", "/health"), ("GET", "/info"), ("GET", "/task_info?seed=0"), ("POST", "/rollout")]


def ask(served: Served, verb: str, path: str, key: str | None) -> httpx.Response:
    headers = {"X-API-Key": key} if key else {}
    return httpx.request(verb, served.url + path, headers=headers, json=BODY if verb == "POST" else None)


@pytest.mark.parametrize(("verb", "path"), ROUTES)
def test_the_minted_key_opens_and_no_other_does(adder_server: Served, verb: str, path: str) -> None:
    assert ask(adder_server, verb, path, adder_server.key).status_code == 200
    assert ask(adder_server, verb, path, None).status_code == 401
    assert ask(adder_server, verb, path, "wrong").status_code == 401


def test_the_banner_says_what_is_served(adder_server: Served) -> None:
    shown = adder_server.out
    for words in (
        f"adder 1.0.0 at {adder_server.url}",
        "adder: train 0 to 99 (100 seeds), test 100 to 119 (20 seeds)",
        "reward = 1 · outcome_score",
        "the weighted mean of reached (weight 3), brief (weight 1)",
        "sqlite:///.taskapp/rollouts.db",
        "created for this run and shown only here",
    ):
        assert words in shown, words
    assert shown.count(str(adder_server.key)) == 1
    assert str(adder_server.key) not in adder_server.err


def test_the_printed_lines_run_in_a_shell(adder_server: Served) -> None:
    shown = adder_server.out
    lines = shown[shown.index("export ENVIRONMENT") : shown.index("\nCtrl-C")]
    script = lines.replace("curl ", "curl -sS -w '\\n' ")
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True, timeout=30)
    health, task, rollout = map(json.loads, done.stdout.strip().splitlines())
    assert health["healthy"] is True
    assert task["task"]["id"] == "adder"
    assert rollout["status"] in ("terminated", "truncated")


def test_what_is_answered_is_kept_and_docs_are_open_on_loopback(adder_server: Served) -> None:
    answer = ask(adder_server, "POST", "/rollout", adder_server.key).json()
    with sqlite3.connect(adder_server.folder / ".taskapp" / "rollouts.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [str(row) for name in tables for row in database.execute(f"SELECT * FROM {name}")]
    assert any(answer["rollout_id"] in row for row in rows)
    assert not any(str(adder_server.key) in row for row in rows)
    assert httpx.get(adder_server.url + "/docs").status_code == 200


def test_a_key_of_ones_own_is_used_and_never_shown_and_ctrl_c_ends_it_with_status_0(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("ENVIRONMENT_API_KEY=my-own-key-4711\n")
    with serving(tmp_path, ADDER, "--env-file", "my.env", "--store", "none") as served:
        assert served.key is None
        assert ask(served, "GET", "/health", "my-own-key-4711").status_code == 200
        assert ask(served, "GET", "/health", "other").status_code == 401
        assert "ENVIRONMENT_API_KEY (--env-file my.env" in served.out
        assert "none; rollouts are not stored" in served.out
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(20) == 0
        assert served.err.strip() == "Stopped."
        assert "my-own-key-4711" not in served.out + served.err
    assert not (tmp_path / ".taskapp").exists()


def test_elsewhere_than_on_loopback_it_serves_with_a_key_and_closes_its_docs(tmp_path: Path) -> None:
    with serving(tmp_path, ADDER, "--host", "0.0.0.0", "--store", "none", ENVIRONMENT_API_KEY="given") as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(url + "/health", headers={"X-API-Key": "given"}).status_code == 200
        assert httpx.get(url + "/docs").status_code == 401
        assert "put a TLS proxy in front of it" in served.out
        assert f"{url}/health" in served.out


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_elsewhere_than_on_loopback_it_refuses_without_a_key(run: Run, host: str) -> None:
    run("serve", ADDER, "--host", host, "--port", "0", status=2)


@pytest.mark.server
def test_a_busy_port_is_one_sentence_and_status_1(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = run("serve", ADDER, "--port", str(port), "--store", "none")
    assert told.exit_code == 1
    assert told.stderr.startswith(f"Error: Port {port} on 127.0.0.1")
    assert len(told.stderr.strip().splitlines()) == 1
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--port", "99999"], 2),
        (["--host", "no such host"], 2),
        (["--env-file", "no.env"], 2),
        (["--keys-file", "no"], 2),
    ],
)
def test_settings_that_cannot_be_used(run: Run, args: list[str], status: int) -> None:
    told = run("serve", ADDER, *args)
    assert told.exit_code == status
    assert "Error:" in told.stderr
    assert "Traceback" not in told.stderr


def test_show_config_tells_sources_and_masks_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TASKAPP_MAX_CONCURRENT=7\n")
    (tmp_path / "taskapp.toml").write_text('port = 9001\nhost = "127.0.0.2"\n')
    told = run("serve", ADDER, "--show-config", "--port", "9002", ENVIRONMENT_API_KEY="canary-4711", width=120)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in told.stdout.splitlines()}
    assert rows["port"] == "9002 flag --port"
    assert rows["host"] == "127.0.0.2 taskapp.toml, host"
    assert rows["max_concurrent"] == "7 .env, TASKAPP_MAX_CONCURRENT"
    assert rows["environment_api_key"] == "(set, hidden) process environment, ENVIRONMENT_API_KEY"
    assert rows["store"] == "sqlite:///.taskapp/rollouts.db default"
    assert "canary" not in told.stdout


@pytest.mark.ci
def test_reload_serves_the_changed_file_under_the_same_key(tmp_path: Path) -> None:
    app = tmp_path / "adder.py"
    app.write_text(Path(ADDER).read_text())
    with serving(tmp_path, "adder.py", "--reload", "--store", "none") as served:
        until(lambda: _version(served) == "1.0.0")
        app.write_text(app.read_text().replace("max_steps=20", "max_steps=-20"))
        until(lambda: "max_steps=-20" in served.err)
        app.write_text(app.read_text().replace("max_steps=-20", "max_steps=20").replace("1.0.0", "2.0.0"))
        until(lambda: _version(served) == "2.0.0")
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(20) == 0
    assert "Traceback" not in served.err


def _version(served: Served) -> str | None:
    """None while it does not answer."""
    try:
        return str(ask(served, "GET", "/info", served.key).json()["service"]["version"])
    except httpx.HTTPError:
        return None


def test_a_heavy_judge_is_refused_with_the_variable(run: Run, tmp_path: Path) -> None:
    text = (
        Path(ADDER).read_text()
        + '\n\n@app.judge(weight=1)\ndef kind(trajectory: Trajectory) -> str:\n    """Kind?"""\n    return ""\n'
    )
    (tmp_path / "judged.py").write_text(text)
    done = run("serve", "judged.py", "--port", "0", status=1)
    assert re.search(r"Error: Judge 'kind'.*TASKAPP_JUDGE_URL", done.stderr)
    assert "Traceback" not in done.stderr
    assert not [name for name in os.environ if name.startswith("TASKAPP_SERVED")]

"""Two servers on one Postgres database, as two containers are: one episode for a key, results fetched from either."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.store.postgres_server import PASSWORD, PostgresServer, name_of
from tests.waiting import until

pytestmark = pytest.mark.process

KEY = "key-of-the-two-servers"
START_SECONDS = 60.0

APP = """
import os, time
from taskapp_kit import Step, TaskApp, action

app = TaskApp("slow", version="1")

@app.environment("slow", splits={"train": range(0, 100)}, max_steps=3)
class Slow:
    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def reset(self, seed: int) -> str:
        time.sleep(self.seconds)
        return "address " + repr(os.environ.get("TASKAPP_STORE"))

    @action(noop={})
    def go(self) -> Step:
        \"\"\"Goes on.\"\"\"
        return Step(observation="went", reward=1.0)
"""


class Served:
    """`taskapp serve` as a process of its own."""

    def __init__(self, folder: Path, address: str, name: str, *flags: str) -> None:
        self.folder, self.name = folder, name
        kept = {name: text for name, text in os.environ.items() if "_API_KEY" not in name and "TASKAPP" not in name}
        with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taskapp_kit", "serve", "app.py", "--port", "0", *flags],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**kept, "COLUMNS": "200", "ENVIRONMENT_API_KEY": KEY, "TASKAPP_STORE": address},
            )  # fmt: skip
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r" at (http://\S+)", self.told())):
            assert self.process.poll() is None and time.monotonic() < end, self.told()
            time.sleep(0.02)
        self.url = found[1]

    def told(self) -> str:
        return "".join((self.folder / f"{self.name}.{kind}").read_text() for kind in ("out", "err"))

    def ask(self, method: str, path: str, **named: Any) -> httpx.Response:
        headers = {"X-API-Key": KEY, **named.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, verify=False, **named)

    def rollout(
        self, seed: int, key: str | None = None, seconds: float = 0.0, prefer: str | None = None
    ) -> httpx.Response:
        headers = {name: text for name, text in (("Idempotency-Key", key), ("Prefer", prefer)) if text}
        body = {"run_id": "r", "env": {"env_name": "slow", "seed": seed, "config": {"seconds": seconds}},
                "policy": {"config": {"policy": "noop"}}, "ops": [], "mode": "eval"}  # fmt: skip
        return self.ask("POST", "/rollout", json=body, headers=headers)


@pytest.mark.ci
def test_two_servers_share_keys_results_and_rollouts(postgres: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    address = postgres.database()
    one, two = Served(tmp_path, address, "one", "--workers", "1"), Served(tmp_path, address, "two")
    answered: list[str] = []
    try:
        # one key at both doors, at once and later: one episode
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit((one, two)[n % 2].rollout, 1, "same", 0.5) for n in range(8)]
            answers = [task.result() for task in asked]
        answers.append(two.rollout(1, "same", 0.5))
        assert [answer.status_code for answer in answers] == [200] * 9, [answer.text for answer in answers]
        assert len({answer.json()["rollout_id"] for answer in answers}) == 1
        assert two.rollout(2, "same").status_code == 409
        answered += [answer.text for answer in answers]

        # started here, fetched there
        accepted = one.rollout(3, seconds=0.5, prefer="respond-async")
        assert accepted.status_code == 202, accepted.text
        rollout_id = accepted.json()["rollout_id"]
        until(lambda: two.ask("GET", f"/rollouts/{rollout_id}").status_code == 200, 30)
        found = two.ask("GET", f"/rollouts/{rollout_id}")
        answered.append(found.text)
        assert two.ask("GET", "/rollouts/none%00such").status_code == 404

        # killed in the middle: the other one says so, and the key is free
        pending = one.rollout(4, "cut", seconds=30, prefer="respond-async")
        assert pending.status_code == 202
        one.process.kill()
        one.process.wait(10)
        until(lambda: two.rollout(4, "cut").status_code == 200, 30)

        # rows of both servers, once each
        rows = postgres.execute("SELECT seed, count(*) FROM rollouts GROUP BY seed ORDER BY seed", name_of(address))
        assert rows[:2] == [(1, 1), (3, 1)]
        answered += [two.ask("GET", path).text for path in ("/health", "/info", "/metrics")]
        assert "address None" in "".join(answered), "a worker and a thread see no TASKAPP_STORE"
        shown = subprocess.run(
            [sys.executable, "-m", "taskapp_kit", "serve", "app.py", "--show-config"],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
            env={**os.environ, "COLUMNS": "200", "ENVIRONMENT_API_KEY": KEY, "TASKAPP_STORE": address},
        )  # fmt: skip
        told = one.told() + two.told() + shown.stdout + shown.stderr + "".join(answered)
        assert f"postgresql://127.0.0.1:{postgres.port}/{name_of(address)} (rest hidden)" in two.told()
        assert f"postgresql://127.0.0.1:{postgres.port}/{name_of(address)} (rest hidden)" in shown.stdout
        assert PASSWORD not in told and "tester" not in told
    finally:
        for server in (one, two):
            if server.process.poll() is None:
                server.process.terminate()
                server.process.wait(30)


@pytest.mark.ci
def test_missing_database_ends_the_command_with_one_sentence(postgres: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-m", "taskapp_kit", "serve", "app.py", "--port", "0", "--store", postgres.url("absent")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "COLUMNS": "200", "ENVIRONMENT_API_KEY": KEY},
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    assert "the database does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stdout + done.stderr

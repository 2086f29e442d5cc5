"""What release 0.1.0 wrote opens: a store, and an evaluation's directory, in `release_0_1_0`.

They were written by that release itself (commit 23d6ef3): `taskapp eval early.py --policy random --seeds 0-5,13 --env adder
--config '{"image": true}'`, then `taskapp serve early.py` with the evaluation's store, which was asked for five rollouts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.process

STORED = Path(__file__).parent / "release_0_1_0"
KEY = "a-key-of-nobody-0123456789"
TASKAPP = [sys.executable, "-m", "taskapp_kit"]
EVAL = ["eval", "early.py", "--policy", "random", "--seeds", "0-5,13", "--env", "adder", "--config", '{"image": true}']
START_SECONDS = 60


def environ(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(folder), "ENVIRONMENT_API_KEY": KEY}


def taskapp(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TASKAPP, *args], cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "old"))


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    log = folder / "server.log"
    command = [*TASKAPP, "serve", "early.py", "--port", "0", "--store", "sqlite:///evaluation/rollouts.db"]
    with log.open("wb") as writing:
        server = subprocess.Popen(command, cwd=folder, env=environ(folder), stdout=writing, stderr=writing)
    try:
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r" at (http://\S+)\n", log.read_text())):
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        with httpx.Client(base_url=found[1], headers={"X-API-Key": KEY}, timeout=60) as one:
            yield one
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_the_store_is_one_of_schema_0_1_0(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "evaluation" / "rollouts.db")) as store:
        assert store.execute("SELECT name FROM taskapp_migrations").fetchall() == [
            ("0001_first_tables",),
            ("0002_tickets",),
        ]
        assert {row[0] for row in store.execute("SELECT kit_version FROM rollouts")} == {"0.1.0"}


def test_its_rollouts_are_listed_fetched_and_played_again(folder: Path, client: httpx.Client) -> None:
    page = client.get("/rollouts").raise_for_status().json()
    listed = {row["id"]: row for row in page["rollouts"]}
    assert len(listed) == 12 and page["next_cursor"] is None
    assert sum(row["status"] == "failed" for row in listed.values()) == 2
    with closing(sqlite3.connect(f"file:{STORED / 'evaluation' / 'rollouts.db'}?immutable=1", uri=True)) as store:
        written = store.execute("SELECT rollout_id, digest, reward, length, blob_hashes FROM rollouts").fetchall()
    assert {row[0] for row in written} == listed.keys()
    for rollout_id, digest, reward, length, pictures in written:
        answer = client.get(f"/rollouts/{rollout_id}?events=1")
        if listed[rollout_id]["status"] == "failed":
            assert answer.status_code == 500
            assert answer.json()["detail"]["error"]["code"] == "environment_raised"
            continue
        body = answer.raise_for_status().json()
        assert (body["digest"], body["reward"], body["metrics"]["num_steps"]) == (digest, reward, length)
        assert body.get("observation_digest") is None  # not a member of an answer that 0.1.0 wrote, and null in a row
        assert len(body["trajectories"][0]["steps"]) == length
        assert body["trajectories"][0]["trace"]["event_history"][-1]["kind"] == "scored"
        for sha256 in json.loads(pictures):
            assert client.get(f"/blobs/{sha256}").raise_for_status().content.startswith(b"\x89PNG")
        replayed = {"run_id": "again", "mode": "eval", "ops": [], "policy": {"config": {"policy": "replay"}}, "env": {}}
        replayed["policy"]["config"]["rollout_id"] = rollout_id
        assert client.post("/rollout", json=replayed).raise_for_status().json()["digest"] == digest
    assert len(client.get("/rollouts").json()["rollouts"]) == 12 + 10
    assert len(client.get("/rollouts?group_id=g").json()["rollouts"]) == 1


def test_resume_reads_the_directory_and_names_the_versions_that_differ(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "evaluation").iterdir()}
    done = taskapp(folder, *EVAL, "--out", "evaluation", "--resume")
    assert done.returncode == 2
    assert "kit_version was 0.1.0, is " in done.stderr
    assert "spec_hash was " in done.stderr
    assert "app_version" not in done.stderr and "seeds" not in done.stderr
    assert {path.name: path.read_bytes() for path in (folder / "evaluation").iterdir()} == before


def test_its_evaluation_is_played_again_with_equal_digests(folder: Path) -> None:
    done = taskapp(folder, "replay", "--from", "evaluation", "--app", "early.py", "--json")
    assert done.returncode == 0, done.stderr
    assert not list((folder / "evaluation").glob("*.tmp"))
    assert taskapp(folder, "replay", "--from", "evaluation").returncode == 2  # its config.json names no app

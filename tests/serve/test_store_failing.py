"""A store that can keep nothing: rollouts are refused before they are played, `/health` says so, and it recovers."""

from __future__ import annotations

import re
import resource
import sqlite3
from pathlib import Path

import httpx
import pytest

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store.postgres import PostgresStore
from taskapp_kit.store.sqlite import SqliteStore
from tests.serve.running_server import RESETS, RunningServer, error_of, opened, request_body
from tests.store.postgres_server import new_server
from tests.stress.server import Server
from tests.waiting import until

pytestmark = pytest.mark.server


def status_of(running: RunningServer) -> str:
    health = running.client.get("/health").json()
    assert health["healthy"] is True
    assert health["store"]["failing"] is (health["status"] == "store_failing")
    return str(health["status"])


def refused_unplayed(running: RunningServer, count: int = 20) -> None:
    """Plain rollouts, ones with a key and ones to be fetched later are all refused, and none is begun."""
    before = RESETS[0]
    ways = ({}, {"Idempotency-Key": "one"}, {"Prefer": "respond-async"}, {"Accept": "text/event-stream"})
    for number in range(count):
        answer = running.client.post("/rollout", json=request_body(), headers=ways[number % 4])
        assert answer.status_code == 503, answer.text
        assert error_of(answer)["code"] == "store_failing"
        assert int(answer.headers["retry-after"]) >= 1
    assert RESETS[0] == before


@pytest.mark.ci
def test_deleted_store_file_costs_only_one_rollout(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with opened(store=SqliteStore(path)) as running:
        assert status_of(running) == "healthy"
        aside = path.rename(tmp_path / "aside.db")
        assert error_of(running.client.post("/rollout", json=request_body()))["code"] == "store_failed"
        assert status_of(running) == "store_failing"
        refused_unplayed(running)
        found = running.client.get("/metrics").text
        assert "taskapp_store_failing 1.0" in found
        assert re.search(r"taskapp_store_write_failures_total [1-9]", found)
        aside.rename(path)
        until(lambda: status_of(running) == "healthy")
        assert running.client.post("/rollout", json=request_body()).status_code == 200
        assert "taskapp_store_failing 0.0" in running.client.get("/metrics").text


@pytest.mark.ci
def test_a_claim_that_cannot_be_written_counts_too(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with opened(store=SqliteStore(path)) as running:
        before = RESETS[0]
        aside = path.rename(tmp_path / "aside.db")
        answer = running.client.post("/rollout", json=request_body(), headers={"Idempotency-Key": "one"})
        assert error_of(answer)["code"] == "store_failed"
        assert status_of(running) == "store_failing"
        refused_unplayed(running, 4)
        assert RESETS[0] == before
        aside.rename(path)
        until(lambda: status_of(running) == "healthy")


def test_rollout_rejected_by_the_store_does_not_mark_it_failing(tmp_path: Path) -> None:
    class Refuses(SqliteStore):
        async def save(self, rollout: object) -> None:
            rollout.config["x"] = float("nan")  # type: ignore[attr-defined]
            await super().save(rollout)  # type: ignore[arg-type]

    with opened(store=Refuses(tmp_path / "rollouts.db")) as running:
        assert error_of(running.client.post("/rollout", json=request_body()))["code"] == "store_failed"
        assert status_of(running) == "healthy"


@pytest.mark.ci
def test_rollout_stored_after_a_retry_can_be_fetched(tmp_path: Path) -> None:
    class FailsOnce(SqliteStore):
        failed = False

        async def save(self, rollout: StoredRollout) -> None:
            if not self.failed:
                self.failed = True
                raise StoreError("the disk is full.")
            await super().save(rollout)

    with opened(store=FailsOnce(tmp_path / "rollouts.db")) as running:
        body = request_body()
        taken = running.client.post("/rollout", json=body, headers={"Prefer": "respond-async", "Idempotency-Key": "k"})
        path = taken.headers["location"]
        codes = [202]
        until(lambda: codes.append(running.client.get(path).status_code) or codes[-1] in (200, 500))
        assert codes[-1] == 500, "until the write is tried again"
        until(lambda: status_of(running) == "healthy")
        assert running.client.get(path).status_code == 200
        (row,) = running.client.get("/rollouts").json()["rollouts"]
        assert path.endswith(row["id"])


def test_a_kept_rollout_whose_server_died_before_its_ticket_was_settled_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with opened(store=SqliteStore(path)) as running:
        answer = running.client.post("/rollout", json=request_body(), headers={"Idempotency-Key": "k"})
    file = sqlite3.connect(path)
    file.execute(
        "UPDATE idempotency_keys SET settled_at = NULL, answer = NULL, answer_encoding = NULL, lease_until = 0"
    )
    file.commit()
    file.close()
    with opened(store=SqliteStore(path)) as running:
        found = running.client.get(f"/rollouts/{answer.json()['rollout_id']}")
        assert found.status_code == 200, found.text


APP = """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("filling", version="1")

@app.environment("filling", splits={"train": range(1000)}, max_steps=3)
class Filling:
    def reset(self, seed: int) -> str:
        with open("resets", "a") as told:
            told.write("x")
        return "".join(chr(33 + (seed * 7 + n * n) % 90) for n in range(20_000))

    @action(noop={})
    def go(self) -> Step:
        '''Goes on.'''
        return Step("went", reward=1.0)
"""


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_a_full_disk_refuses_before_playing_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with Server(tmp_path, app=tmp_path / "app.py") as server:

        def play(seed: int) -> httpx.Response:
            return server.post(request_body("filling", "noop", seed=seed))

        assert play(0).status_code == 200
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        answers = [play(seed) for seed in range(1, 60)]
        codes = [answer.status_code for answer in answers]
        kept = codes.index(500)
        assert codes[:kept] == [200] * kept and set(codes[kept + 1 :]) == {503}, codes
        assert error_of(answers[-1])["code"] == "store_failing"
        assert len((tmp_path / "resets").read_text()) == 1 + kept + 1
        assert server.health()["status"] == "store_failing"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: server.health()["status"] == "healthy")
        assert play(60).status_code == 200


@pytest.mark.ci
@pytest.mark.process
def test_a_postgres_server_that_stopped_refuses_before_playing_and_recovers() -> None:
    postgres = new_server()
    try:
        with opened(store=PostgresStore(postgres.database(), retry_seconds=0.5)) as running:
            assert running.client.post("/rollout", json=request_body()).status_code == 200
            postgres.stop()
            assert error_of(running.client.post("/rollout", json=request_body()))["code"] == "store_failed"
            assert status_of(running) == "store_failing"
            refused_unplayed(running)
            postgres.start()
            until(lambda: status_of(running) == "healthy")
            assert running.client.post("/rollout", json=request_body()).status_code == 200
    finally:
        postgres.stop()

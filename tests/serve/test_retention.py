"""`TASKAPP_STORE_KEEP`: what is older than it says goes when the server starts; a store that cannot prune is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from taskapp_kit.config import Settings, from_environment
from taskapp_kit.errors import Unavailable
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store.sqlite import SqliteStore
from tests.serve.running_server import KEY, opened, request_body
from tests.waiting import until


class Aged(SqliteStore):
    """Keeps each rollout as if it had begun `age_days` ago."""

    age_days = 40.0

    async def save(self, rollout: StoredRollout) -> None:
        await super().save(replace(rollout, created_at=rollout.created_at - self.age_days * 86_400))


@pytest.mark.server
@pytest.mark.parametrize(("keep", "left"), [(None, 3), ("30d", 0), ("50d", 3), ("2", 2)])
def test_old_rollouts_are_removed_when_the_server_starts(tmp_path: Path, keep: str | None, left: int) -> None:
    with opened(store=Aged(tmp_path / "r.db")) as running:
        for seed in range(3):
            assert running.client.post("/rollout", json=request_body(seed=seed)).status_code == 200
    settings = Settings(environment_api_key=KEY, store_keep=keep)
    with opened(settings, store=SqliteStore(tmp_path / "r.db")) as running:
        until(lambda: len(running.client.get("/rollouts").json()["rollouts"]) == left, 20)


def test_store_keep_values_are_parsed() -> None:
    assert from_environment({"TASKAPP_STORE_KEEP": "30D"}).store_keep == "30d"
    assert from_environment({"TASKAPP_STORE_KEEP": "100000"}).store_keep == "100000"


def test_server_does_not_start_with_a_store_that_cannot_prune() -> None:
    class Plugin:
        save = load = blob = recent = close = None

        def coordinator(self, clock: object) -> None:
            return None

    with pytest.raises(Unavailable), opened(Settings(store_keep="5"), store=Plugin()):  # type: ignore[arg-type]
        pass

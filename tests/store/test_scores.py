"""Later scores of stored rollouts: beside the answered ones, by version, never replaced."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from taskapp_kit.errors import StoreRefusal
from taskapp_kit.records.protocols import StoredScores
from taskapp_kit.store.sql import SqlStore
from tests.store.stored_samples import rollout

pytestmark = [pytest.mark.anyio, pytest.mark.process]  # the Postgres server

CARD = {"criteria": [{"name": "right", "of": "outcome", "score": 0.5}], "reward": 0.5}
SCORED = StoredScores(
    "r1", "v2", 2e9, "terminated", 0.5, 0.5, None, CARD, None, 0.25, None, "2.0.0", "f" * 64, "0.2.0",
    {"judge_calls": {"prompts": {}, "calls": []}},
)  # fmt: skip
FAILED = replace(
    SCORED, status="failed", reward=None, outcome_score=None, scorecard=None, private={},
    failure={"boundary": "scoring", "code": "criterion_failed", "message": "it raised", "error_id": "e"},
)  # fmt: skip


async def test_scores_are_read_back_by_version_and_by_rollout(store: SqlStore) -> None:
    await store.save(rollout("r1"))
    answered = await store.load("r1")
    await store.save_scores([SCORED, replace(SCORED, rollout_id="r2"), replace(SCORED, scorer="v3", created_at=3e9)])
    listed = await store.scores("v2")
    assert listed == {name: replace(SCORED, rollout_id=name, private={}) for name in ("r1", "r2")}
    assert await store.scores_of("r1", "v2") == SCORED
    assert await store.scores_of("r2", "v3") is None and await store.scores("v4") == {}
    assert [(one.scorer, one.rollouts, one.created_at) for one in await store.scorers()] == [
        ("v3", 1, 3e9),
        ("v2", 2, 2e9),
    ]
    assert await store.load("r1") == answered, "the answered scores stay"


async def test_a_failure_is_replaced_and_scores_never_are(store: SqlStore) -> None:
    await store.save(rollout("r1"))
    await store.save_scores([FAILED])
    assert await store.scores_of("r1", "v2") == FAILED
    await store.save_scores([SCORED])
    with pytest.raises(StoreRefusal):
        await store.save_scores([replace(SCORED, rollout_id="r9"), FAILED])
    assert await store.scores("v2") == {"r1": replace(SCORED, private={})}, "the refused batch left nothing"


async def test_what_is_not_exact_is_refused(store: SqlStore) -> None:
    await store.save(rollout("r1"))
    for wrong in (replace(SCORED, reward=math.nan), replace(SCORED, scorecard={"x": math.inf})):
        with pytest.raises(StoreRefusal):
            await store.save_scores([wrong])
    assert await store.scorers() == []


async def test_the_scores_of_pruned_rollouts_go_with_them(store: SqlStore) -> None:
    await store.save(rollout("r1"))
    await store.save(rollout("r2", created_at=1.0))
    await store.save_scores([SCORED, replace(SCORED, rollout_id="r2")])
    assert await store.prune("adder", before=2.0) == 1
    assert set(await store.scores("v2")) == {"r1"}

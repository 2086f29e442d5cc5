"""People's scores in a store: one for each person, rollout and criterion; they go with their rollout."""

from __future__ import annotations

import pytest

from taskapp_kit.records.protocols import Annotation, QueryableStore
from taskapp_kit.store.sql import SqlStore
from tests.store.stored_samples import rollout

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def test_annotations_are_replaced_filtered_and_pruned_with_their_rollout(store: SqlStore) -> None:
    assert isinstance(store, QueryableStore)
    for name, label in (("one", "alice"), ("two", "bob")):
        stored = rollout(name)
        stored.key_label, stored.app, stored.created_at = label, "game", len(label) * -1.0 + 10
        await store.save(stored)
    first = Annotation("one", "clear", "alice", 0.5, "so-so", 1.0)
    await store.annotate([first, Annotation("two", "clear", "bob", 1.0, "", 2.0)])
    await store.annotate([Annotation("one", "clear", "root", 0.0, "", 3.0)])
    better = Annotation("one", "clear", "alice", 0.75, "better than I thought", 4.0)
    await store.annotate([better])
    assert [item.score for item in await store.annotations()] == [1.0, 0.0, 0.75]
    assert await store.annotations(rollout_id="one", key_label="bob") == []
    assert better in await store.annotations(app="game", key_label="alice")
    assert await store.annotations(app="other") == []
    await store.annotate([Annotation("gone", "clear", "alice", 1.0)])
    assert len(await store.annotations()) == 3, "of rollouts that are stored"
    assert await store.prune("game", keep=1) == 1
    assert {item.rollout_id for item in await store.annotations()} == {"two"}

"""Reads stored rollouts with the scores of another scorer version instead of their original scores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.source import fits, ordered
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import (
    QueryableStore,
    RolloutQuery,
    RolloutRow,
    RowOrder,
    StoredRollout,
    StoredScores,
)
from taskapp_kit.rollout.source import RolloutSource, no_such_rollout


async def with_scores(source: RolloutSource, scorer: str) -> RolloutSource:
    """Return a source of the rollouts that this scorer version scored, with the scores of this version.

    Closing the returned source also closes `source`.

    Raises Unavailable if `source` does not support scorer versions, and ConfigError if it has no scores of this one.
    """
    store = source.score_store()
    scores = await store.scores(scorer)
    if not scores:
        known = ", ".join(version.scorer for version in await store.scorers())
        raise ConfigError(
            f"{source.place} has no scores of version {scorer[:80]!r}.",
            hint=f"The versions are {known}." if known else "To compute scores, run taskapp rescore.",
        )
    return ScoredSource(source, store, scores)


def scored_row(row: RolloutRow, scores: StoredScores) -> RolloutRow:
    """Return the row with these scores. If the scoring failed, the row has the failure."""
    card, failure = scores.scorecard or {}, scores.failure or {}
    criteria = card.get("criteria")
    metrics = card.get("metrics")
    return replace(
        row,
        status=scores.status,
        reward=scores.reward,
        criteria={
            str(item["name"]): item["score"]
            for item in (criteria if isinstance(criteria, list) else ())
            if isinstance(item, dict) and item["of"] != "metric"
        },
        metrics={**row.metrics, **(metrics if isinstance(metrics, dict) else {})},
        spec_hash=scores.spec_hash,
        boundary=_text(failure, "boundary"),
        code=_text(failure, "code"),
        message=_text(failure, "message"),
    )


def _text(failure: Mapping[str, Json], name: str) -> str | None:
    value = failure.get(name)
    return value if isinstance(value, str) else None


class ScoredSource(RolloutSource):
    """A source whose rollouts have the scores of a scorer version. It omits rollouts that this version did not score."""

    def __init__(self, source: RolloutSource, store: QueryableStore, scores: dict[str, StoredScores]) -> None:
        self._source, self._store, self._scores = source, store, scores
        self.place, self.config = source.place, source.config

    async def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """See RolloutSource."""
        # Status, boundary and reward depend on the new scores, so these filters apply after the others.
        wanted = query or RolloutQuery()
        before = replace(wanted, status=None, boundary=None, reward_above=None, reward_below=None)
        after = RolloutQuery(
            status=wanted.status,
            boundary=wanted.boundary,
            reward_above=wanted.reward_above,
            reward_below=wanted.reward_below,
        )
        found = [
            scored
            async for row in self._source.rows(before)
            if row.rollout_id in self._scores and fits(scored := scored_row(row, self._scores[row.rollout_id]), after)
        ]
        for number, row in enumerate(found if order is None else ordered(iter(found), order, limit)):
            if limit is not None and number >= limit:
                return
            yield row

    async def load(self, rollout_id: str) -> StoredRollout:
        """See RolloutSource."""
        stored = await self._source.load(rollout_id)
        known = self._scores.get(rollout_id)
        scores = None if known is None else await self._store.scores_of(rollout_id, known.scorer)
        if scores is None:
            raise no_such_rollout(rollout_id, f"{self.place} with these scores")
        private = {name: value for name, value in stored.private.items() if name != "judge_calls"}
        return replace(
            stored,
            status=scores.status,
            reward=scores.reward,
            outcome_score=scores.outcome_score,
            events_score=scores.events_score,
            scorecard=scores.scorecard,
            failure=scores.failure,
            private={**private, **scores.private},
            spec_hash=scores.spec_hash,
            app_version=scores.app_version,
            kit_version=scores.kit_version,
        )

    async def blob(self, sha256: str) -> bytes | None:
        """See RolloutSource."""
        return await self._source.blob(sha256)

    def score_store(self) -> QueryableStore:
        """See RolloutSource."""
        return self._store

    async def close(self) -> None:
        """See RolloutSource."""
        await self._source.close()

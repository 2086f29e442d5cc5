"""Sources of stored rollouts: an evaluation's directory, a store, or a running task app. `open_source` opens them."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.client.event_decoding import read_events
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import ConfigError, StoreError, TaskAppError, Unavailable
from taskapp_kit.evaluate.directory import DATABASE, RESULTS, damaged, line_at, read_config, whole_lines
from taskapp_kit.evaluate.plan import stored_policies
from taskapp_kit.evaluate.results import row_of_line
from taskapp_kit.records.declared_types import check_types
from taskapp_kit.records.events import SCHEMA_VERSION, EpisodeRecord
from taskapp_kit.records.protocols import (
    LISTED,
    Annotation,
    QueryableStore,
    RolloutQuery,
    RolloutRow,
    RowOrder,
    Store,
    StoredRollout,
)
from taskapp_kit.records.scorecard import known_sum
from taskapp_kit.rollout.policy.options import MODEL
from taskapp_kit.rollout.source import MOST, RolloutSource, no_such_rollout
from taskapp_kit.store.open import open_store

PAGE = 500
"""The number of rows per request."""


def open_source(reference: str, *, key: str | None = None) -> RolloutSource:
    """Open a source of stored rollouts. Nothing is created.

    Args:
        reference: An evaluation's directory, a store (a path, sqlite:///PATH, postgresql://…) or a task app (http://…).
        key: The API key of a task app.

    Returns:
        The source. Close it after use.

    Raises:
        ConfigError: The reference is not valid.
        StoreError: The store cannot be opened.
    """
    if reference.startswith(("http://", "https://")):
        return ServerSource(reference, key)
    if "://" not in reference and Path(reference).is_dir():
        return DirectorySource(Path(reference))
    return StoreSource(open_store(reference, create=False), reference)


class StoreSource(RolloutSource):
    """The rollouts of a store."""

    def __init__(self, store: Store, place: str) -> None:
        self._store = store
        self.place = str(getattr(store, "place", None) or place)

    async def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """See RolloutSource."""
        wanted = replace(query or RolloutQuery(), before=None, limit=MOST if limit is None else max(1, limit))
        if limit == 0:
            return
        if not isinstance(self._store, QueryableStore):
            raise Unavailable("This store cannot list rollouts.", hint="Pass the rollout's id.")
        if order is not None and order != "newest":
            for row in await self._store.listed(wanted, order):
                yield row
            return
        left = wanted.limit
        while left > 0:
            page = await self._store.listed(replace(wanted, limit=min(left, PAGE)))
            for row in page:
                yield row
            if len(page) < PAGE:
                return
            left -= len(page)
            wanted = replace(wanted, before=(page[-1].created_at or 0.0, page[-1].rollout_id))

    async def load(self, rollout_id: str) -> StoredRollout:
        """See RolloutSource."""
        stored = await self._store.load(rollout_id)
        if stored is None:
            raise no_such_rollout(rollout_id, self.place)
        return stored

    async def blob(self, sha256: str) -> bytes | None:
        """See RolloutSource."""
        return await self._store.blob(sha256)

    @property
    def annotates(self) -> bool:
        """See RolloutSource."""
        return isinstance(self._store, QueryableStore)

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """See RolloutSource."""
        if isinstance(self._store, QueryableStore):
            await self._store.annotate(annotations)
        else:
            await super().annotate(annotations)

    async def annotations(self, rollout_id: str | None = None) -> list[Annotation]:
        """See RolloutSource."""
        annotated = self._store
        return await annotated.annotations(rollout_id=rollout_id) if isinstance(annotated, QueryableStore) else []

    def score_store(self) -> QueryableStore:
        """See RolloutSource."""
        return self._store if isinstance(self._store, QueryableStore) else super().score_store()

    async def close(self) -> None:
        """See RolloutSource."""
        await self._store.close()


class DirectorySource(RolloutSource):
    """The rollouts of an evaluation: the result lines, and the full rollouts in `rollouts.db`, if that file exists."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the directory is not an evaluation."""
        self.path = path
        self.place = str(path)
        self.config = read_config(path)
        self._store: StoreSource | None = None

    async def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """See RolloutSource. Rollouts of an evaluation never match `key_label` or `group_id`."""
        path = self.path / RESULTS
        offsets = _current_lines(path)
        known: dict[str, RolloutRow] = {}
        older = any("created_at" not in entry or "cost" not in entry for entry in _entries(path, offsets[:1]))
        store = self._opened() if older else None
        if store is not None:
            known = {row.rollout_id: row async for row in store.rows(RolloutQuery(run_id=self._run_id))}
        entries = _entries(path, offsets)
        rows = (self._row(entry, known.get(str(entry.get("rollout_id")))) for entry in entries)
        wanted = (row for row in rows if query is None or fits(row, query))
        if order is None:
            found: Iterator[RolloutRow] = iter(sorted(wanted, key=_by_seed))
        else:
            found = ordered(wanted, order, limit)
        for number, row in enumerate(found):
            if limit is not None and number >= limit:
                return
            yield row

    def _row(self, entry: Mapping[str, Any], stored: RolloutRow | None) -> RolloutRow:
        try:
            return _of_line(entry, stored, self.config)
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise StoreError(
                f"{self.path / RESULTS} contains a line that this release cannot read as a result ({fault}).",
                hint="Fix or remove that line, or pass another directory.",
            ) from fault

    def _opened(self) -> StoreSource | None:
        """Return the store in the directory, or None if it does not exist. It is opened on first use.

        Raises StoreError if it cannot be opened.
        """
        database = self.path / DATABASE
        if self._store is None and database.is_file():
            self._store = StoreSource(open_store(str(database), create=False), self.place)
        return self._store

    @property
    def _run_id(self) -> str:
        """The label that all rollouts of the evaluation share."""
        return f"eval-{self.config['eval_id'][:12]}"

    async def load(self, rollout_id: str) -> StoredRollout:
        """See RolloutSource."""
        store = self._opened()
        if store is None:
            raise ConfigError(
                f"{self.path} has no {DATABASE}, because the full rollouts are stored elsewhere or not at all.",
                hint="Pass their store (sqlite:///PATH or postgresql://…), or the URL of the server that played them.",
            )
        return await store.load(rollout_id)

    async def blob(self, sha256: str) -> bytes | None:
        """See RolloutSource."""
        store = self._opened()
        return None if store is None else await store.blob(sha256)

    @property
    def annotates(self) -> bool:
        """See RolloutSource."""
        store = self._opened()
        return store is not None and store.annotates

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """See RolloutSource."""
        store = self._opened()
        await (super().annotate(annotations) if store is None else store.annotate(annotations))

    async def annotations(self, rollout_id: str | None = None) -> list[Annotation]:
        """See RolloutSource."""
        store = self._opened()
        return [] if store is None else await store.annotations(rollout_id)

    def score_store(self) -> QueryableStore:
        """See RolloutSource."""
        store = self._opened()
        return super().score_store() if store is None else store.score_store()

    async def close(self) -> None:
        """See RolloutSource."""
        if self._store is not None:
            await self._store.close()


def _current_lines(path: Path) -> list[int]:
    """Return the offset of each rollout's last line. A retried rollout has several lines.

    Raises StoreError if the file cannot be read or a line is invalid.
    """
    offsets: dict[bytes, int] = {}
    try:
        with path.open("rb") as lines:
            for line in whole_lines(lines, path):
                if "key" not in line.entry:
                    raise damaged(path, line.number, "is not a result")
                offsets[orjson.dumps(line.entry["key"], option=orjson.OPT_SORT_KEYS)] = line.offset
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", hint="Make it readable.") from None
    return list(offsets.values())


def _entries(path: Path, offsets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the lines at these offsets."""
    if offsets:
        with path.open("rb") as lines:
            for offset in offsets:
                yield line_at(lines, offset)


_FILTERS = ("environment", "status", "boundary", "run_id", "group_id", "key_label", "reward_above", "reward_below")
"""The filters that `GET /rollouts` supports. `policy` is not among them, because it does not match models there."""


class ServerSource(RolloutSource):
    """The stored rollouts that the API key may read on a running task app."""

    def __init__(self, url: str, key: str | None) -> None:
        """Raises ConfigError for an invalid address or key."""
        self._client = TaskAppClient(url, key)
        self.place = self._client.url
        self._listed: dict[str, RolloutRow] = {}

    async def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """See RolloutSource. Rows lack the criteria and the failure's message, which `load` returns."""
        wanted = query or RolloutQuery()
        found = self._newest(wanted)
        if order is not None and order != "newest":
            found = _sorted(found, order, limit)
        number = 0
        async for row in found:
            if limit is not None and number >= limit:
                return
            number += 1
            self._listed[row.rollout_id] = row
            yield row

    async def _newest(self, wanted: RolloutQuery) -> AsyncIterator[RolloutRow]:
        filters = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
        cursor: str | None = None
        while True:
            page = await self._client.rollouts(**filters, limit=PAGE, **({} if cursor is None else {"cursor": cursor}))
            rows = self._rows_of(page)
            for row in rows:
                if wanted.policy in (None, row.policy, row.model):
                    yield row
            cursor = page.get("next_cursor")
            if cursor is None or not rows:
                return

    def _rows_of(self, page: Mapping[str, Any]) -> list[RolloutRow]:
        try:
            return [_row_of_list(listed) for listed in page["rollouts"]]
        except (KeyError, TypeError, AttributeError):
            raise TaskAppError(
                f"The response of {self.place}/rollouts is not a list of rollouts.",
                status=200,
                code="bad_answer",
                hint="Check that the server at this address has the same release of taskapp-kit as this machine.",
            ) from None

    async def load(self, rollout_id: str) -> StoredRollout:
        """See RolloutSource."""
        return stored_from_answer(await self._client.recorded_rollout(rollout_id), self._listed.get(rollout_id))

    async def blob(self, sha256: str) -> bytes | None:
        """See RolloutSource."""
        return await self._client.blob(sha256)

    async def close(self) -> None:
        """See RolloutSource."""
        await self._client.aclose()


# -- orders -----------------------------------------------------------------------------------------------------------

_LARGEST_FIRST: Mapping[str, Callable[[RolloutRow], float | None]] = {
    "best": lambda row: row.reward,
    "cost": lambda row: row.cost,
    "tokens": lambda row: row.tokens,
    "seconds": lambda row: row.seconds,
    "length": lambda row: row.length,
}


def _by_seed(row: RolloutRow) -> tuple[str, str, int, str, int, float, str]:
    policy = row.model or row.policy or ""
    return row.environment, row.split, row.seed, policy, row.sample or 0, row.created_at or 0.0, row.rollout_id


def ordered(rows: Iterator[RolloutRow], order: RowOrder, limit: int | None = None) -> Iterator[RolloutRow]:
    """Return the first `limit` rows in the order in which a store would return them. See `RowOrder`."""
    if order == "newest":
        newest = sorted(rows, key=lambda row: (row.created_at or 0.0, row.rollout_id), reverse=True)
        return iter(newest[:limit])
    if order == "worst":
        rated = ((row.reward, _by_seed(row), row) for row in rows if row.reward is not None)
    else:
        of = _LARGEST_FIRST[order]
        rated = ((-value, _by_seed(row), row) for row in rows if (value := of(row)) is not None)
    chosen = sorted(rated, key=_rank) if limit is None else heapq.nsmallest(limit, rated, key=_rank)
    return (row for _, _, row in chosen)


_rank = itemgetter(0, 1)
"""The sort key of a row with a reward, because rows themselves cannot be compared."""


async def _sorted(rows: AsyncIterator[RolloutRow], order: RowOrder, limit: int | None) -> AsyncIterator[RolloutRow]:
    found = [row async for row in rows]
    for row in ordered(iter(found), order, limit):
        yield row


# -- rows -------------------------------------------------------------------------------------------------------------


def fits(row: RolloutRow, query: RolloutQuery) -> bool:
    """Return whether a store would select the row for a query."""
    names = ("environment", "status", "boundary", "run_id", "group_id")
    if any(getattr(query, name) not in (None, getattr(row, name)) for name in names) or query.key_label is not None:
        return False
    if query.policy is not None and query.policy not in (row.policy, row.model):
        return False
    if query.reward_above is not None and not (row.reward is not None and row.reward > query.reward_above):
        return False
    return query.reward_below is None or (row.reward is not None and row.reward < query.reward_below)


def _of_line(entry: Mapping[str, Any], stored: RolloutRow | None, config: Mapping[str, Any]) -> RolloutRow:
    """Return the row of a line of `results.jsonl`, completed from the store if an earlier release wrote it."""
    key, asked = entry["key"], config["asked"]
    row = row_of_line(entry)
    row.sample, row.name = key.get("sample"), key.get("policy")
    row.policy, row.model = _who(entry, asked)
    row.run_id, row.spec_hash = f"eval-{config['eval_id'][:12]}", asked.get("spec_hash")
    turns = row.metrics.get("turns")
    row.turns = None if turns is None else int(turns)
    for name in _STORED if stored is not None else ():
        if getattr(row, name) in (None, ""):
            setattr(row, name, getattr(stored, name))
    row.environment = row.environment or asked.get("environment") or ""
    row.split = row.split or key.get("split") or ""
    check_types(RolloutRow, {name: getattr(row, name) for name in _CHECKED})
    return row


_STORED = ("environment", "split", "stop_reason", "length", "tokens", "cost", "seconds", "created_at")
"""Fields that the lines of earlier releases lack, but the store has."""
_CHECKED = ("environment", "split", "sample", "name", "policy", "model", "spec_hash")
"""Fields that come from the key and the configuration."""


def _who(entry: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return a line's policy and model. If several policies have this model, return the policy's name as the model."""
    name = entry["key"].get("policy")
    policies = stored_policies(asked)
    policy = policies.get(name, {})
    model = policy.get("model")
    if policy.get("policy"):
        return policy["policy"], model
    alone = sum(each.get("model") == model for each in policies.values()) == 1
    return MODEL, model if model is not None and alone else name


def _row_of_list(listed: Mapping[str, Any]) -> RolloutRow:
    """Return the row of an entry of `GET /rollouts`. Unknown fields are ignored.

    Raises KeyError or TypeError if the entry is malformed.
    """
    members: dict[str, Any] = {"rollout_id": listed["id"], **{name: listed.get(name) for name in LISTED}}
    check_types(RolloutRow, members)
    return RolloutRow(**members)


def stored_from_answer(body: Mapping[str, Any], row: RolloutRow | None = None) -> StoredRollout:
    """Return the rollout in a response with events, or in an error response with a `trace`.

    Fields that the response lacks are copied from `row`, the rollout's row. Fields that `row` also lacks are empty. The
    rollout's `private` contains only the calls of judges and auxiliary models. Raises TaskAppError if the response is
    invalid.
    """
    try:
        return _stored(body, row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as fault:
        raise TaskAppError(
            f"The server's response is not a rollout with its events: {type(fault).__name__}.",
            status=200,
            code="bad_answer",
            hint="Check that the server at this address has the same release of taskapp-kit as this machine.",
        ) from fault


def _stored(body: Mapping[str, Any], row: RolloutRow | None) -> StoredRollout:
    failed = "trajectories" not in body
    trace = body["trace"] if failed else body["trajectories"][0]["trace"]
    events = read_events({"trajectories": [{"trace": trace}]})
    error = body["detail"]["error"] if failed else None
    episode = EpisodeRecord.of(events)
    first, ended, steps, answers = episode.started, episode.ended, episode.steps, episode.answers
    costs = [(answer.get("details") or {}).get("cost") for answer in answers]
    model = next((name for answer in answers if (name := (answer.get("details") or {}).get("model"))), None)
    meta = body.get("pipeline_metadata") or {}
    versions = body.get("versions") or {}
    timing = body.get("timing") or {}
    policy = {"name": first["policy"], "model": row.model if row is not None else model}
    if meta.get("inference_url"):
        policy["inference_url"] = meta["inference_url"]
    card = body.get("scorecard")
    return StoredRollout(
        rollout_id=str(error["rollout_id"] if error is not None else body["rollout_id"]),
        run_id=str(body.get("run_id") or (row.run_id if row is not None else "") or ""),
        created_at=(row.created_at if row is not None else None) or 0.0,
        app="",
        app_version=str(versions.get("app") or ""),
        environment=first["environment"],
        environment_version=first["version"],
        split=first["split"],
        seed=first["seed"],
        config=first["config"],
        policy={name: value for name, value in policy.items() if value is not None},
        mode="",
        status="failed" if failed else body["status"],
        stop_reason=str(
            ended.get("stop_reason") or (error["code"] if error is not None else body.get("stop_reason")) or ""
        ),
        length=len(steps),
        total_reward=float(sum(step["reward"] for step in steps if step.get("reward") is not None)),
        events=events,
        spec_hash="",
        kit_version=str(versions.get("kit") or ""),
        schema_version=SCHEMA_VERSION,
        group_id=body.get("group_id"),
        reward=body.get("reward"),
        outcome_score=None if card is None else card.get("outcome_score"),
        events_score=None if card is None else card.get("events_score"),
        digest=body.get("digest"),
        observation_digest=body.get("observation_digest"),
        scorecard=card,
        failure=None
        if error is None
        else {name: error.get(name) for name in ("boundary", "code", "message", "error_id", "hint")},
        private={
            name: trace[shown]
            for shown, name in (("judge_calls", "judge_calls"), ("auxiliary_calls", "second_calls"))
            if trace.get(shown)
        },
        timing=timing,
        seconds=float(timing.get("total") or (row.seconds if row is not None else None) or 0.0),
        tokens=row.tokens if row is not None else None,
        cost=row.cost if row is not None else known_sum(costs),
    )

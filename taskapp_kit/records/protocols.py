"""Protocols through which packages work together without importing each other. `rollout/service.py` connects them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Content, Json
from taskapp_kit.records.scorecard import POLICY, ModelUse, tokens_of
from taskapp_kit.records.trajectory import Decision, PlayedStep


@dataclass(frozen=True, slots=True)
class Tool:
    """An action as a policy sees it.

    `parameters` is the JSON Schema of the arguments. If `text` is true, the argument is the assistant's plain text.
    `noop` contains the arguments of a call that changes nothing, or is None. `sample` is the author's function
    `fn(rng) -> dict` that samples arguments. It is needed if a field is unbounded.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    text: bool = False
    noop: Mapping[str, Json] | None = None
    sample: Callable[[random.Random], Any] | None = field(default=None, compare=False)


@dataclass(slots=True)
class View:
    """A policy's input in a turn: the current observation, the steps since its last turn, and the available tools.

    `observation` is the newest observation, and `initial` is the first. `results` contains the steps of the policy's last
    reply, followed by the steps that the caller scripted. `task` is the row, including private fields. Only the author's
    `gold` policy may read it, never a model.
    """

    turn: int
    observation: Content
    results: Sequence[PlayedStep]
    tools: Sequence[Tool]
    task: Any = None
    initial: Content = None


class PolicyStops(BaseException):
    """Raised instead of calling a policy or a model, to end the episode as truncated. The episode is scored.

    It is not an Exception, so an author's `except Exception` around a model call, or a library's retry, does not catch it.

    stop_reason: The reason that the trajectory records, such as `left`. value: The value of the limit that was reached. If
    None, the event `limited` contains the number of turns.
    """

    def __init__(self, stop_reason: str, value: float | None = None) -> None:
        super().__init__(stop_reason)
        self.stop_reason = stop_reason
        self.value = value


@runtime_checkable
class LocalPolicy(Protocol):
    """A policy that computes its decisions in the environment's thread. Each rollout has a separate object."""

    @property
    def name(self) -> str:
        """Return the name under which the policy was requested."""
        ...

    def decide(self, view: View) -> Decision:
        """Return the next decision. May raise PolicyStops. Any other exception is a failure at boundary `policy`."""
        ...


class Clock(Protocol):
    """A source of time that tests can replace. Both methods return seconds."""

    def now(self) -> float:
        """Return unix time."""
        ...

    def monotonic(self) -> float:
        """Return a time that never decreases. Its zero point is arbitrary."""
        ...


class SystemClock:
    """The machine's clock: unix time, and seconds since an arbitrary moment."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.perf_counter)


@dataclass(slots=True)
class StoredRollout:
    """A stored rollout. All fields are JSON, except `blobs`: PNG bytes of images by their SHA-256 (hex).

    Attributes:
        status: `terminated`, `truncated` or `failed`.
        events: The events in order, in the format of `records.events.to_json`, without private state.
        private: Data that only rubrics may read (`{"final_state": …}`), and the calls to judges and auxiliary models.
        policy: The allow-listed part of `policy.config`.
        failure: The boundary, code, message and error_id of a failed rollout.
        created_at: Unix seconds.
        seconds: Wall time.
        tokens: The prompt and completion tokens of the policy's model, or None if unknown.
        cost: The cost in US dollars of all priced model calls, also by judges and the environment, or None if there are none.
        row_hash: The SHA-256 of the task's row, or None if the task has no row. The row itself is never stored.
        observation_digest: The digest that includes images. None if no images were requested, and in rows from before 0.2.0.
    """

    rollout_id: str
    run_id: str
    created_at: float
    app: str
    app_version: str
    environment: str
    environment_version: str
    split: str
    seed: int
    config: dict[str, Json]
    policy: dict[str, Json]
    mode: str
    status: str
    stop_reason: str
    length: int
    total_reward: float
    events: Sequence[dict[str, Json]]
    spec_hash: str
    kit_version: str
    schema_version: int
    group_id: str | None = None
    row_hash: str | None = None
    reward: float | None = None
    outcome_score: float | None = None
    events_score: float | None = None
    digest: str | None = None
    observation_digest: str | None = None
    scorecard: dict[str, Json] | None = None
    failure: dict[str, Json] | None = None
    private: dict[str, Json] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    key_label: str | None = None
    tokens: int | None = None
    cost: float | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """A filter for stored rollouts. A rollout must match every field that is not None.

    `reward_above` and `reward_below` are exclusive bounds. An undefined reward matches neither. `before` is the (created_at,
    rollout_id) of a row. Only rows that follow this row in the order from newest to oldest match. `limit` is the
    maximum number of rows, at least 1.
    """

    app: str | None = None
    environment: str | None = None
    policy: str | None = None
    status: str | None = None
    boundary: str | None = None
    run_id: str | None = None
    group_id: str | None = None
    key_label: str | None = None
    reward_above: float | None = None
    reward_below: float | None = None
    before: tuple[float, str] | None = None
    limit: int = 50


@dataclass(slots=True)
class RolloutRow:
    """A rollout without its events, as in lists, aggregates and `results.jsonl`.

    Unknown attributes are None, or empty for strings and mappings.

    Attributes:
        status: `terminated`, `truncated` or `failed`, or `running` while the rollout is played.
        rollout_id: The rollout's id.
        environment: The environment's name.
        split: The split of the seed.
        seed: The seed of the episode.
        sample: The index of the rollout among the rollouts with its seed, from 0.
        policy: The policy's name, or `model` for a language model.
        model: The language model's name.
        name: The policy's name within its evaluation.
        stop_reason: Why the episode ended.
        boundary: Where the rollout failed. None if the task app is not built with this kit and did not report it.
        code: The failure's code.
        message: The failure's message.
        reward: The reward, or None if it is undefined or the rollout failed.
        outcome_score: The outcome score, or None as with `reward`.
        events_score: The events score, or None as with `reward`.
        total_reward: The sum of the step rewards. Only set in aggregates and for rollouts that did not fail.
        criteria: Scores by name.
        metrics: The metrics of scoring, and the episode's metrics if they are available without reading the events.
        length: The number of steps.
        turns: The number of the policy's decisions.
        usage: The numbers of tokens, with the endpoint's names.
        tokens: The sum of prompt and completion tokens.
        cost: The cost in US dollars of all model calls whose price is known.
        policy_cost: The cost of the policy's model.
        other_cost: The cost of judges and of models that the environment called.
        models: The calls, tokens and cost of each model in each role.
        seconds: Wall time.
        row: Short public fields of the task's row.
    """

    status: str
    rollout_id: str
    environment: str = ""
    split: str = ""
    seed: int = 0
    sample: int | None = None
    policy: str | None = None
    model: str | None = None
    name: str | None = None
    stop_reason: str | None = None
    boundary: str | None = None
    code: str | None = None
    message: str | None = None
    reward: float | None = None
    outcome_score: float | None = None
    events_score: float | None = None
    total_reward: float = 0.0
    criteria: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    length: int | None = None
    turns: int | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    tokens: int | None = None
    cost: float | None = None
    policy_cost: float | None = None
    other_cost: float | None = None
    models: Sequence[ModelUse] = field(default_factory=list)
    seconds: float | None = None
    digest: str | None = None
    observation_digest: str | None = None
    created_at: float | None = field(default=None, compare=False)
    run_id: str | None = None
    group_id: str | None = None
    spec_hash: str | None = None
    row: Mapping[str, Json] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Return whether the rollout failed. A failed rollout has no reward."""
        return self.status == "failed"

    @property
    def unpriced(self) -> bool:
        """Return whether the price of one of the policy's model calls is unknown."""
        calls = any(use["unpriced_calls"] for use in self.models if use["role"] == POLICY)
        return calls or (self.policy_cost is None and tokens_of(self.usage) > 0)


LISTED = tuple(
    """created_at environment split seed policy model status stop_reason boundary reward length tokens cost seconds
    run_id group_id""".split()
)
"""The fields of a row, in addition to its id, that every list has."""


RowOrder = Literal["newest", "worst", "best", "cost", "tokens", "seconds", "length"]
"""The order of a list: `newest` first, `worst` or `best` reward first, or the largest value of the named field first.

In every order except `newest`, rows without a value are omitted, and rows with equal values are ordered by seed.
"""


@dataclass(frozen=True, slots=True)
class StoredScores:
    """The scores of a stored rollout by another version of the scorer. The rollout's original scores stay unchanged.

    `scorer` is the version. `status` is the episode's status, or `failed` if the scoring failed. In that case, `scorecard`
    is None and `failure` has boundary, code, message and error_id. `cost` is the cost of judges in US dollars, or None if
    unknown. `seconds` is the duration of scoring. `private` has all judge calls (`judge_calls`), and is empty in lists.
    """

    rollout_id: str
    scorer: str
    created_at: float
    status: str
    reward: float | None
    outcome_score: float | None
    events_score: float | None
    scorecard: dict[str, Json] | None
    failure: dict[str, Json] | None
    seconds: float
    cost: float | None
    app_version: str
    spec_hash: str
    kit_version: str
    private: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScorerVersion:
    """A version of a scorer, the number of rollouts that it scored, and the time of its newest scores (Unix seconds)."""

    scorer: str
    rollouts: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Annotation:
    """A person's score of a rollout.

    `criterion` names the criterion or judge whose scale the score uses. `annotator` is the label of the person's key. Each
    person has one score per criterion. `note` is the person's comment. `created_at` is in Unix seconds.
    """

    rollout_id: str
    criterion: str
    annotator: str
    score: float
    note: str = ""
    created_at: float = 0.0


class Store(Protocol):
    """A store for rollouts. All asyncio tasks of one event loop may use it. Its methods raise StoreError if it fails."""

    async def save(self, rollout: StoredRollout) -> None:
        """Store the rollout durably: after this returns, it survives a kill -9."""
        ...

    async def load(self, rollout_id: str) -> StoredRollout | None:
        """Return the rollout without the bytes of its images, or None if it does not exist."""
        ...

    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None if they are not stored."""
        ...

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        """Return rollouts with empty `events`, newest first."""
        ...

    def coordinator(self, clock: Clock) -> IdempotencyStore | None:
        """Return a store for idempotency records, or None to keep them in memory. The caller closes it before this store."""
        ...

    async def close(self) -> None:
        """Finish pending writes, then close the file or the connection."""
        ...


@runtime_checkable
class QueryableStore(Store, Protocol):
    """A store that can also list rollouts, store later scores and annotations, and remove old rollouts.

    A plugin's store does not have to implement these methods. Features that need them are then unavailable.
    """

    async def query(self, wanted: RolloutQuery) -> list[RolloutRow]:
        """Return the matching rollouts, newest first. Rollouts with equal times are ordered by descending rollout_id.

        A row has at least `rollout_id` and the fields in `LISTED`. Raises StoreError if the store fails.
        """
        ...

    async def listed(self, wanted: RolloutQuery, order: RowOrder = "newest") -> list[RolloutRow]:
        """Return the first `wanted.limit` matching rollouts. Raises StoreError if the store fails.

        `wanted.policy` matches the name of the policy or the model. `wanted.before` can only be used with the order `newest`.
        """
        ...

    async def save_scores(self, scores: Sequence[StoredScores]) -> None:
        """Store scores by another version of the scorer. They replace that version's failure for the same rollout.

        Raises StoreRefusal if that version has already scored a rollout or a value cannot be stored exactly, and
        StoreError if the store fails.
        """
        ...

    async def scores(self, scorer: str) -> dict[str, StoredScores]:
        """Return a scorer version's scores by rollout id, with empty `private`. Raises StoreError if the store fails."""
        ...

    async def scores_of(self, rollout_id: str, scorer: str) -> StoredScores | None:
        """Return a version's scores of one rollout, or None if they do not exist. Raises StoreError if the store fails."""
        ...

    async def scorers(self) -> list[ScorerVersion]:
        """Return the versions that have scores, newest first. Raises StoreError if the store fails."""
        ...

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Store annotations. They replace earlier annotations with the same rollout, criterion and annotator.

        Raises StoreError if the store fails.
        """
        ...

    async def annotations(
        self, *, rollout_id: str | None = None, app: str | None = None, key_label: str | None = None
    ) -> list[Annotation]:
        """Return the annotations that match all arguments that are not None, oldest first.

        Raises StoreError if the store fails.
        """
        ...

    async def prune(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """Remove rollouts of `app` that began before `before` (Unix seconds), or all except the newest `keep`.

        Rollouts with an idempotency record and images of remaining rollouts are not removed. Returns how many rollouts were
        removed. Raises StoreError if the store fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A record of a rollout that can be found by its id and by the Idempotency-Key of its request.

    `key` is the SHA-256 (hex) of the app's name, the API key's label and the idempotency key, or None without one.
    `fingerprint` is the SHA-256 (hex) of the request's body. `created_at` is in Unix seconds. `key_label` is the label of
    the API key that sent the request. `app` is the task app's name, or None in records from before 0.2.0.
    """

    rollout_id: str
    fingerprint: str
    created_at: float
    key: str | None = None
    key_label: str | None = None
    app: str | None = None


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The result of a rollout: either its failure, or the bytes of the response to `POST /rollout`.

    events: The events as a JSON array, if no store of rollouts has them.
    """

    rollout_id: str
    answer: bytes | None = None
    failure: Failure | None = None
    events: bytes | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A record and its state.

    `running`: the process that owns the record plays the rollout. `lost`: that process died before the rollout ended.
    """

    record: IdempotencyRecord
    state: Literal["running", "lost", "settled"]
    settled: StoredResult | None = None


class IdempotencyStore(Protocol):
    """Idempotency records, which all servers with the same store share.

    The methods are called on one event loop. They raise StoreError if the store fails.
    """

    async def claim(self, ticket: IdempotencyRecord, *, keep_lost: bool = False) -> Claim | None:
        """Claim the key of a record. Return None on success, or the existing claim if the key is taken.

        On success, the record is stored with this process as the owner. A key is free again if its record is older than 24
        hours, was lost, or was settled with `free_key`. A record without a key is always stored. If several processes claim a
        key at the same time, one succeeds.

        keep_lost: Whether a lost record keeps its key, because its rollout may be in a store although its result is not.
        """
        ...

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """Store the result of a record that this process owns. After this returns, the result is as durable as the store.

        free_key: Whether the idempotency key may be claimed again, because a cancelled rollout has no result to return. The
        record itself stays and can be looked up.
        """
        ...

    async def release(self, rollout_id: str) -> None:
        """Remove a record that this process owns and whose rollout never began."""
        ...

    async def look(self, rollout_id: str) -> Claim | None:
        """Return the record of this rollout, or None if it does not exist or has expired."""
        ...

    async def close(self) -> None:
        """Stop the background work. Records that this process still owns become lost."""
        ...

"""The protocols through which packages work together without importing each other; `rollout/service.py` connects them."""

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

    parameters: JSON Schema of an object. text: takes the assistant's plain text instead of arguments. noop: arguments that
    change nothing, or None. sample: the author's function that samples arguments, `fn(rng) -> dict`, needed if a field
    is unbounded.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    text: bool = False
    noop: Mapping[str, Json] | None = None
    sample: Callable[[random.Random], Any] | None = field(default=None, compare=False)


@dataclass(slots=True)
class View:
    """A policy's input for its turn: the current observation, the steps since its last turn, the available tools.

    `observation` is the newest observation, `initial` the first. `results` are the steps of the policy's answer, then the
    steps that the caller scripted. `task` is the row with its private fields: only the author's `gold` policy reads it,
    never a model.
    """

    turn: int
    observation: Content
    results: Sequence[PlayedStep]
    tools: Sequence[Tool]
    task: Any = None
    initial: Content = None


class PolicyStops(BaseException):
    """Raised instead of a call of a policy or a model, to end the episode: truncated and scored, not failed.

    It is not an Exception, so that an author's `except Exception` around a model's call, or a library's retry, does not
    catch it.

    stop_reason: as recorded in the trajectory, such as `left`. value: the value of the limit that was reached; if None, the
    event has the number of turns.
    """

    def __init__(self, stop_reason: str, value: float | None = None) -> None:
        super().__init__(stop_reason)
        self.stop_reason = stop_reason
        self.value = value


@runtime_checkable
class LocalPolicy(Protocol):
    """A policy that computes its decisions in the environment's thread. One object for each rollout."""

    @property
    def name(self) -> str:
        """Return the name under which it was requested."""
        ...

    def decide(self, view: View) -> Decision:
        """Return the next decision. May raise PolicyStops; any other exception is a failure at boundary `policy`."""
        ...


class Clock(Protocol):
    """A source of time that a test can replace. Both values in seconds."""

    def now(self) -> float:
        """Return unix time."""
        ...

    def monotonic(self) -> float:
        """Return a time that never goes back; its zero has no meaning."""
        ...


class SystemClock:
    """The machine's clock: unix time, and seconds since an arbitrary moment."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.perf_counter)


@dataclass(slots=True)
class StoredRollout:
    """A stored rollout. All of it is JSON except `blobs`, the images by the SHA-256 (hex) of their PNG bytes.

    Attributes:
        status: `terminated`, `truncated` or `failed`.
        events: In order, as `records.events.to_json` writes them, without private state.
        private: Data that only rubrics may read (`{"final_state": …}`), and the calls of judges and auxiliary models.
        policy: The allow-listed part of `policy.config`.
        failure: The boundary, code, message and error_id of a failed rollout.
        created_at: Unix seconds.
        seconds: Wall time.
        tokens: Prompt and completion tokens of the policy's model, None if unknown.
        cost: US dollars of every call with a price, including judges' and the environment's; None if unknown.
        row_hash: SHA-256 of the task's row, or None; the row itself is never stored.
        observation_digest: The digest with the images; None if no images were requested, and in rows from before 0.2.0.
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
    """A filter for stored rollouts, which must match every member that is not None.

    reward_above, reward_below: exclusive bounds; an undefined reward matches neither. before: (created_at, rollout_id)
    of a row; only rows after it in the order newest first. limit: the maximum number of rows, from 1.
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
    """A rollout in a list, in an aggregate and in `results.jsonl`, without its events.

    Unknown attributes are None, or empty for strings and mappings.

    Attributes:
        status: `terminated`, `truncated` or `failed`; `running` while it is played.
        rollout_id: The rollout's id.
        environment: The environment's name.
        split: The split of the seed.
        seed: The seed of the episode.
        sample: The number of the rollout among the rollouts of its seed, from 0.
        policy: The policy's name; `model` for a language model.
        model: The language model's name.
        name: The policy's name within its evaluation.
        stop_reason: Why the episode ended.
        boundary: Where it failed; None if a foreign server did not report it.
        code: The failure's code.
        message: The failure's message.
        reward: None if it is undefined, and for a failed rollout.
        outcome_score: None as `reward`.
        events_score: None as `reward`.
        total_reward: The sum of the step rewards, in aggregates and in lines of rollouts that did not fail.
        criteria: Scores by name.
        metrics: Metrics of scoring, and of the episode if they are known without its events.
        length: The number of steps.
        turns: The number of the policy's decisions.
        usage: Tokens, by the endpoint's names.
        tokens: Prompt and completion tokens together.
        cost: US dollars of every call with a price.
        policy_cost: The cost of the policy's model.
        other_cost: The cost of judges and of models that the environment called.
        models: What each model used.
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
        """Return whether it failed, and so has no reward."""
        return self.status == "failed"

    @property
    def unpriced(self) -> bool:
        """Return whether the price of a call of the policy's model is unknown."""
        calls = any(use["unpriced_calls"] for use in self.models if use["role"] == POLICY)
        return calls or (self.policy_cost is None and tokens_of(self.usage) > 0)


LISTED = (
    "created_at", "environment", "split", "seed", "policy", "model", "status", "stop_reason", "boundary", "reward", "length",
    "tokens", "cost", "seconds", "run_id", "group_id",
)  # fmt: skip
"""The members of a row, in addition to its id, that every list has."""


RowOrder = Literal["newest", "worst", "best", "cost", "tokens", "seconds", "length"]
"""The order of a list: `newest` first; `worst` and `best` by reward; others by that member, the largest first.

In every order except `newest`, rows without a value are omitted, and equal rows are in the order of their seeds.
"""


@dataclass(frozen=True, slots=True)
class StoredScores:
    """The scores of a stored rollout by another version of its scorer. The rollout's own scores stay unchanged.

    scorer: the version. status: the episode's, or failed if it could not be scored; then scorecard is None and failure has
    boundary, code, message and error_id. cost: US dollars of judges, None if unknown. seconds: the duration of scoring.
    private: every call of a judge (`judge_calls`); empty in lists.
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
    """A version of a scorer, with the number of its scored rollouts and the time of the newest scores (unix seconds)."""

    scorer: str
    rollouts: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Annotation:
    """A person's score of a rollout.

    criterion: the criterion or judge, on whose scale the score is. annotator: the label of the person's key; each person has
    one score for a criterion. note: the person's comment. created_at: unix seconds.
    """

    rollout_id: str
    criterion: str
    annotator: str
    score: float
    note: str = ""
    created_at: float = 0.0


class Store(Protocol):
    """A store for rollouts. Calls may come from any task of one event loop; they raise StoreError."""

    async def save(self, rollout: StoredRollout) -> None:
        """Store the rollout, which survives a kill -9 once this returns."""
        ...

    async def load(self, rollout_id: str) -> StoredRollout | None:
        """Return the rollout without its blobs' bytes, or None."""
        ...

    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None."""
        ...

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        """Return rollouts with empty `events`, newest first."""
        ...

    def coordinator(self, clock: Clock) -> IdempotencyStore | None:
        """Return a store of idempotency records that lives as long as this store, or None to store them in memory."""
        ...

    async def close(self) -> None:
        """Finish pending writes, then close the file or the connection."""
        ...


@runtime_checkable
class QueryableStore(Store, Protocol):
    """A store that also lists rollouts, stores later scores and people's scores, and removes old rollouts.

    Optional for a plugin's store. Without it, features that need these methods are unavailable.
    """

    async def query(self, wanted: RolloutQuery) -> list[RolloutRow]:
        """Return the matching rollouts, newest first, at equal times by rollout_id descending. Raises StoreError.

        A row has at least `rollout_id` and the members in `LISTED`.
        """
        ...

    async def listed(self, wanted: RolloutQuery, order: RowOrder = "newest") -> list[RolloutRow]:
        """Return the first `wanted.limit` matching rollouts. Raises StoreError.

        `wanted.policy` matches the name of the policy or of the model; `wanted.before` applies to `newest` only.
        """
        ...

    async def save_scores(self, scores: Sequence[StoredScores]) -> None:
        """Store later scores. They replace a failure, never scores. Raises StoreRefusal, StoreError."""
        ...

    async def scores(self, scorer: str) -> dict[str, StoredScores]:
        """Return the scores of a version by rollout id, with empty `private`. Raises StoreError."""
        ...

    async def scores_of(self, rollout_id: str, scorer: str) -> StoredScores | None:
        """Return the scores of one rollout, or None. Raises StoreError."""
        ...

    async def scorers(self) -> list[ScorerVersion]:
        """Return the versions that have scores, newest first. Raises StoreError."""
        ...

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Store annotations, replacing earlier annotations of the same rollout, criterion and annotator. Raises StoreError."""
        ...

    async def annotations(
        self, *, rollout_id: str | None = None, app: str | None = None, key_label: str | None = None
    ) -> list[Annotation]:
        """Return the annotations of rollouts that match every argument that is not None, oldest first. Raises StoreError."""
        ...

    async def prune(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """Remove rollouts of `app` that began before `before` (unix seconds), or all but the newest `keep`.

        Rollouts with an idempotency record stay, and images of remaining rollouts. Returns the number of removed rollouts.
        Raises StoreError.
        """
        ...


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A rollout that can be found by its id and by the Idempotency-Key of its request.

    key: SHA-256 (hex) of the app's name, the API key's label, and the idempotency key, or None. fingerprint: SHA-256 (hex)
    of the request's body. created_at: unix seconds. key_label: the label of the API key that sent the request. app: the
    task app's name, None in records from before 0.2.0.
    """

    rollout_id: str
    fingerprint: str
    created_at: float
    key: str | None = None
    key_label: str | None = None
    app: str | None = None


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The result of a rollout: exactly one of the failure and the bytes of the answer of `POST /rollout`.

    events: a JSON array, if no store of rollouts has them.
    """

    rollout_id: str
    answer: bytes | None = None
    failure: Failure | None = None
    events: bytes | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A record and its state. `running`: its owner plays it; `lost`: its owner died before it had a result."""

    record: IdempotencyRecord
    state: Literal["running", "lost", "settled"]
    settled: StoredResult | None = None


class IdempotencyStore(Protocol):
    """Idempotency records, shared by all servers of one store. Called from one event loop; methods raise StoreError."""

    async def claim(self, ticket: IdempotencyRecord, *, keep_lost: bool = False) -> Claim | None:
        """Store the record as owned by this process and return None; if its key is taken, return the claim with the key.

        keep_lost: a lost record keeps its key, because its rollout may be in a store although its result is not.

        A key is free again when its record is older than 24 hours, when it is lost, and when it was settled with
        `free_key`. A record without a key is always stored. Of claims at the same time, in any process, one succeeds.
        """
        ...

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """Store the result of a record that this process owns. When it returns, the result is as durable as the store.

        free_key: its idempotency key may be claimed again, because a cancelled rollout has no result to repeat. The record
        stays and can be looked up.
        """
        ...

    async def release(self, rollout_id: str) -> None:
        """Remove a record that this process owns and whose rollout never began."""
        ...

    async def look(self, rollout_id: str) -> Claim | None:
        """Return the record of this rollout; None if it does not exist or has expired."""
        ...

    async def close(self) -> None:
        """End the background work. Records that this process still owns are then lost."""
        ...

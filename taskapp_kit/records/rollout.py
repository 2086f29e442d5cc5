"""The class `Rollout`: the result of one rollout. Executors, the store, responses and the log use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json, images
from taskapp_kit.records.events import EncodedEvents, EpisodeEnded, Event, Failed, fold, from_json
from taskapp_kit.records.protocols import RolloutRow, StoredRollout
from taskapp_kit.records.scorecard import (
    POLICY,
    TOKEN_COUNTS,
    JudgeRecord,
    ModelUse,
    Scorecard,
    known_sum,
    model_use,
    summed,
)
from taskapp_kit.records.trajectory import Trajectory

if TYPE_CHECKING:
    from taskapp_kit.wire.rollout import RolloutRequest

_NOT_SENT = frozenset(
    """request policy rollout_id created_at versions timing cause body stored pictures _encoded _events _trajectory""".split()
)
"""Fields that a worker process omits, because the parent has them or they are sent separately as bytes."""


@dataclass(slots=True)
class Rollout:
    """A rollout that has ended because it was scored, failed or was cancelled.

    Attributes:
        request: The request.
        policy: The name of the policy that acted.
        environment: The environment's name.
        version: The environment's version.
        split: The split that contains the seed.
        seed: The seed of the episode.
        status: `terminated`, `truncated` or `failed`.
        stop_reason: Why the episode ended: a code, listed in docs/reference/contract.md.
        length: The number of steps.
        total_reward: The sum of the steps' rewards.
        metrics: The kit's and the environment's metrics of the episode.
        usage: The policy's token counts, under the names that the model's endpoint uses.
        final_state: The environment's end state. It is private: it is stored separately, and responses never contain it.
        ops_executed: The number of executed ops. Each policy turn and each action counts 1.
        digest: The hash of the episode, or None if the episode failed. If only the scoring failed, it is set.
        observation_digest: Like `digest`, but includes the images. Also None if the caller requested no images.
        cost: The cost in US dollars of the policy's model calls whose price is known, or None if no price is known.
        models: The calls, tokens and cost of each model, including the models of judges and of the environment.
        scorecard: The scores; empty unless the rollout was scored.
        failure: The failure, or None if the rollout was scored.
        cause: The exception behind a failure, for the log.
        judging: All judge calls. Private, like `final_state`.
        auxiliary_calls: All model calls by the environment. Private, like `final_state`.
        warnings: Messages for the caller.
        seconds: The seconds spent in the environment, the policy and scoring.
        inference_url: The model's address, without a key.
        correlation_id: The caller's id for this rollout's trace.
        rollout_id: The rollout's id. The executor sets it and all attributes below.
        created_at: The time of the request in Unix seconds.
        versions: The versions of the kit, the app and the environment, and the git commit (None outside a checkout).
        timing: `seconds`, plus `total` (including waiting) and `framework` (the rest of the total).
        pictures: PNG bytes of images by their SHA-256.
        stored: The row to store, or None if the rollout is not stored.
        body: The response to `POST /rollout` as JSON, or None if no worker process encoded it.
    """

    request: RolloutRequest
    policy: str
    environment: str
    version: str
    split: str
    seed: int
    status: str
    stop_reason: str
    length: int
    total_reward: float
    metrics: dict[str, float]
    usage: dict[str, float]
    final_state: Json = None
    ops_executed: int = 0
    digest: str | None = None
    observation_digest: str | None = None
    cost: float | None = None
    models: list[ModelUse] = field(default_factory=list)
    scorecard: Scorecard = field(default_factory=Scorecard)
    failure: Failure | None = None
    cause: BaseException | None = None
    judging: JudgeRecord = field(default_factory=JudgeRecord)
    auxiliary_calls: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    inference_url: str | None = None
    correlation_id: str | None = None
    rollout_id: str = ""
    created_at: float = 0.0
    versions: dict[str, str | None] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict, repr=False)
    stored: StoredRollout | None = field(default=None, repr=False)
    body: bytes | None = field(default=None, repr=False)
    # Each form is created on first use, because a parent process forwards the encoded bytes without reading them.
    _encoded: EncodedEvents | None = field(default=None, repr=False)
    _events: list[Event] | None = field(default=None, repr=False)
    _trajectory: Trajectory | None = field(default=None, repr=False)

    @classmethod
    def of_events(
        cls,
        request: RolloutRequest,
        policy: str,
        events: list[Event],
        trajectory: Trajectory | None = None,
        **given: Any,
    ) -> Self:
        """Create the result from the events of an episode.

        trajectory: The fold of `events`, if it is already known. given: Values of further fields.
        """
        folded = fold(events) if trajectory is None else trajectory
        given.setdefault("status", folded.status)
        models = _models_of(folded, given.get("auxiliary_calls") or (), given.get("judging") or JudgeRecord())
        return cls(
            request,
            policy,
            folded.environment,
            folded.version,
            folded.split,
            folded.seed,
            stop_reason=folded.stop_reason,
            length=folded.length,
            total_reward=folded.total_reward,
            metrics=folded.metrics,
            final_state=folded.final_state,
            usage=_usage_of(folded),
            cost=known_sum(use["cost"] for use in models if use["role"] == POLICY),
            models=models,
            _events=events,
            _trajectory=folded,
            **given,
        )

    @property
    def events(self) -> list[Event]:
        """Return the events in order, from `started` to `scored`. A worker's events are decoded on first access."""
        if self._events is None:
            self._events = [from_json(event, self.pictures) for event in self._encoded or ()]
            for event in self._events:
                if isinstance(event, EpisodeEnded):
                    event.final_state = self.final_state
        return self._events

    @property
    def trajectory(self) -> Trajectory:
        """Return the episode as it was played: the fold of `events`."""
        if self._trajectory is None:
            self._trajectory = fold(self.events)
        return self._trajectory

    @property
    def reward(self) -> float | None:
        """Return the scorecard's reward, or None if a part of its formula is undefined or nothing was scored."""
        return self.scorecard.reward

    @property
    def all_metrics(self) -> dict[str, float]:
        """Return the environment's and the app's metrics by name."""
        return {**self.metrics, **self.scorecard.metrics}

    @property
    def total_cost(self) -> float | None:
        """Return the cost in US dollars of all model calls whose price is known, or None if no price is known.

        This includes the calls of judges and of the environment.
        """
        return known_sum(use["cost"] for use in self.models)

    @property
    def tokens(self) -> int | None:
        """Return the number of prompt and completion tokens in all turns, or None if no endpoint counted them."""
        counts = [self.usage[name] for name in TOKEN_COUNTS if name in self.usage]
        total = sum(counts)
        return int(total) if counts and 0 <= total < 2**63 else None

    def row(self) -> RolloutRow:
        """Return the row for lists and aggregates.

        The row of a failed rollout contains the numbers up to the failure, but no scores.
        """
        row = RolloutRow(
            status=self.status,
            rollout_id=self.rollout_id,
            environment=self.environment,
            split=self.split,
            seed=self.seed,
            length=self.length,
            stop_reason=self.stop_reason or None,
            usage=dict(self.usage),
            seconds=self.timing.get("total"),
            tokens=self.tokens,
            cost=self.total_cost,
            policy_cost=self.cost,
            other_cost=known_sum(use["cost"] for use in self.models if use["role"] != POLICY),
            models=self.models,
            created_at=self.created_at,
        )
        if self.failure is not None:
            row.boundary, row.code, row.message = self.failure.boundary, self.failure.code, self.failure.message
            return row
        card = self.scorecard
        row.reward, row.outcome_score, row.events_score = card.reward, card.outcome_score, card.events_score
        row.total_reward, row.metrics = self.total_reward, self.all_metrics
        row.criteria = {item.name: item.score for item in card.criteria if item.of != "metric"}
        row.digest, row.observation_digest = self.digest, self.observation_digest
        return row

    def shown_pictures(self) -> dict[str, bytes]:
        """Return the PNG bytes of the images in the trajectory, by SHA-256 (hex). Images are encoded if necessary."""
        shown = list(images(self.trajectory.initial))
        for step in self.trajectory.steps:
            if type(step.observation) is list:
                shown.extend(images(step.observation))
        return {picture.hash: picture.png for picture in shown}

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON for the parent process, including the private end state.

        Fields that the parent already has are omitted.
        """
        sent = {name: getattr(self, name) for name in Rollout.__slots__ if name not in _NOT_SENT}
        sent["scorecard"] = self.scorecard.to_json()
        sent["judging"] = self.judging.to_json() if self.judging else None
        sent["failure"] = None if self.failure is None else asdict(self.failure)
        return sent

    @staticmethod
    def from_json(
        body: dict[str, Any],
        request: RolloutRequest,
        policy: str,
        events: EncodedEvents,
        pictures: dict[str, bytes],
        answer: bytes | None,
    ) -> Rollout:
        """Create the rollout from the result of `to_json` and the parts that the worker sent separately."""
        failure, judging = body.pop("failure"), body.pop("judging")
        return Rollout(
            request,
            policy,
            scorecard=Scorecard.from_json(body.pop("scorecard")),
            judging=JudgeRecord() if judging is None else JudgeRecord.from_json(judging),
            failure=None if failure is None else Failure(**failure),
            pictures=pictures,
            body=answer,
            _encoded=events,
            **body,
        )


def failure_of(events: list[Event]) -> Failure | None:
    """Return the failure of the last `failed` event, or None if there is no such event."""
    return next((event.failure() for event in reversed(events) if type(event) is Failed), None)


def _usage_of(trajectory: Trajectory) -> dict[str, float]:
    total: dict[str, float] = {}
    for turn in trajectory.turns:
        for name, count in turn.answer.usage.items():
            total[name] = total.get(name, 0.0) + count
    return total


def _models_of(trajectory: Trajectory, auxiliary: Sequence[Any], judging: JudgeRecord) -> list[ModelUse]:
    answered = [call for call in judging.calls if call.model or call.usage or call.text]
    turns = [(turn.answer, turn.answer.details) for turn in trajectory.turns if "cost" in turn.answer.details]
    return summed(
        [
            *(model_use(POLICY, told.get("model"), answer.usage, told["cost"]) for answer, told in turns),
            *(model_use(call["role"], call.get("model"), call["usage"], call["cost"]) for call in auxiliary),
            *(model_use(call.role, call.model, call.usage, call.cost) for call in answered),
        ]
    )

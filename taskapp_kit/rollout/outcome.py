"""What a rollout came to: its numbers, scores and failure, without its steps. It crosses between processes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.result import Rollout, Story
from taskapp_kit.contract.scorecard import JudgeRecord, RolloutSummary, Scorecard
from taskapp_kit.contract.trajectory import Trajectory
from taskapp_kit.errors import Failure
from taskapp_kit.rollout.play_and_score import Played
from taskapp_kit.rollout.request import PlannedRollout

TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
"""Names that endpoints give to the tokens that they were sent and that they wrote, one pair of them each."""


@dataclass(slots=True)
class Outcome:
    """The store's row and the log need no more of a rollout than this, its encoded events and its pictures.

    length: steps. final_state: private. usage: tokens. cost: US dollars for them, None where no price is known.
    ops: operations done. seconds: in environment, policy, scoring.
    judging: every call of a judge, second_calls: of models that the environment asked itself; both private.
    digest: None when the episode failed; observation_digest then too, and when no pictures were asked for.
    scorecard: None when it failed or could not be scored. warnings: sentences for the caller about how it was played.
    """

    environment: str
    version: str
    split: str
    seed: int
    status: str
    stop_reason: str
    length: int
    total_reward: float
    metrics: dict[str, float]
    final_state: Json
    usage: dict[str, float]
    ops: int
    seconds: dict[str, float] = field(default_factory=dict)
    digest: str | None = None
    observation_digest: str | None = None
    cost: float | None = None
    scorecard: Scorecard | None = None
    failure: Failure | None = None
    judging: JudgeRecord = field(default_factory=JudgeRecord)
    second_calls: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, played: Played) -> Outcome:
        """The outcome of what was played in this process."""
        told = played.trajectory
        return cls(
            environment=told.environment,
            version=told.version,
            split=told.split,
            seed=told.seed,
            status="failed" if played.failure is not None else told.status,
            stop_reason=told.stop_reason,
            length=told.length,
            total_reward=told.total_reward,
            metrics=told.metrics,
            final_state=told.final_state,
            usage=usage_of(told),
            ops=played.ops,
            seconds=played.seconds,
            digest=played.digest,
            observation_digest=played.observation_digest,
            cost=_cost(told),
            scorecard=played.scorecard,
            failure=played.failure,
            judging=played.judging,
            second_calls=played.second_calls,
            warnings=played.warnings,
        )

    @property
    def tokens(self) -> int | None:
        """Prompt and completion tokens of all turns; None where no endpoint counted any."""
        counts = [self.usage[name] for name in TOKEN_COUNTS if name in self.usage]
        total = sum(counts)
        return int(total) if counts and 0 <= total < 2**63 else None

    def numbers(self, card: Scorecard) -> RolloutSummary:
        """What an aggregate reads of a scored rollout."""
        return RolloutSummary(
            environment=self.environment,
            split=self.split,
            seed=self.seed,
            status=self.status,
            length=self.length,
            total_reward=self.total_reward,
            reward=card.reward,
            outcome_score=card.outcome_score,
            events_score=card.events_score,
            metrics={**self.metrics, **card.metrics},
        )

    def rollout(
        self,
        planned: PlannedRollout,
        story: Story,
        *,
        rollout_id: str,
        created_at: float,
        versions: dict[str, str | None],
        timing: dict[str, float] | None = None,
        body: bytes | None = None,
    ) -> Rollout:
        """The finished rollout, of one that was scored. versions: but for the environment's, which is known here."""
        assert self.scorecard is not None, "what did not fail was scored"
        assert self.digest is not None, "and has a digest"
        return Rollout(
            rollout_id=rollout_id,
            request=planned.request,
            created_at=created_at,
            story=story,
            numbers=self.numbers(self.scorecard),
            scorecard=self.scorecard,
            digest=self.digest,
            observation_digest=self.observation_digest,
            policy=planned.plan.policy,
            ops_executed=self.ops,
            warnings=[*planned.warnings, *self.warnings],
            timing=timing or {},
            usage=self.usage,
            versions={**versions, "environment": self.version},
            body=body,
        )

    def to_json(self) -> dict[str, Any]:
        """For another process; the private end state is in it."""
        told = {name: getattr(self, name) for name in self.__slots__}
        told["scorecard"] = None if self.scorecard is None else self.scorecard.to_json()
        told["judging"] = self.judging.to_json() if self.judging else None
        told["failure"] = None if self.failure is None else asdict(self.failure)
        return told

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Outcome:
        """The inverse of `to_json`."""
        card, failure, judging = body["scorecard"], body["failure"], body["judging"]
        return cls(
            **{
                **body,
                "scorecard": None if card is None else Scorecard.from_json(card),
                "judging": JudgeRecord() if judging is None else JudgeRecord.from_json(judging),
                "failure": None if failure is None else Failure(**failure),
            }
        )


def _cost(trajectory: Trajectory) -> float | None:
    """US dollars of all turns that asked a model; None when there is none, or the price of one is not known."""
    costs = [turn.answer.details["cost"] for turn in trajectory.turns if "cost" in turn.answer.details]
    known = [float(cost) for cost in costs if isinstance(cost, int | float)]
    return sum(known) if known and len(known) == len(costs) else None


def usage_of(trajectory: Trajectory) -> dict[str, float]:
    """Tokens over all turns, as the endpoint counted them."""
    total: dict[str, float] = {}
    for turn in trajectory.turns:
        for name, count in turn.answer.usage.items():
            total[name] = total.get(name, 0.0) + count
    return total

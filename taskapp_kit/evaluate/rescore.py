"""Scores stored rollouts with the current rubrics and judges. Nothing is played again, and the original scores stay."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from taskapp_kit.declare.episode_selection import find_environment, read_config
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.errors import ConfigError, Failure, RequestError
from taskapp_kit.evaluate.compare import Comparison, ComparisonSettings, PairKey, Side, compare
from taskapp_kit.evaluate.limits import ModelFailures
from taskapp_kit.evaluate.scored_source import scored_row
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow, StoredRollout, StoredScores
from taskapp_kit.records.scorecard import JudgeRecord
from taskapp_kit.rollout.executors.threads import ThreadHung
from taskapp_kit.rollout.models.access import ThreadPort
from taskapp_kit.rollout.score.failures import ScoringFailed
from taskapp_kit.rollout.score.judges import expected_calls
from taskapp_kit.rollout.score.scoring import score
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.source import RolloutSource, load_trajectory
from taskapp_kit.version import __version__

ANSWERED = "answered"
"""The name of the original scores, which were computed when the rollout was played."""
SCORED_LATER = ("scoring", "timeout")
"""Failures with these boundaries may have happened after the episode ended. The episode ended if the rollout has a digest."""


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """The row and the parsed config of a stored rollout, including private fields, which scoring needs."""

    task: Any
    arguments: Mapping[str, Json]


@dataclass(slots=True)
class Rescored:
    """A stored rollout after rescoring.

    Attributes:
        row: The rollout.
        scores: The new scores, or None if the rollout cannot be scored.
        refusal: Why the rollout cannot be scored.
        new: Whether this run computed the scores. Otherwise they were already stored.
        before: The versions and the formula that the original scores were computed with, by name.
        unplayed: Whether the episode failed, so that there is nothing to score.
    """

    row: RolloutRow
    scores: StoredScores | None = None
    refusal: str | None = None
    new: bool = False
    before: Mapping[str, Json] = field(default_factory=dict)
    unplayed: bool = False


@dataclass(slots=True)
class RescoreReport:
    """The result of a rescoring, or of a dry run.

    Attributes:
        scorer: The version of the scorer.
        rollouts: The rollouts whose episode ended.
        unplayed: The number of rollouts whose episode failed. They have nothing to score.
        ready: The number of rollouts to score.
        judge_calls: The expected number of judge calls, by model role.
        call_costs: The costs of recorded judge calls in US dollars at current prices, by model role, if the prices are
            known.
        dry: Whether this was a dry run, which computes no scores.
    """

    scorer: str
    rollouts: list[Rescored]
    unplayed: int = 0
    ready: int = 0
    judge_calls: dict[str, int] = field(default_factory=dict)
    call_costs: dict[str, list[float]] = field(default_factory=dict)
    dry: bool = False

    @property
    def refused(self) -> list[Rescored]:
        """The rollouts that cannot be scored."""
        return [one for one in self.rollouts if one.refusal is not None]

    @property
    def failed(self) -> list[Rescored]:
        """The rollouts whose scoring failed."""
        return [one for one in self.rollouts if one.scores is not None and one.scores.status == "failed"]

    @property
    def judge_costs(self) -> dict[str, float | None]:
        """The estimated cost of the expected judge calls in US dollars, by model role.

        The cost is None if the price is unknown or no call with this role was recorded.
        """
        costs = self.call_costs
        return {role: fmean(costs[role]) * many if role in costs else None for role, many in self.judge_calls.items()}

    @property
    def new(self) -> int:
        """The number of rollouts that this run scored."""
        return sum(one.new for one in self.rollouts)

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON, without the comparison."""
        return {
            "scorer": self.scorer,
            "dry_run": self.dry,
            "to_score" if self.dry else "scored": self.ready if self.dry else self.new,
            "scored_before": sum(one.scores is not None and not one.new for one in self.rollouts),
            "failed": [_named(one, one.scores.failure if one.scores is not None else None) for one in self.failed],
            "refused": [_named(one, one.refusal) for one in self.refused],
            "unplayed": self.unplayed,
            "judge_calls": dict(self.judge_calls),
            "judge_costs": dict(self.judge_costs),
        }


def _named(one: Rescored, problem: Json) -> dict[str, Json]:
    row = one.row
    return {
        "rollout_id": row.rollout_id,
        "environment": row.environment,
        "split": row.split,
        "seed": row.seed,
        "problem": problem,
    }


def scorer_version(spec: AppSpec, file: Path, judges: Mapping[str, Json], *, skip_judges: bool = False) -> str:
    """Return the version of the current scorer: a name that changes when one of the scorer's inputs changes.

    The inputs are the app's version and declarations, the files with its rubrics, judges and metrics, the judges' models, and
    the kit's release. Changes in modules that these files import are not detected. file: The app's file. judges: The result
    of `judge_models`.
    """
    declared = [item.place for some in (spec.criteria, spec.judges, spec.metrics) for item in some]
    places = {file.resolve(), *(Path(place.rpartition(":")[0]).resolve() for place in declared)}
    contents = sorted(hashlib.sha256(place.read_bytes()).hexdigest() for place in places if place.is_file())
    parts: list[Json] = [spec.hash, contents, dict(judges), skip_judges, __version__]
    return f"{spec.version}-{json_hash(parts)[:12]}"


class Rescorer:
    """Scores the rollouts in a source with the rubrics and judges of a service's app.

    scorer: The version under which the scores are stored. concurrency: How many rollouts are scored concurrently.
    """

    def __init__(self, service: Service, source: RolloutSource, scorer: str, *, concurrency: int = 1) -> None:
        self._service = service
        self._source = source
        self._store = source.score_store()
        self._scorer = scorer
        self._concurrency = concurrency
        self._failures = ModelFailures()

    async def run(
        self, wanted: RolloutQuery, *, dry: bool = False, watch: Callable[[Rescored], None] | None = None
    ) -> RescoreReport:
        """Score the matching rollouts that ended and were not yet scored by this version. Store each score immediately.

        Args:
            wanted: Selects the rollouts.
            dry: Whether to only count the rollouts and judge calls, without computing or storing scores.
            watch: Called with each rollout that was scored or cannot be scored.

        Raises:
            ConfigError: No rollout matches.
            StoreError: The store failed.
            EvaluationStopped: The judges' models are not available.
        """
        report = RescoreReport(self._scorer, [], dry=dry)
        known = await self._store.scores(self._scorer)
        waiting: list[Rescored] = []
        rows = 0
        async for row in self._source.rows(wanted):
            rows += 1
            if row.status == "failed" and row.boundary not in SCORED_LATER:
                report.unplayed += 1
                continue
            waiting.append(Rescored(row, known.get(row.rollout_id)))
        if not rows:
            raise ConfigError(f"{self._source.place} has no rollouts that match the filters.", hint="Remove a filter.")
        left = iter(waiting)
        tasks = [asyncio.create_task(self._work(left, report, watch)) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        report.rollouts = [one for one in waiting if not one.unplayed]
        report.unplayed += len(waiting) - len(report.rollouts)
        return report

    async def _work(
        self, left: Iterator[Rescored], report: RescoreReport, watch: Callable[[Rescored], None] | None
    ) -> None:
        for one in left:
            try:
                stored = await self._source.load(one.row.rollout_id)
            except ConfigError:
                one.scores, one.refusal = None, "its events were not stored, or were pruned."
                if watch is not None:
                    watch(one)
                continue
            one.before = _versions(stored)
            if one.scores is not None and one.scores.status != "failed":
                continue
            if stored.status == "failed" and stored.digest is None:
                one.unplayed = True
                continue
            try:
                inputs = self._inputs(stored)
            except RequestError as error:
                one.scores, one.refusal = None, error.message
            else:
                report.ready += 1
                for role, calls in self._expected_calls(stored.environment).items():
                    report.judge_calls[role] = report.judge_calls.get(role, 0) + calls
                if report.dry:
                    self._add_costs(stored, report.call_costs)
                    continue
                one.scores = await self._scored(stored, inputs)
                one.new = True
                await self._store.save_scores([one.scores])
                self._failures.see("", _result(one.row, one.scores))
            if watch is not None:
                watch(one)

    def _expected_calls(self, environment: str) -> dict[str, int]:
        service = self._service
        if service.settings.skip_judges:
            return {}
        return expected_calls(service.spec, environment, service.models.configured)

    def _add_costs(self, stored: StoredRollout, costs: dict[str, list[float]]) -> None:
        record: Any = stored.private.get("judge_calls") or {"calls": ()}
        for call in record["calls"]:
            # A failed call has no usage, so its prompt is estimated at 4 characters per token.
            usage = call["usage"] or {"prompt_tokens": len(str(record["prompts"].get(call["prompt"]))) / 4}
            cost = self._service.models.cost(call["role"], usage)
            if cost is not None:
                costs.setdefault(call["role"], []).append(cost)

    def _inputs(self, stored: StoredRollout) -> ScoringInputs:
        """Return the inputs for scoring.

        Raises RequestError if the app no longer has the rollout's row or environment.
        """
        spec = self._service.spec
        if stored.app != spec.name:
            raise RequestError(f"it is a rollout of the app {stored.app}, not {spec.name}.")
        environment = find_environment(spec, stored.environment)
        instance = self._service.planner.instance(stored.environment, stored.split, stored.seed)
        if (None if instance.task is None else row_hash(instance.task)) != stored.row_hash:
            raise RequestError(f"the row of split {stored.split}, seed {stored.seed} has changed since it was played.")
        return ScoringInputs(instance.task, read_config(environment, stored.config).arguments)

    async def _scored(self, stored: StoredRollout, inputs: ScoringInputs) -> StoredScores:
        service = self._service
        trajectory = await load_trajectory(self._source, stored)
        seconds = service.settings.max_time_seconds
        port = ThreadPort(service.models.of_rollout(None, seconds))
        began = time.perf_counter()
        judging, failure = JudgeRecord(), None
        card = None
        try:
            card = await service.model_threads.run(
                lambda: score(
                    service.spec,
                    trajectory,
                    task=inputs.task,
                    config=inputs.arguments,
                    models=port,
                    skip_judges=service.settings.skip_judges,
                ),
                seconds=seconds,
                stop=port.stop,
            )
            judging = card.judging
        except ScoringFailed as error:
            judging, failure = error.judging, error.failure
        except ThreadHung:
            failure = Failure("timeout", "deadline", f"scoring did not end within {seconds:g} s")
        costs = [call.cost for call in judging.calls]
        return StoredScores(
            rollout_id=stored.rollout_id,
            scorer=self._scorer,
            created_at=service.clock.now(),
            status="failed" if card is None else trajectory.status,
            reward=None if card is None else card.reward,
            outcome_score=None if card is None else card.outcome_score,
            events_score=None if card is None else card.events_score,
            scorecard=None if card is None else card.to_json(),
            failure=None if failure is None else {name: getattr(failure, name) for name in _FAILURE},
            seconds=time.perf_counter() - began,
            cost=None if not costs or None in costs else sum(cost for cost in costs if cost is not None),
            app_version=service.spec.version,
            spec_hash=service.spec.hash,
            kit_version=__version__,
            private={"judge_calls": judging.to_json()} if judging else {},
        )


def _result(row: RolloutRow, scores: StoredScores) -> RolloutRow:
    failure: Mapping[str, Any] = scores.failure or {}
    return RolloutRow(scores.status, row.rollout_id, code=failure.get("code"), message=failure.get("message"))


_FAILURE = ("boundary", "code", "message", "error_id")


def _versions(stored: StoredRollout) -> dict[str, Json]:
    """Return the versions that were recorded with the original scores."""
    formula = (stored.scorecard or {}).get("formula")
    return {
        "app_version": stored.app_version,
        "spec_hash": stored.spec_hash,
        "kit_version": stored.kit_version,
        **({} if formula is None else {"formula": formula}),
    }


def compared_scores(report: RescoreReport, spec: AppSpec, place: str) -> Comparison | None:
    """Compare the original scores with the new scores, rollout by rollout. Return None if no new scores exist."""
    scored = [one for one in report.rollouts if one.scores is not None]
    if not scored:
        return None
    answered: dict[PairKey, RolloutRow] = {}
    rescored: dict[PairKey, RolloutRow] = {}
    for one in scored:
        row, scores = one.row, one.scores
        assert scores is not None, "chosen above"
        key = row.environment, row.split, row.seed, row.rollout_id
        answered[key], rescored[key] = row, scored_row(row, scores)
    formulas = {spec.blend_for(name).words() for name, *_ in answered if name in spec.environments}
    now: dict[str, Sequence[Json]] = {
        "app_version": [spec.version],
        "spec_hash": [spec.hash],
        "kit_version": [__version__],
        "formula": sorted(formulas),
        "scorer": [report.scorer],
    }
    sides = [
        Side(place, ANSWERED, ANSWERED, answered, configuration=_joined(_all(scored))),
        Side(place, report.scorer, report.scorer, rescored, configuration=_joined(now)),
    ]
    compared = compare(sides, ComparisonSettings(force=True))[0]
    return replace(compared, measures=[one for one in compared.measures if one.of != "number"])


def _all(scored: Sequence[Rescored]) -> dict[str, list[Json]]:
    """Return the distinct versions and formulas of the original scores, by name."""
    found: dict[str, dict[str, Json]] = {}
    for one in scored:
        for name, value in {**one.before, "scorer": ANSWERED}.items():
            found.setdefault(name, {})[str(value)] = value
    return {name: list(values.values()) for name, values in found.items()}


def _joined(values: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Return a single value unchanged. Join several values into one string."""
    return {name: some[0] if len(some) == 1 else ", ".join(map(str, some)) for name, some in values.items() if some}

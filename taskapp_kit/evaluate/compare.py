"""Compares two policies in pairs of rollouts with the same environment, split, seed and sample.

Pairs with a failed rollout are counted separately. A difference also excludes the pairs in which its number is
undefined for at least one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.rows import check_by, groups_of
from taskapp_kit.evaluate.summary import PASS_AT
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.statistics import (
    CONFIDENCE,
    TIE,
    UNBOUNDED,
    IntervalMethod,
    PairedDifference,
    Range,
    paired_difference,
)
from taskapp_kit.rollout.policy.options import MODEL
from taskapp_kit.rollout.source import RolloutSource

PairKey = tuple[str, str, int, int | str]
"""Environment, split, seed, and sample. If a rollout is compared with itself, its id replaces the sample."""

NUMBERS: Mapping[str, Callable[[RolloutRow], float | None]] = {
    "length": lambda row: row.length,
    "tokens": lambda row: row.tokens,
    "cost": lambda row: row.cost,
    "seconds": lambda row: row.seconds,
}
"""Numbers of a rollout for which a higher value is neither better nor worse."""


@dataclass(slots=True)
class Side:
    """The rollouts of one policy in one source.

    Attributes:
        place: The source, as the caller wrote it.
        policy: The policy's name in the evaluation, or else the name of its model.
        name: A name that is unique among the compared sides.
        rows: The newest rollout for each environment, split, seed and sample.
        replaced: The number of older rollouts, which are not in `rows`.
        spec_hashes: The known hashes of the app's declarations.
        configuration: The settings of the evaluation or the newest rollout, by dotted name.
        ranges: The ranges of the reward and the criteria.
    """

    place: str
    policy: str
    name: str
    rows: dict[PairKey, RolloutRow]
    replaced: int = 0
    spec_hashes: frozenset[str] = frozenset()
    configuration: Mapping[str, Json] = field(default_factory=dict)
    ranges: ScoreRanges = field(default_factory=ScoreRanges)


@dataclass(frozen=True, slots=True)
class Measure:
    """The comparison of one number between two policies, over the pairs in which both rollouts have this number.

    Attributes:
        name: The name of the number.
        of: The type of number: `reward` or `criterion`, for which higher is better, or `number`.
        baseline: The baseline's mean over these pairs.
        other: The other policy's mean over these pairs.
        undefined: How many pairs without a failure lack the number in at least one rollout.
        difference: The paired difference.
    """

    name: str
    of: str
    baseline: float | None
    other: float | None
    undefined: int
    difference: PairedDifference

    def to_json(self) -> dict[str, Json]:
        """Return the measure as JSON."""
        return {
            "name": self.name,
            "of": self.of,
            "baseline": self.baseline,
            "other": self.other,
            "undefined": self.undefined,
            **self.difference.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A pair of rollouts whose rewards differ, or in which one rollout failed.

    Attributes:
        kind: `gained` or `lost` if only one reward reaches `pass_at`, and otherwise `higher` or `lower`. `failed` if
            only the other rollout failed, and `recovered` if only the baseline's rollout failed.
        baseline: The baseline's rollout.
        other: The other rollout.
    """

    kind: str
    baseline: RolloutRow
    other: RolloutRow

    def to_json(self) -> dict[str, Json]:
        """Return the change as JSON."""
        one, two = self.baseline, self.other
        return {
            "kind": self.kind,
            "environment": two.environment,
            "split": two.split,
            "seed": two.seed,
            "sample": two.sample,
            "baseline": {"rollout_id": one.rollout_id, "status": one.status, "reward": one.reward},
            "other": {"rollout_id": two.rollout_id, "status": two.status, "reward": two.reward},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy compared with the baseline.

    Attributes:
        baseline: The baseline.
        other: The other policy.
        pairs: The number of pairs without a failure.
        failed: The number of pairs with a failure, by the rollout that failed (baseline, other or both).
        unpaired: The number of rollouts without a partner, for each side.
        measures: The reward, followed by the criteria and the numbers.
        breakdowns: Maps each field in `by` to the reward's measures, one for each value of the field.
        changes: The changes: `lost` and `gained` first, then failures, then the rest by size.
        configuration: The settings that differ, by name, each as (baseline, other).
    """

    baseline: Side
    other: Side
    pairs: int
    failed: Mapping[str, int]
    unpaired: Mapping[str, int]
    measures: Sequence[Measure]
    breakdowns: Mapping[str, Sequence[Measure]]
    changes: Sequence[Change]
    configuration: Mapping[str, tuple[Json, Json]]

    @property
    def reward(self) -> Measure:
        """The reward's measure."""
        return self.measures[0]

    @property
    def more_seeds(self) -> int | None:
        """How many more seeds are needed to show that a reward difference of this size is not chance.

        0 if the shared seeds already show this. None if the difference is 0, or if fewer than two seeds are shared.
        """
        difference = self.reward.difference
        if difference.decided:
            return 0
        needed = difference.clusters_needed
        return None if needed is None else max(1, needed - difference.interval.clusters)

    def to_json(self) -> dict[str, Json]:
        """Return the comparison as JSON."""
        return {
            "baseline": {"name": self.baseline.name, "place": self.baseline.place, "rollouts": len(self.baseline.rows)},
            "other": {"name": self.other.name, "place": self.other.place, "rollouts": len(self.other.rows)},
            "pairs": self.pairs,
            "failed": dict(self.failed),
            "unpaired": dict(self.unpaired),
            "reward": self.reward.to_json(),
            "more_seeds": self.more_seeds,
            "criteria": [one.to_json() for one in self.measures if one.of == "criterion"],
            "numbers": [one.to_json() for one in self.measures if one.of == "number"],
            "by": {name: [one.to_json() for one in found] for name, found in self.breakdowns.items()},
            "changes": [change.to_json() for change in self.changes],
            "configuration": {name: list(values) for name, values in self.configuration.items()},
        }


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The settings of a comparison.

    Attributes:
        method: How the confidence intervals are computed.
        confidence: The probability that an interval contains the true difference.
        pass_at: The lowest reward with which a rollout passes.
        by: What the reward is broken down by: fields of a task's row, `tag` or `seed`.
        force: Whether to compare rollouts that were played with different declarations.
    """

    method: IntervalMethod = "bootstrap"
    confidence: float = CONFIDENCE
    pass_at: float = PASS_AT
    by: Sequence[str] = ()
    force: bool = False


async def read_sides(source: RolloutSource, place: str, *, wanted: RolloutQuery | None = None) -> list[Side]:
    """Return one side for each policy in a source.

    The sides are in the order of the policies in the source's configuration. Without a configuration, they are ordered
    by their first rollout.

    wanted: Selects the rollouts. Raises StoreError or TaskAppError if the source cannot be read.
    """
    of_policy: dict[str, list[RolloutRow]] = {}
    async for row in source.rows(wanted):
        of_policy.setdefault(_policy_of(row), []).append(row)
    asked: Mapping[str, Any] = source.config.get("asked") or {}
    policies = asked.get("policies") or {}
    order = {name: number for number, name in enumerate(policies)}
    ranges = ScoreRanges.from_json(source.config.get("ranges"))
    sides = []
    for policy in sorted(of_policy, key=lambda name: order.get(name, len(order))):
        rows, replaced = _by_key(of_policy[policy])
        configuration = dict(_flat(asked, leave_out=("policies",)) if asked else await _of_rollout(source, rows))
        configuration |= _flat(policies.get(policy) or {}, "policy.")
        hashes = frozenset(row.spec_hash for row in rows.values() if row.spec_hash is not None)
        sides.append(Side(place, policy, policy, rows, replaced, hashes, configuration, ranges))
    return sides


def chosen_sides(sides: Sequence[Side], policy: str | None = None, baseline: str | None = None) -> list[Side]:
    """Return the sides of `policy`, or all sides if it is None. The sides of the policy `baseline` come first.

    Raises ConfigError if no side has the policy `policy`, or if no returned side has the policy `baseline`.
    """
    found = [side for side in sides if policy in (None, side.policy)]
    for name, among in ((policy, sides), (baseline, found)):
        known = {side.policy for side in among}
        if name is not None and name not in known:
            raise ConfigError(
                f"The policy {name[:80]!r} has no rollouts.", hint=f"Policies: {', '.join(sorted(known)) or 'none'}."
            )
    return sorted(found, key=lambda side: baseline not in (None, side.policy))


def compare(sides: Sequence[Side], settings: ComparisonSettings | None = None) -> list[Comparison]:
    """Compare the first side, which is the baseline, with every further side.

    Raises ConfigError if there are fewer than two sides, if the baseline and another side have no pair of rollouts, if
    the declarations (spec hashes) differ and `force` is not set, or if a field in `by` is in no row.
    """
    settings = settings or ComparisonSettings()
    if len(sides) < 2:
        only = f"{sides[0].place} contains rollouts of only {sides[0].policy}" if sides else "no rollout was found"
        raise ConfigError(f"Nothing can be compared: {only}.", hint="Pass two evaluations, or one with two policies.")
    _name(sides)
    if not settings.force:
        _check_declarations(sides)
    _resolve_splits(sides)
    check_by(settings.by, (row.row for side in sides for row in side.rows.values()))
    return [_compared(sides[0], other, settings) for other in sides[1:]]


def _compared(baseline: Side, other: Side, settings: ComparisonSettings) -> Comparison:
    keys = [key for key in baseline.rows if key in other.rows]
    if not keys:
        raise ConfigError(
            f"{baseline.name} and {other.name} have no rollouts with the same environment, split, seed and sample.",
            hint="Evaluate both on the same seeds.",
        )
    pairs = [(key, baseline.rows[key], other.rows[key]) for key in sorted(keys)]
    played = [pair for pair in pairs if not (pair[1].failed or pair[2].failed)]
    rewards = _differences(baseline.ranges.reward, other.ranges.reward)
    measures = [_measure("reward", "reward", played, REWARD, settings, rewards)]
    for name in dict.fromkeys(name for _, *both in played for row in both for name in row.criteria):
        scores = _differences(*(side.ranges.criteria.get(name, UNBOUNDED) for side in (baseline, other)))
        measures.append(_measure(name, "criterion", played, _criterion(name), settings, scores))
    for name, value_of in NUMBERS.items():
        measure = _measure(name, "number", played, value_of, settings, UNBOUNDED)
        if measure.difference.interval.n:
            measures.append(measure)
    return Comparison(
        baseline=baseline,
        other=other,
        pairs=len(played),
        failed={
            "baseline": sum(one.failed and not two.failed for _, one, two in pairs),
            "other": sum(two.failed and not one.failed for _, one, two in pairs),
            "both": sum(one.failed and two.failed for _, one, two in pairs),
        },
        unpaired={"baseline": len(baseline.rows) - len(keys), "other": len(other.rows) - len(keys)},
        measures=measures,
        breakdowns={by: _breakdown(by, played, settings, rewards) for by in settings.by},
        changes=_changes(pairs, settings.pass_at),
        configuration=_differing(baseline.configuration, other.configuration),
    )


Pair = tuple[PairKey, RolloutRow, RolloutRow]
REWARD = attrgetter("reward")


def _criterion(name: str) -> Callable[[RolloutRow], float | None]:
    return lambda row: row.criteria.get(name)


def _differences(baseline: Range, other: Range) -> Range:
    """Return the range of other − baseline."""
    return other[0] - baseline[1], other[1] - baseline[0]


def _measure(
    name: str,
    of: str,
    pairs: Sequence[Pair],
    value_of: Callable[[RolloutRow], float | None],
    settings: ComparisonSettings,
    bounds: Range,
) -> Measure:
    one, two, clusters = [], [], []
    for key, first, second in pairs:
        before, after = value_of(first), value_of(second)
        if before is not None and after is not None:
            one.append(float(before))
            two.append(float(after))
            clusters.append(key[:3])
    difference = paired_difference(
        one, two, clusters, method=settings.method, confidence=settings.confidence, bounds=bounds
    )
    return Measure(
        name, of, fmean(one) if one else None, fmean(two) if two else None, len(pairs) - len(one), difference
    )


def _breakdown(by: str, pairs: Sequence[Pair], settings: ComparisonSettings, bounds: Range) -> list[Measure]:
    """Compare the reward separately for each value of the field `by`. Numbers come first.

    With `tag`, a rollout counts for each of its tags.
    """
    groups: dict[str, list[Pair]] = {}
    order: dict[str, Json] = {}
    for pair in pairs:
        _, one, two = pair
        for value in groups_of(by, one.row or two.row, one.seed):
            name = "none" if value is None else str(value)
            order.setdefault(name, value)
            groups.setdefault(name, []).append(pair)
    numbers = {name: float(value) for name, value in order.items() if isinstance(value, int | float)}
    names = sorted(groups, key=lambda name: (numbers.get(name, math.inf), name))
    return [_measure(name, "reward", groups[name], REWARD, settings, bounds) for name in names]


_RANKS = {"lost": 0, "gained": 1, "failed": 2, "recovered": 3, "lower": 4, "higher": 4}
"""The order of a list of changes."""


def _changes(pairs: Sequence[Pair], pass_at: float) -> list[Change]:
    found: list[tuple[tuple[int, float, PairKey], Change]] = []
    for key, one, two in pairs:
        if one.failed or two.failed:
            if one.failed != two.failed:
                kind = "failed" if two.failed else "recovered"
                found.append(((_RANKS[kind], 0.0, key), Change(kind, one, two)))
            continue
        if one.reward is None or two.reward is None or abs(two.reward - one.reward) <= TIE:
            continue
        passed = one.reward >= pass_at, two.reward >= pass_at
        if passed[0] != passed[1]:
            kind = "gained" if passed[1] else "lost"
        else:
            kind = "higher" if two.reward > one.reward else "lower"
        rank = (_RANKS[kind], -abs(two.reward - one.reward), key)
        found.append((rank, Change(kind, one, two)))
    return [change for _, change in sorted(found, key=lambda ranked: ranked[0])]


# -- sides ------------------------------------------------------------------------------------------------------------


def _policy_of(row: RolloutRow) -> str:
    """Return the policy's name in the evaluation that played the rollout.

    If the rollout has no such name, return the language model's name, or the policy's name if no language model played.
    """
    return row.name or (row.model if row.policy in (None, MODEL) else None) or row.policy or MODEL


def _by_key(rows: Sequence[RolloutRow]) -> tuple[dict[PairKey, RolloutRow], int]:
    """Return the newest row for each PairKey, and the number of older rows."""
    newest: dict[PairKey, RolloutRow] = {}
    for row in rows:
        key = (row.environment, row.split, row.seed, row.sample or 0)
        known = newest.get(key)
        if known is None or (row.created_at or 0.0) >= (known.created_at or 0.0):
            newest[key] = row
    return newest, len(rows) - len(newest)


async def _of_rollout(source: RolloutSource, rows: Mapping[PairKey, RolloutRow]) -> Mapping[str, Json]:
    """Load the newest of these rollouts, and return its settings by dotted name."""
    newest = max(rows.values(), key=lambda row: row.created_at or 0.0)
    stored = await source.load(newest.rollout_id)
    known = {
        "app": stored.app,
        "app_version": stored.app_version,
        "spec_hash": stored.spec_hash,
        "kit_version": stored.kit_version,
        "environment": stored.environment,
        "environment_version": stored.environment_version,
        "config": stored.config,
        "policy": {name: value for name, value in stored.policy.items() if name not in ("name", "sample")},
    }
    return _flat({name: value for name, value in known.items() if value not in (None, "")})


def _flat(members: Mapping[str, Any], above: str = "", leave_out: Sequence[str] = ()) -> dict[str, Json]:
    """Flatten nested mappings, and return the values by dotted name."""
    found: dict[str, Json] = {}
    for name, value in members.items():
        if name in leave_out:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def _name(sides: Sequence[Side]) -> None:
    """Give each side a unique name: the policy's name, followed by the source and a number if needed."""
    for naming in (
        lambda number, side: side.policy,
        lambda number, side: f"{side.policy} ({side.place})",
        lambda number, side: f"{side.policy} ({side.place}, {number + 1})",
    ):
        for number, side in enumerate(sides):
            side.name = naming(number, side)
        if len({side.name for side in sides}) == len(sides):
            return


def _check_declarations(sides: Sequence[Side]) -> None:
    """Raise ConfigError if the sides are known to have different declarations."""
    hashes = {spec_hash: side for side in reversed(sides) for spec_hash in sorted(side.spec_hashes, reverse=True)}
    if len(hashes) < 2:
        return
    (one, first), (two, second) = list(hashes.items())[:2]
    where = first.name if first is second else f"{second.name} and {first.name}"
    raise ConfigError(
        f"The rollouts of {where} were played with different versions of the app's declarations (spec hashes "
        f"{one[:12]} and {two[:12]}), so their rewards may have different meanings.",
        hint="Evaluate all policies with one version of the app, or compare the rollouts anyway with --force.",
    )


def _resolve_splits(sides: Sequence[Side]) -> None:
    """Set a failed rollout's missing split if all other rollouts of its environment, seed and sample have one split."""
    splits: dict[tuple[str, int, int | str], set[str]] = {}
    for side in sides:
        for environment, split, seed, sample in side.rows:
            if split:
                splits.setdefault((environment, seed, sample), set()).add(split)
    for side in sides:
        for key in [key for key in side.rows if not key[1]]:
            environment, _, seed, sample = key
            known = splits.get((environment, seed, sample), set())
            if len(known) == 1:
                split = next(iter(known))
                side.rows.setdefault((environment, split, seed, sample), replace(side.rows.pop(key), split=split))


def _differing(one: Mapping[str, Json], two: Mapping[str, Json]) -> dict[str, tuple[Json, Json]]:
    return {name: (one.get(name), two.get(name)) for name in {**one, **two} if one.get(name) != two.get(name)}

"""What an export takes, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow, StoredRollout

if TYPE_CHECKING:
    from taskapp_kit.rollout.source import RolloutSource

TRAIN = "train"
"""The split of training data, unless the caller names another."""


@dataclass(frozen=True, slots=True)
class ExportScope:
    """The rollouts to export: those that match `query` and are of `split`; None takes every split."""

    query: RolloutQuery = field(default_factory=RolloutQuery)
    split: str | None = None


@dataclass(slots=True)
class ExportReport:
    """What was exported. rollouts: those in the file. lines: of the file, where that is another number.

    left_out: how many rollouts were not exported, by reason. notes: sentences about the whole. missing: why the first
    rollout that is not stored whole could not be read.
    """

    rollouts: int = 0
    lines: int | None = None
    seen: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    missing: ConfigError | None = None

    def nothing(self, kind: str) -> ConfigError:
        """The error for an export without any rollout."""
        reasons = ", ".join(f"{reason} ({many})" for reason, many in self.left_out.most_common())
        hint = "Leave out a filter, or play more."
        return self.missing or ConfigError(f"No rollout can be exported as {kind}: {reasons}.", hint=hint)


async def selected(source: RolloutSource, scope: ExportScope, report: ExportReport) -> AsyncIterator[RolloutRow]:
    """The selected rows in the source's own order. Raises ConfigError when there is none."""
    splits: Counter[str] = Counter()
    found = False
    async for row in source.rows(scope.query):
        report.seen += 1
        if scope.split is not None and row.split != scope.split:
            splits[row.split] += 1
            continue
        found = True
        yield row
    if not found and splits:
        others = ", ".join(f"{name or '(none)'} ({many})" for name, many in sorted(splits.items()))
        raise ConfigError(
            f"{source.place} has no rollout of the split {scope.split!r}.", hint=f"It has {others}: give --split."
        )
    if not found:
        raise ConfigError(f"{source.place} has no rollout that fits.", hint="Leave out a filter.")


async def loaded(source: RolloutSource, rollout_id: str, report: ExportReport) -> StoredRollout | None:
    """The whole rollout; None, and counted, where only its numbers are stored."""
    try:
        return await source.load(rollout_id)
    except ConfigError as error:
        report.left_out["not stored whole"] += 1
        report.missing = report.missing or error
        return None

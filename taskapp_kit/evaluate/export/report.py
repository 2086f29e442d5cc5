"""The scope of an export, and its report."""

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
"""The default split of training data."""


@dataclass(frozen=True, slots=True)
class ExportScope:
    """The rollouts to export: all that match `query` and belong to `split`.

    If `split` is None, every split is exported.
    """

    query: RolloutQuery = field(default_factory=RolloutQuery)
    split: str | None = None


@dataclass(slots=True)
class ExportReport:
    """The result of an export.

    Attributes:
        rollouts: The number of exported rollouts.
        lines: The number of lines in the file, or None if each rollout has one line.
        seen: The number of rollouts that match the query.
        left_out: The number of rollouts that were excluded, by reason.
        notes: Sentences about the export.
        missing: The error of the first rollout whose full record could not be read.
    """

    rollouts: int = 0
    lines: int | None = None
    seen: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    missing: ConfigError | None = None

    def nothing(self, kind: str) -> ConfigError:
        """Return the error for an export without any rollouts."""
        reasons = ", ".join(f"{reason} ({many})" for reason, many in self.left_out.most_common())
        hint = "Remove a filter, or play more rollouts."
        return self.missing or ConfigError(f"No rollout can be exported as {kind}: {reasons}.", hint=hint)


async def selected(source: RolloutSource, scope: ExportScope, report: ExportReport) -> AsyncIterator[RolloutRow]:
    """Yield the selected rows in the source's order. Raises ConfigError if no row is selected."""
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
            f"{source.place} has no rollouts in the split {scope.split!r}.",
            hint=f"It has rollouts in the splits {others}. Select one with --split NAME.",
        )
    if not found:
        raise ConfigError(f"{source.place} has no rollouts that match the filters.", hint="Remove a filter.")


async def loaded(source: RolloutSource, rollout_id: str, report: ExportReport) -> StoredRollout | None:
    """Return the full rollout. If only its numbers are stored, count it as excluded and return None."""
    try:
        return await source.load(rollout_id)
    except ConfigError as error:
        report.left_out["not stored in full"] += 1
        report.missing = report.missing or error
        return None

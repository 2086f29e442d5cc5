"""Writes an export to a file atomically. Full rollouts are written one by one, without private fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.conversation import FindTools, recorded_messages
from taskapp_kit.evaluate.export.inspect_log import write_inspect_log
from taskapp_kit.evaluate.export.parquet import ParquetFile
from taskapp_kit.evaluate.export.report import TRAIN, ExportReport, ExportScope, selected
from taskapp_kit.evaluate.export.training_data import TrainingData, TrainingFilters, token_lines
from taskapp_kit.records.content import as_object
from taskapp_kit.records.protocols import RolloutRow, StoredRollout
from taskapp_kit.rollout.details import Picture, RolloutDetails, details_of, words
from taskapp_kit.system.private_files import replaced

if TYPE_CHECKING:
    from taskapp_kit.rollout.source import RolloutSource

Format = Literal["jsonl", "parquet", "sft", "dpo", "tokens", "inspect"]
TRAINING: tuple[Format, ...] = ("sft", "dpo", "tokens")
"""The formats of training data. They export one split, by default `train`."""


async def export(
    source: RolloutSource,
    kind: Format,
    out: Path,
    *,
    scope: ExportScope,
    filters: TrainingFilters,
    find_tools: FindTools,
) -> ExportReport:
    """Write the selected rollouts to `out`, which only its owner can read. An existing file is replaced at the end.

    `filters` and `find_tools` are used for training data. `find_tools` is called when the first conversation needs tool
    schemas.

    Raises:
        ConfigError: No rollout matches, or the file cannot be written.
        StoreError, TaskAppError: The source cannot be read.
        Unavailable: Parquet requires pyarrow, which is not installed.
    """
    report = ExportReport()
    if kind in TRAINING and scope.split is None:
        scope = replace(scope, split=TRAIN)
        report.notes.append("Only the split train was exported. Pass --split to export another.")
    try:
        with replaced(out) as new:
            await _write(source, kind, new, scope, TrainingData(source, scope, filters, find_tools, report), report)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.", hint="Pass another --out.") from None
    return report


async def _write(
    source: RolloutSource,
    kind: Format,
    path: Path,
    scope: ExportScope,
    training: TrainingData,
    report: ExportReport,
) -> None:
    if kind == "inspect":
        await write_inspect_log(source, scope, path, report)
    elif kind == "parquet":
        with ParquetFile(path) as file:
            async for row, stored in whole_rollouts(source, scope, report):
                file.add(record_of(row, stored))
    elif kind == "jsonl":
        await _write_lines(path, json_lines(source, scope, report))
    else:
        tokens = token_lines(source, scope, report)
        await _write_lines(path, {"sft": training.sft(), "dpo": training.dpo(), "tokens": tokens}[kind])
        if not report.rollouts:
            raise report.nothing(kind)


async def _write_lines(path: Path, lines: AsyncIterator[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        async for line in lines:
            file.write(orjson.dumps(line, default=as_object, option=orjson.OPT_APPEND_NEWLINE))


NOT_STORED = "{many} are not stored in full, so the file only has their numbers."


async def whole_rollouts(
    source: RolloutSource, scope: ExportScope, report: ExportReport
) -> AsyncIterator[tuple[RolloutRow, StoredRollout | None]]:
    """Yield each selected row with its full rollout, or with None if only the numbers are stored."""
    numbers_only = 0
    async for row in selected(source, scope, report):
        try:
            stored = await source.load(row.rollout_id)
        except ConfigError:  # a remote server played it, or it failed before it had an id
            stored = None
            numbers_only += 1
        report.rollouts += 1
        yield row, stored
    if numbers_only:
        report.notes.append(NOT_STORED.format(many=numbers_only))


async def json_lines(source: RolloutSource, scope: ExportScope, report: ExportReport) -> AsyncIterator[dict[str, Any]]:
    """Yield one object per rollout: the fields of its row, and `rollout`, which contains its `RolloutDetails`.

    `rollout` is None if only the numbers are stored.
    """
    async for row, stored in whole_rollouts(source, scope, report):
        yield {**_members(row), "rollout": None if stored is None else details_of(stored).to_json()}


def record_of(row: RolloutRow, stored: StoredRollout | None) -> dict[str, Any]:
    """Return the rollout as a record for a table. Lists and objects are not converted to strings."""
    record = _members(row)
    if stored is not None:
        details = details_of(stored)
        record |= _from_details(details)
        record["messages"] = recorded_messages(stored) or None
        record["spec_hash"] = stored.spec_hash
        record["scorecard"] = stored.scorecard
    return record


def _members(row: RolloutRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _MEMBERS}


_MEMBERS = tuple(
    """rollout_id environment split seed sample policy model status stop_reason boundary code message reward
    criteria length turns tokens cost seconds metrics created_at run_id group_id spec_hash name row models""".split()
)
"""The exported fields of a row, in order."""


def _from_details(details: RolloutDetails) -> dict[str, Any]:
    failure = details.failure
    return {
        "sample": details.sample,
        "policy": details.policy,
        "code": None if failure is None else failure.code,
        "message": None if failure is None else failure.message,
        "metrics": details.metrics,
        "turns": len(details.turns),
        "outcome_score": details.stored.outcome_score,
        "events_score": details.stored.events_score,
        "total_reward": details.stored.total_reward,
        "app": details.stored.app,
        "app_version": details.stored.app_version,
        "environment_version": details.stored.environment_version,
        "kit_version": details.stored.kit_version,
        "digest": details.stored.digest,
        "config": details.stored.config,
        "policy_config": details.policy_config,
        "criteria": {item.name: item.score for item in details.criteria if item.of != "metric"},
        "first_observation": words(details.initial),
        "steps": [
            {
                "tool": step.tool,
                "args": step.args,
                "observation": words(step.observation),
                "reward": step.reward,
                "refused": step.refused,
                "terminated": step.terminated,
                "truncated": step.truncated,
                "seconds": step.seconds,
                "pictures": [block.sha256 for block in step.observation if isinstance(block, Picture)],
            }
            for step in details.steps
        ],
    }

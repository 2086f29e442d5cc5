"""Writes an export to a file: all of it, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.conversation import FindTools
from taskapp_kit.evaluate.export.inspect_log import write_inspect_log
from taskapp_kit.evaluate.export.parquet import ParquetFile
from taskapp_kit.evaluate.export.report import TRAIN, ExportReport, ExportScope
from taskapp_kit.evaluate.export.training_data import TrainingData, TrainingFilters, token_lines
from taskapp_kit.evaluate.export.whole_rollouts import json_lines, record_of, whole_rollouts
from taskapp_kit.records.content import as_object
from taskapp_kit.system.private_files import replaced

if TYPE_CHECKING:
    from taskapp_kit.rollout.source import RolloutSource

Format = Literal["jsonl", "parquet", "sft", "dpo", "tokens", "inspect"]
TRAINING: tuple[Format, ...] = ("sft", "dpo", "tokens")
"""The formats of training data: of one split, `train` unless the caller names another."""


async def export(
    source: RolloutSource,
    kind: Format,
    out: Path,
    *,
    scope: ExportScope,
    filters: TrainingFilters,
    find_tools: FindTools,
) -> ExportReport:
    """Writes the selected rollouts to `out`, readable by its owner alone, and returns the report.

    filters, find_tools: of training data; the tools are looked up when the first conversation needs them. The file
    appears, or is replaced, when it is complete. Raises ConfigError: nothing fits, or the file cannot be written;
    StoreError, TaskAppError; Unavailable for Parquet without pyarrow.
    """
    report = ExportReport()
    if kind in TRAINING and scope.split is None:
        scope = replace(scope, split=TRAIN)
        report.notes.append("Only the split named train (give --split for another).")
    try:
        with replaced(out) as new:
            await _write(source, kind, new, scope, TrainingData(source, scope, filters, find_tools, report), report)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.", hint="Give another --out.") from None
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

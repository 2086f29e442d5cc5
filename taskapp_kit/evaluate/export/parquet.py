"""Writes rollouts and other rows as Parquet.

docs/evaluate/export.md lists the columns. Requires the extra `parquet`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from taskapp_kit.errors import Unavailable
from taskapp_kit.records.content import as_object
from taskapp_kit.records.formatting import utc_time

ROWS_AT_ONCE = 512
"""The maximum number of rows in a row group."""
BYTES_AT_ONCE = 16 * 2**20
"""The approximate size of the strings in a row group. A row group stays in memory until it is written."""

INTEGERS = ("seed", "sample", "length", "turns", "tokens")
NUMBERS = ("reward", "outcome_score", "events_score", "total_reward", "cost", "seconds")
MAPS = ("criteria", "metrics")
JSON_TEXTS = ("config", "policy_config", "scorecard", "messages", "steps")

COLUMNS = tuple(
    """id environment split seed sample policy model status stop_reason boundary code message reward criteria
    outcome_score events_score total_reward metrics length turns tokens cost seconds created_at run_id group_id
    app app_version environment_version kit_version spec_hash digest config policy_config scorecard
    first_observation messages steps""".split()
)
"""The columns, in the order of the file."""


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows that fit in memory. The columns are inferred from the values.

    Raises Unavailable if pyarrow is not installed.
    """
    arrow = _pyarrow()
    arrow.parquet.write_table(arrow.Table.from_pylist(rows), path, compression="zstd")


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unavailable(
            "Writing Parquet requires the package pyarrow, which is not installed.",
            hint="Install it with: pip install 'taskapp-kit[parquet]'",
        ) from None
    return pyarrow


class ParquetFile:
    """A context manager that writes a Parquet file, one row group at a time.

    Raises Unavailable if pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._arrow = pyarrow = _pyarrow()
        self._schema = pyarrow.schema([(name, self._type(name)) for name in COLUMNS])
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, record: dict[str, Any]) -> None:
        """Add a row from `write.record_of`."""
        row = {name: record.get(name) for name in COLUMNS}
        row["id"] = record["rollout_id"]
        if row["created_at"] is not None:
            row["created_at"] = utc_time(row["created_at"])
        for name in MAPS:
            row[name] = list((row[name] or {}).items())
        for name in JSON_TEXTS:
            if row[name] is not None:
                text = orjson.dumps(row[name], default=as_object)
                row[name] = text.decode()
                self._bytes += len(text)
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
            self._write()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0

    def _type(self, name: str) -> Any:
        arrow = self._arrow
        if name in INTEGERS:
            return arrow.int64()
        if name in NUMBERS:
            return arrow.float64()
        if name in MAPS:
            return arrow.map_(arrow.string(), arrow.float64())
        return arrow.timestamp("us", tz="UTC") if name == "created_at" else arrow.string()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self._write()
        self._writer.close()

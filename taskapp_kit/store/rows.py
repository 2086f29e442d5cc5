"""Convert a `StoredRollout` to a row of the table `rollouts` and back. Values that storing would change are rejected."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from taskapp_kit.errors import StoreError, StoreRefusal
from taskapp_kit.records.content import Json, has_surrogate
from taskapp_kit.records.declared_types import check_types
from taskapp_kit.records.events import SCHEMA_VERSION, EncodedEvents
from taskapp_kit.records.protocols import RolloutRow, StoredRollout
from taskapp_kit.store.schema import COMPRESS_ABOVE_BYTES, ROLLOUTS

# By default, orjson writes a dataclass as an object and a datetime as text, which would be read as other types.
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Inexact(ValueError):
    """Raised if a value would change when it is stored and read. The message contains the value's path and the reason."""


def exact_json(value: Json, name: str) -> bytes:
    """Return `value` as JSON in UTF-8. Raises Inexact, with the field's name, if the JSON is not equal to the value.

    The check is necessary because orjson silently converts NaN to null and tuples to lists. Code that creates a record has
    already checked its values with `records.content.plain`, whose errors contain the location.
    """
    try:
        written = orjson.dumps(value, option=_STRICT)
        if orjson.loads(written) == value:
            return written
    except (TypeError, ValueError, RecursionError):
        pass
    raise Inexact(f"{name} would change when it is stored and read")


def exact_text(value: Any, name: str, *, optional: bool) -> str | None:
    """Return the value of a text column. Raises Inexact if it is not a string, or contains a lone surrogate."""
    if value is None and optional:
        return None
    if not isinstance(value, str):
        raise Inexact(f"{name} is {type(value).__name__}, but must be a str")
    if has_surrogate(value):
        raise Inexact(f"{name} contains a lone surrogate, which is not valid text")
    return str(value)


def exact_int(value: Any, name: str) -> int:
    """Return the value of an integer column. Raises Inexact if it is not an integer of at most 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Inexact(f"{name} is {type(value).__name__}, but must be an int")
    if not -(2**63) <= value < 2**63:
        raise Inexact(f"{name} is an integer beyond 64 bits")
    return int(value)


def exact_float(value: Any, name: str, *, optional: bool) -> float | None:
    """Return the value of a number column as a float.

    Raises Inexact if it is not a finite number, because SQLite would store NaN as NULL.
    """
    if type(value) is float:
        # True for NaN and both infinities. A function call would be slower, and each rollout has many numbers.
        if value - value != 0.0:
            raise Inexact(f"{name} is {value}, which is not a finite number")
        return value
    if value is None and optional:
        return None
    if type(value) is not int:
        raise Inexact(f"{name} is {type(value).__name__}, but must be a float")
    if abs(value) > 2**53:
        raise Inexact(f"{name} is an integer that a float cannot represent exactly")
    return float(value)


COLUMNS: tuple[str, ...] = tuple(column.name for column in ROLLOUTS.columns)
"""The columns in the order of a row's values."""

_TEXTS = tuple(
    """rollout_id run_id environment split mode status stop_reason app app_version environment_version kit_version
    spec_hash""".split()
)
_OPTIONAL_TEXTS = ("group_id", "row_hash", "key_label", "digest", "observation_digest")
_INTS = ("schema_version", "seed", "length")
_OPTIONAL_INTS = ("tokens",)
_FLOATS = ("created_at", "total_reward", "seconds")
_OPTIONAL_FLOATS = ("reward", "outcome_score", "events_score", "cost")
_ALL_TEXTS = _TEXTS + _OPTIONAL_TEXTS
_ALL_FLOATS = _FLOATS + _OPTIONAL_FLOATS
_OBJECTS = ("config", "policy", "timing", "private")
_OPTIONAL_OBJECTS = ("scorecard", "failure")
_DERIVED = ("policy_name", "model", "failure_boundary", "blob_hashes", "events_encoding")
MOST_EVENT_BYTES = 1 << 28
"""The maximum size of a rollout's events as JSON, in bytes. It applies to writing and to unpacking."""
_FIELDS = tuple(name for name in COLUMNS if name not in _DERIVED)


@dataclass(frozen=True, slots=True)
class Row:
    """A rollout that is ready to be written.

    Attributes:
        values: The values in the order of `COLUMNS`.
        blobs: The (sha256, bytes) of new images.
        lacking: Hashes of images that the events contain without their bytes. The store must already contain these images.
        size: The size of the events and the new images, in bytes.
    """

    rollout_id: str
    values: tuple[Any, ...]
    blobs: list[tuple[str, bytes]]
    lacking: list[str]
    size: int


def to_row(rollout: StoredRollout) -> Row:
    """Return the row of `rollout`. Raises StoreRefusal, with the field's name, if a value cannot be stored exactly."""
    try:
        return _row(rollout)
    except Inexact as fault:
        raise StoreRefusal(
            f"Rollout {rollout.rollout_id!r} was not stored: {fault}.",
            hint="The store accepts only finite numbers, 64-bit integers, valid text, and objects with string keys.",
        ) from None


def _row(rollout: StoredRollout) -> Row:
    values: dict[str, Any] = {}
    for name in _ALL_TEXTS:
        value = getattr(rollout, name)
        # Handle the common case without a function call.
        plain = type(value) is str and value.isascii()
        values[name] = value if plain else exact_text(value, name, optional=name in _OPTIONAL_TEXTS)
    for name in _INTS:
        values[name] = exact_int(getattr(rollout, name), name)
    for name in _OPTIONAL_INTS:
        number = getattr(rollout, name)
        values[name] = None if number is None else exact_int(number, name)
    for name in _ALL_FLOATS:
        values[name] = exact_float(getattr(rollout, name), name, optional=name in _OPTIONAL_FLOATS)
    for name in _OBJECTS:
        values[name] = _object(getattr(rollout, name), name)
    for name in _OPTIONAL_OBJECTS:
        value = getattr(rollout, name)
        values[name] = None if value is None else _object(value, name)
    if not rollout.rollout_id:
        raise Inexact("rollout_id is empty")
    if not 1 <= rollout.schema_version <= SCHEMA_VERSION:
        raise Inexact(f"schema_version is {rollout.schema_version}, but this release supports 1 to {SCHEMA_VERSION}")

    if isinstance(rollout.events, EncodedEvents):
        events = rollout.events.text
    elif type(rollout.events) is list:
        events = exact_json(rollout.events, "events")
    else:
        raise Inexact(f"events is {type(rollout.events).__name__}, but must be a list")
    # Search the text first, because most rollouts show no images, and visiting all events takes longer.
    shown = _pictures(rollout.events) if b'"image":' in events else set()
    blobs = [_blob(name, data) for name, data in rollout.blobs.items()]
    values["blob_hashes"] = orjson.dumps(sorted(shown | rollout.blobs.keys())).decode()
    size = len(events) + sum(len(data) for _, data in blobs)
    values["events_encoding"], values["events"] = packed(events)

    policy = rollout.policy
    values["policy_name"] = _word(policy.get("name") or policy.get("policy") or policy.get("policy_name"))
    values["model"] = _word(policy.get("model"))
    values["failure_boundary"] = _word(rollout.failure.get("boundary")) if rollout.failure else None
    lacking = sorted(shown - rollout.blobs.keys())
    return Row(rollout.rollout_id, tuple([values[name] for name in COLUMNS]), blobs, lacking, size)


def _object(value: Any, name: str) -> str:
    if type(value) is not dict:
        raise Inexact(f"{name} is {type(value).__name__}, but must be a dict")
    return exact_json(value, name).decode() if value else "{}"


def _word(value: Json) -> str | None:
    """Return a value for a column that only filters use, or None if it is not a string."""
    return value if isinstance(value, str) else None


def packed(text: bytes) -> tuple[str, bytes]:
    """Return the encoding (`json`, or `zlib` for long text) and the encoded bytes. Raises Inexact if the text is too long."""
    if len(text) > MOST_EVENT_BYTES:
        raise Inexact(f"events has {len(text)} bytes, but the store accepts at most {MOST_EVENT_BYTES}")
    if len(text) <= COMPRESS_ABOVE_BYTES:
        return "json", text
    return "zlib", zlib.compress(text, 1)


def _pictures(events: Sequence[Json]) -> set[str]:
    """Return the hashes of the images in recorded observations."""
    shown: set[str] = set()
    for event in events:
        step = event.get("step")
        for holder in (event, step if isinstance(step, dict) else {}):
            observation = holder.get("observation")
            if type(observation) is list:
                shown.update(block["image"] for block in observation if isinstance(block, dict) and "image" in block)
    return shown


def _blob(name: str, data: Any) -> tuple[str, bytes]:
    if not isinstance(data, bytes):
        raise Inexact(f"the image {name!r} is {type(data).__name__}, but must be bytes")
    if hashlib.sha256(data).hexdigest() != name:
        raise Inexact(f"the SHA-256 of the image {name!r} does not match its bytes")
    return name, data


def from_row(values: Sequence[Any], *, with_events: bool = True) -> StoredRollout:
    """Return the rollout in a row, without the bytes of its images. Raises StoreError if the row cannot be read."""
    row = dict(zip(COLUMNS, values, strict=True))
    if type(row["schema_version"]) is int and row["schema_version"] > SCHEMA_VERSION:
        raise StoreError(
            f"Rollout {row['rollout_id']!r} has schema version {row['schema_version']}, but this release supports only "
            f"versions up to {SCHEMA_VERSION}.",
            hint="Upgrade taskapp-kit.",
        )
    try:
        for name in _OBJECTS + _OPTIONAL_OBJECTS:
            text = row[name]
            row[name] = {} if text == "{}" else None if text is None else orjson.loads(text)
        if "door" in row["policy"]:  # older rows of sessions contain the field's previous name
            row["policy"]["protocol"] = row["policy"].pop("door")
        row["events"] = unpacked(row["events_encoding"], row["events"]) if with_events else []
        members = {name: row[name] for name in _FIELDS}
        check_types(StoredRollout, members)
    except (ValueError, TypeError, zlib.error) as fault:
        raise unreadable(f"Rollout {row['rollout_id']!r}", fault) from fault
    return StoredRollout(**members)


SOURCE_COLUMNS = tuple(
    """rollout_id environment split seed policy policy_name model status stop_reason failure_boundary failure
    reward scorecard length tokens cost seconds created_at run_id group_id spec_hash""".split()
)
"""The columns that `source_row` expects, in order."""


def source_row(*values: Any) -> RolloutRow:
    """Return the `RolloutRow` for the values of `SOURCE_COLUMNS`. Raises StoreError if the values cannot be read."""
    row = dict(zip(SOURCE_COLUMNS, values, strict=True))
    try:
        policy = orjson.loads(row["policy"])
        failure = orjson.loads(row["failure"] or b"{}")
        card = orjson.loads(row["scorecard"] or b"{}")
        sample = policy.get("sample")
        members: dict[str, Any] = dict(
            sample=sample if isinstance(sample, int) else None,
            policy=row["policy_name"],
            boundary=row["failure_boundary"],
            code=failure.get("code"),
            message=failure.get("message"),
            criteria={item["name"]: item["score"] for item in card.get("criteria") or () if item["of"] != "metric"},
            turns=None,
            metrics=card.get("metrics") or {},
            **{name: row[name] for name in _AS_THEY_ARE},
        )
        check_types(RolloutRow, members)
        return RolloutRow(**members)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise unreadable(f"Rollout {row['rollout_id']!r}", fault) from fault


_AS_THEY_ARE = tuple(item.name for item in fields(RolloutRow) if item.name in SOURCE_COLUMNS and item.name != "policy")


def unreadable(what: str, fault: Exception) -> StoreError:
    """Return the error for a row whose content this program did not write. what: The subject of the message."""
    hint = "The store is damaged. Restore it from a backup."
    return StoreError(f"{what} cannot be read from the store: {type(fault).__name__}.", hint=hint)


def unpacked(encoding: str, data: bytes) -> list[dict[str, Json]]:
    """Return the events in the column `events`. Raises ValueError or zlib.error if they cannot be read."""
    if encoding not in ("json", "zlib"):
        raise ValueError(f"unknown encoding {encoding!r}")
    if encoding == "zlib":
        unpacking = zlib.decompressobj()
        # Unpack with a limit, because a few kB in a crafted row can expand to gigabytes.
        data = unpacking.decompress(data, MOST_EVENT_BYTES)
        if unpacking.unconsumed_tail:
            raise ValueError("events exceed the maximum size of stored events")
    events: list[dict[str, Json]] = orjson.loads(data)
    return events


def differing(stored: Sequence[Any], new: Sequence[Any]) -> list[str]:
    """Return the columns in which two rows differ. The order of JSON keys and the compression are ignored."""
    one, two = (dict(zip(COLUMNS, values, strict=True)) for values in (stored, new))
    return [name for name in COLUMNS if name != "events_encoding" and _meaning(name, one) != _meaning(name, two)]


def _meaning(name: str, row: dict[str, Any]) -> Any:
    value = row[name]
    if name == "events":
        # Do not compare the stored bytes, because another release of zlib may compress the same events differently.
        return orjson.dumps(unpacked(row["events_encoding"], value), option=orjson.OPT_SORT_KEYS)
    if value is not None and (name in _OBJECTS or name in _OPTIONAL_OBJECTS):
        return orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    return value

"""Hashes over canonical JSON: sorted keys, no white space, UTF-8."""

from __future__ import annotations

import hashlib

import orjson

from taskapp_kit.records.content import Json


def json_hash(value: Json) -> str:
    """SHA-256 (hex) of the value's canonical JSON."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()

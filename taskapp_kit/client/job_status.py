"""What a backend says of a job, read: its status word, whether it is over, its reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

TERMINAL = frozenset({"succeeded", "failed", "cancelled", "canceled", "completed"})
SUCCEEDED = frozenset({"succeeded", "completed"})
CANCELLED = frozenset({"cancelled", "canceled"})
MAX_ID = 512
WORD = re.compile(r"[a-z0-9_.-]{1,40}")
WEIGHTS_NOTE = "No weights were updated: the backend's engine plays and scores rollouts, and trains nothing."
WATCHED = ("status", "progress", "metrics", "final_reward", "error")


def job_id_of(body: Mapping[str, Any]) -> str | None:
    """The id under `job_id` or `id`, a number as text; None for one that no route or terminal can take."""
    for name in ("job_id", "id"):
        value = body.get(name)
        told = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(told, str) and 0 < len(told) <= MAX_ID and told.isprintable() and told not in (".", ".."):
            return told
    return None


def read_status(body: Mapping[str, Any], job_id: str) -> dict[str, Any]:
    """The job as told, with `job_id`, `status`, `progress` and `metrics` always there.

    `status` (else `state`) is a word in lower case, and `unknown` where the backend tells something else.

    `final_reward` and `metrics` that stand under `results` only are lifted to the top.
    """
    job = dict(body)
    told = job.get("status") or job.get("state")
    word = told.strip().lower() if isinstance(told, str) else ""
    job["status"] = word if WORD.fullmatch(word) else "unknown"
    job["job_id"] = job_id_of(job) or job_id
    within = job.get("results")
    results = within if isinstance(within, Mapping) else {}
    if job.get("final_reward") is None and results.get("final_reward") is not None:
        job["final_reward"] = results["final_reward"]
    for name in ("progress", "metrics"):
        if not isinstance(job.get(name), Mapping):
            job[name] = dict(results[name]) if isinstance(results.get(name), Mapping) else {}
    return job


def over(job: Mapping[str, Any]) -> bool:
    """Nothing more will happen to it."""
    return job.get("status") in TERMINAL


def succeeded(job: Mapping[str, Any]) -> bool:
    """It ended well."""
    return job.get("status") in SUCCEEDED


def weights_note(job: Mapping[str, Any]) -> str:
    """The sentence that belongs to a job's reward while its backend trains nothing; "" where it does not say so."""
    return WEIGHTS_NOTE if job.get("updates_weights") is False else ""


def seen(job: Mapping[str, Any]) -> str:
    """What a watcher is told changes of, as text: two that are equal need not both be shown."""
    return json.dumps([job.get(name) for name in WATCHED], sort_keys=True, default=repr)

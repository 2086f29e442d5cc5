"""Reads a backend's response about a job: the job's id, its status, and whether it has ended."""

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
    """Return `job_id` or `id` as a string. Return None if the id is unsafe in routes or terminals."""
    for name in ("job_id", "id"):
        value = body.get(name)
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(text, str) and 0 < len(text) <= MAX_ID and text.isprintable() and text not in (".", ".."):
            return text
    return None


def read_status(body: Mapping[str, Any], job_id: str) -> dict[str, Any]:
    """Return the backend's response about a job, normalized. It always has `job_id`, `status`, `progress` and `metrics`.

    `status` comes from `status` or `state`. It is in lower case, or `unknown` if the backend sent no string.
    `final_reward` and `metrics` are copied from `results` if they are only there.
    """
    job = dict(body)
    given = job.get("status") or job.get("state")
    word = given.strip().lower() if isinstance(given, str) else ""
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
    """Return whether the job has ended."""
    return job.get("status") in TERMINAL


def succeeded(job: Mapping[str, Any]) -> bool:
    """Return whether the job succeeded."""
    return job.get("status") in SUCCEEDED


def weights_note(job: Mapping[str, Any]) -> str:
    """Return a note on a job's reward if the backend does not train, and otherwise an empty string.

    Args:
        job: The job's status, as the backend returned it.
    """
    return WEIGHTS_NOTE if job.get("updates_weights") is False else ""


def best_checkpoint(job: Mapping[str, Any]) -> str:
    """Return the name and the score of a job's best checkpoint as a string, or "" if the backend names none."""
    results = job.get("results")
    best, score = (results.get(name) if isinstance(results, Mapping) else None for name in ("best", "best_score"))
    has_score = isinstance(score, int | float) and not isinstance(score, bool)
    return f"{best}, reward {score:.4g}" if isinstance(best, str) and has_score else ""


def tag_texts(job: Mapping[str, Any]) -> list[str]:
    """Return the job's tags as `NAME=VALUE`, in the format of `jobs list --tag`."""
    tags = job.get("tags")
    named = tags.items() if isinstance(tags, Mapping) else ()
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in named]


def seen(job: Mapping[str, Any]) -> str:
    """Return the fields in WATCHED as a string, so that two polls of a job can be compared."""
    return json.dumps([job.get(name) for name in WATCHED], sort_keys=True, default=repr)

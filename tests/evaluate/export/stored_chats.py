"""Stored rollouts to export: of a model that adds, with whatever an export has to leave out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.records.content import Image
from taskapp_kit.records.events import (
    Acted,
    Answered,
    Called,
    EpisodeEnded,
    Event,
    Failed,
    Observed,
    Started,
    Stepped,
    encode,
)
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.store import open_store
from tests.store.stored_samples import png

SECRET = "what-nobody-may-read"
CREATED_AT = 1_800_000_000.0


def call(number: int, arguments: Any, name: str = "add") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": f"id{number}", "type": "function", "function": {"name": name, "arguments": text}}


def model_rollout(rollout_id: str, amounts: Sequence[int] = (1, 2), **changes: Any) -> StoredRollout:
    """An episode of the adder in which a model added these; `changes` are fields.

    broken: arguments of the first call as text. thoughts: the model's reasoning. shade: the first observation has a
    picture. example: messages in the prompt, after the first. details: of the last answer. local: a policy that is no model. actions: the episode's.
    """
    broken, thoughts, shade = (changes.pop(name, None) for name in ("broken", "thoughts", "shade"))
    example = changes.pop("example", [])
    details, local = changes.pop("details", {}), changes.pop("local", False)
    actions = changes.pop("actions", ["add"])
    seed = changes.get("seed", 0)
    start: Any = f"game {seed}, total 0"
    told: list[Event] = [
        Started("adder", "1", changes.get("split", "train"), seed, {}, "model"),
        Observed([start, Image(png(shade))] if shade else start, actions, 0.0),
    ]
    shown = [
        {"type": "text", "text": start},
        {"type": "image_url", "image_url": {"url": f"/blobs/{Image(png(shade or 0)).hash}"}},
    ]
    new: list[Any] = [
        {"role": "system", "content": "Add."},
        *example,
        {"role": "user", "content": shown if shade else start},
    ]
    total = 0
    for turn, amount in enumerate(amounts):
        total += amount
        arguments = broken if broken is not None and turn == 0 else {"amount": amount}
        answer: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call(turn, arguments)]}
        if thoughts:
            answer["reasoning_content"] = thoughts
        decision = Decision(
            [ToolCall("add", {"amount": amount}, f"id{turn}")],
            messages=[] if local else [*new, answer],
            usage={} if local else {"prompt_tokens": 100.0 * (turn + 1), "completion_tokens": 10.0},
            details=details if turn == len(amounts) - 1 else {},
        )
        seen = f"game {seed}, total {total}"
        told += [
            Called(turn),
            Answered(turn, decision, 0.1),
            Acted(turn, "add", {"amount": amount}),
            Stepped(PlayedStep(turn, "add", {"amount": amount}, seen, 0.5, seconds=0.001)),
        ]
        new = [{"role": "tool", "tool_call_id": f"id{turn}", "content": seen}]
    failure = changes.get("failure")
    if failure:
        told.append(Failed(failure["boundary"], failure["code"], failure["message"]))
    told.append(EpisodeEnded(changes.get("status", "terminated"), "environment", {"key": SECRET}, {"turns": 1.0}))
    reward = changes.get("reward", 1.0)
    fields: dict[str, Any] = {
        "rollout_id": rollout_id,
        "run_id": "run",
        "created_at": CREATED_AT,
        "app": "adder",
        "app_version": "1",
        "environment": "adder",
        "environment_version": "1",
        "split": "train",
        "seed": 0,
        "config": {"low": 5},
        "policy": {"name": "random"} if local else {"name": "model", "model": "m", "sample": 0},
        "mode": "eval",
        "status": "terminated",
        "stop_reason": "environment",
        "length": len(amounts),
        "total_reward": 0.5 * len(amounts),
        "events": encode(told),
        "spec_hash": "a" * 64,
        "kit_version": "0.2.0",
        "schema_version": 1,
        "reward": reward,
        "scorecard": None if failure else {
            "criteria": [
                {"name": "reached", "of": "outcome", "score": reward, "weight": 1.0, "reason": "so it is"},
                {"name": "unknown", "of": "judge", "score": None, "weight": 0.0, "reason": "not_configured"},
            ],
            "outcome_score": reward, "events_score": None, "reward": reward, "formula": "reward = 1", "metrics": {"m": 2.0},
        },
        "private": {"final_state": {"key": SECRET}},
        "timing": {"total": 1.5},
        "seconds": 1.5,
        "tokens": 110,
        "cost": 0.25,
        "blobs": {Image(png(shade)).hash: png(shade)} if shade else {},
    }  # fmt: skip
    return StoredRollout(**(fields | changes))


FAILURE = {"boundary": "policy", "code": "model_unreachable", "message": "The model did not answer.", "error_id": "e"}


def saved(path: Path, rollouts: Sequence[StoredRollout]) -> Path:
    """The path of a store with these, the first the newest."""

    async def save() -> None:
        store = open_store(str(path))
        for number, rollout in enumerate(rollouts):
            await store.save(replace(rollout, created_at=CREATED_AT - number))
        await store.close()

    asyncio.run(save())
    return path

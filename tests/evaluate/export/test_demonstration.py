"""Rollouts of policies without a model as conversations: exactly what a model that does the same reads and says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.evaluate.export.conversation import Chat, Unfit, conversation_of, demonstration_of
from taskapp_kit.interop.callers_model import truncating
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed
from taskapp_kit.wire.rollout import RolloutRequest
from tests.evaluate.export.stored_chats import model_rollout

ROOT = Path(__file__).parents[3]
ADDER, CAPITALS = str(ROOT / "examples/adder.py"), str(ROOT / "examples/capitals.py")

Turn = list[tuple[str, Json]] | str
"""The actions of one decision, or its words."""


def reply(turn: Turn, number: int) -> ChatReply:
    if isinstance(turn, str):
        return ChatReply({"role": "assistant", "content": turn})
    calls = [
        {"id": f"x{number}-{at}", "type": "function", "function": {"name": tool, "arguments": json.dumps(args)}}
        for at, (tool, args) in enumerate(turn)
    ]
    return ChatReply({"role": "assistant", "content": None, "tool_calls": calls})


async def played_by_a_model(service: Service, seed: int, turns: Sequence[Turn]) -> str:
    coming = iter(enumerate(turns))

    async def answers(_: dict[str, Json]) -> ChatReply | ModelFailed:
        found = next(coming, None)
        return truncating("enough") if found is None else reply(found[1], found[0])

    policy = {"config": {"inference_url": "http://caller.invalid/v1"}}
    request = {"run_id": "r", "env": {"seed": seed}, "policy": policy, "ops": [], "mode": "eval"}
    return (await service.rollout(RolloutRequest.model_validate(request), answers=answers)).rollout_id


async def played_in_a_session(service: Service, seed: int, turns: Sequence[Turn]) -> str:
    session = await service.sessions.open()
    start = await session.reset(seed=seed)
    for turn in turns:
        await (session.step(text=turn) if isinstance(turn, str) else session.step(turn))
    await session.finish()
    await session.close()
    return start.rollout_id


def both(app: TaskApp, path: Path, seed: int, turns: Sequence[Turn]) -> tuple[Chat, Chat]:
    """The model's conversation, and that of the same decisions in a session."""

    async def run() -> list[StoredRollout]:
        store = open_store(str(path / "rollouts.db"))
        service = Service(app, store=store)
        try:
            ids = [await played(service, seed, turns) for played in (played_by_a_model, played_in_a_session)]
            return [await store.load(rollout_id) for rollout_id in ids]  # type: ignore[misc]
        finally:
            await service.close()
            await store.close()

    model, session = asyncio.run(run())
    assert model.reward == session.reward is not None
    with pytest.raises(Unfit):
        conversation_of(session)
    return conversation_of(model), demonstration_of(session, app.freeze())


@pytest.mark.parametrize(
    "turns",
    [
        [[("add", {"amount": 1})], [("add", {"amount": 3})]],
        [[("add", {"amount": 1}), ("add", {"amount": 2})], [("add", {"amount": 3})]],
        [[("add", {"amount": "many"})], [("subtract", {})], [("add", {"amount": 2})]],
    ],
    ids=["one by one", "several at once", "refused"],
)
def test_tool_calls(tmp_path: Path, turns: list[Turn]) -> None:
    model, demonstration = both(find_app(ADDER), tmp_path, 7, turns)
    assert demonstration.messages == model.messages and len(model.messages) > 4
    assert demonstration.answers == model.answers and demonstration.tools == model.tools


def test_words(tmp_path: Path) -> None:
    model, demonstration = both(find_app(CAPITALS), tmp_path, 0, ["I do not know."])
    assert demonstration.messages == model.messages
    assert demonstration.messages[-1] == {"role": "assistant", "content": "I do not know."}


def test_what_cannot_be_a_conversation_is_left_out() -> None:
    app = find_app(ADDER).freeze()
    for stored, reason in (
        (model_rollout("r", local=True, shade=3), "images"),
        (model_rollout("r", local=True, environment="other"), "does not declare"),
        (model_rollout("r", local=True, actions=["jump"]), "does not declare"),
        (model_rollout("r", (), local=True), "no language model"),
    ):
        with pytest.raises(Unfit, match=reason):
            demonstration_of(stored, app)

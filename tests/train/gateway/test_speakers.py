"""Calls of another model at an attempt's address are told from the policy's, as far as they can be."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.train.gateway.attempt import AttemptRecord
from taskapp_kit.train.rows import RowOptions, TrainingEpisode, training_batch
from tests.train.gateway.peers import Client, SampleCall, ScriptedSampler, attempt_client, played

pytestmark = [pytest.mark.server, pytest.mark.anyio]

POLICY = {"role": "system", "content": "You are a travel agent."}
SIMULATOR = {"role": "system", "content": "You are a customer who wants to fly."}


def said(call: SampleCall) -> str:
    return f"{'Where to' if 'agent' in call.prompt else 'To Rome'}, {call.prompt.count('<|im_start|>')}?"


async def talk(
    client: Client, turns: int, *, policy: dict[str, Any], simulator: dict[str, Any], first: str = "policy"
) -> None:
    """The policy and a simulated user answer each other."""
    for_policy, for_simulator = [POLICY], [SIMULATOR]
    speaker = first
    if first == "policy":
        for_policy.append({"role": "user", "content": "Good morning."})
    for _ in range(turns):
        mine, theirs, more = (
            (for_policy, for_simulator, policy) if speaker == "policy" else (for_simulator, for_policy, simulator)
        )
        message = await client.message(*mine, **more)
        mine.append(message)
        theirs.append({"role": "user", "content": message["content"]})
        speaker = "simulator" if speaker == "policy" else "policy"


def recorded(turns: int, **options: Any) -> AttemptRecord:
    return played(lambda client: talk(client, turns, **options), ScriptedSampler(said))


@pytest.mark.parametrize("first", ["policy", "simulator"])
def test_turns_of_another_models_name_are_never_trained_on(first: str) -> None:
    record = recorded(6, policy={"model": "policy"}, simulator={"model": "gpt-x"}, first=first)
    assert [turn.auxiliary for turn in record.turns] == [(at % 2 == 0) == (first == "simulator") for at in range(6)]
    assert record.suspected == 0
    batch = training_batch([TrainingEpisode("r", "g", record.turns, 1.0)], RowOptions())
    assert batch.excluded == {"auxiliary": 3}
    assert batch.turns == 3
    (row,) = batch.rows
    assert row.trained == sum(len(turn.token_ids) for turn in record.turns if not turn.auxiliary)


def test_a_simulated_user_of_the_same_name_is_suspected_and_trained_on() -> None:
    record = recorded(6, policy={}, simulator={})
    assert not any(turn.auxiliary for turn in record.turns)
    assert record.suspected == 2, "the last answer was heard by nobody yet"


def test_names_that_the_policy_was_not_given_say_nothing() -> None:
    """A client that sends a name of its own for every call, and one that sends none."""
    record = recorded(4, policy={"model": "a"}, simulator={"model": "b"})
    assert not any(turn.auxiliary for turn in record.turns)
    assert record.suspected
    record = recorded(4, policy={"model": "policy"}, simulator={})
    assert not any(turn.auxiliary for turn in record.turns)


async def test_an_agent_that_changes_its_system_message_or_asks_itself_is_the_policy() -> None:
    async with attempt_client(ScriptedSampler(said)) as client:
        for step in range(3):
            system = {"role": "system", "content": f"Step {step} of 3."}
            await client.message(system, {"role": "user", "content": "What now?"})
        plan = await client.message({"role": "system", "content": "You plan."}, {"role": "user", "content": "Plan."})
        await client.message(POLICY, {"role": "user", "content": f"The plan: {plan['content']}"})
    record = client.attempt.record()
    assert record.suspected == 0
    assert not any(turn.auxiliary for turn in record.turns)

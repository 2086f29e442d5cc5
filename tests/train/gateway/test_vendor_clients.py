"""The real clients of OpenAI (3.54.0) and Anthropic (2.12.0) play attempts at the gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.train.gateway.attempt import AttemptRecord, Faithfulness
from tests.interop.peer_programs import python_of
from tests.train.gateway.peers import SETTINGS, ScriptedSampler, attempt_client

CLIENT = Path(__file__).with_name("vendor_clients.py")
CALL = ' I look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
pytestmark = [pytest.mark.interop, pytest.mark.server]


def played_by(dialect: str, environment: str, sampler: ScriptedSampler) -> tuple[dict[str, Any], AttemptRecord]:
    """What the vendor's client has read, and what the gateway has recorded."""
    python = python_of(environment)

    async def scenario() -> tuple[dict[str, Any], AttemptRecord]:
        async with attempt_client(sampler, dataclasses.replace(SETTINGS, max_tokens=100)) as client:
            url = client.attempt.url.removesuffix("/v1") if dialect == "messages" else client.attempt.url
            talking = await asyncio.create_subprocess_exec(
                str(python), str(CLIENT), dialect, url, stdout=-1, env={"PATH": os.environ["PATH"]}
            )
            written, _ = await asyncio.wait_for(talking.communicate(), 120)
            assert talking.returncode == 0
        return json.loads(written), client.attempt.record()

    return asyncio.run(scenario())


def test_chat_reads_answers_streams_and_refusals() -> None:
    sampler = ScriptedSampler(lambda call: CALL.split("\n", 1)[1] if "look" in call.prompt else "Hi.")
    seen, record = played_by("chat", "openai-3.54.0", sampler)
    assert seen == {
        "tokens": [4, 4],
        "calls": [["look"], ["look"]],
        "finish": ["stop", "tool_calls", "tool_calls"],
        "refused": [
            ["UnprocessableEntityError", "invalid_request"],
            ["UnprocessableEntityError", "context_length_exceeded"],
        ],
        "text": "Hi.",
    }
    # tools stand before the conversation, so the second call is no continuation of the first
    assert record.faithfulness == Faithfulness(exact=1, forked=3, refused=2)
    assert record.overridden == {"temperature": 1}
    assert record.unenforced == {"tool_choice": 1}


@pytest.mark.parametrize(
    ("dialect", "environment", "status", "last_event", "refused"),
    [
        ("responses", "openai-3.54.0", "completed", "response.completed", "previous_response_id is not supported"),
        ("messages", "langgraph-1.2.22", "end_turn", "message_stop", "messages.3 has the role assistant"),
    ],
)
def test_a_dialect_reads_answers_streams_and_refusals(
    dialect: str, environment: str, status: str, last_event: str, refused: str
) -> None:
    sampler = ScriptedSampler(lambda call: "Bye. " if len(sampler.calls) == 2 else CALL)
    seen, record = played_by(dialect, environment, sampler)
    assert (seen["call"], seen["text"]) == ("look", "Bye. ")
    assert (seen["status"], seen["events"][-1]) == (status, last_event)
    assert refused in seen["refused"] and seen["refused"].startswith("UnprocessableEntityError")
    assert record.faithfulness == Faithfulness(exact=2, refused=1)
    assert record.turns[1].prompt_ids[: len(record.turns[0].ids)] == record.turns[0].ids

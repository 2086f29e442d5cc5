"""What a model call is made of, and under which variable a role's model is found."""

from __future__ import annotations

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.rollout.models.access import role_endpoint
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, role_variable


@pytest.mark.parametrize(("role", "name"), [("judge", "TASKAPP_JUDGE"), ("strict-judge", "TASKAPP_STRICT_JUDGE")])
def test_a_role_has_one_variable_wherever_it_is_named(role: str, name: str) -> None:
    assert role_variable(role) == f"{name}_URL"
    settings = Settings(variables={f"{name}_URL": "http://h/v1", f"{name}_MODEL": "m", f"{name}_KEY": "sentinel"})
    found = role_endpoint(settings, role)
    assert found is not None and (found.url, found.model, found.key) == (
        "http://h/v1/chat/completions",
        "m",
        "sentinel",
    )
    assert role_endpoint(Settings(), role) is None


def test_an_endpoint_does_not_show_its_key() -> None:
    assert "sentinel" not in repr(Endpoint("http://h/v1", key="sentinel"))


def test_a_reply_crosses_to_a_worker_whole() -> None:
    reply = ChatReply(
        {"role": "assistant", "content": "é"}, "stop", usage={"total_tokens": 3.0}, token_ids=[1], logprobs=[-0.5]
    )
    assert ChatReply.from_json(reply.to_json()) == reply

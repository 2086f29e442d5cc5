"""History windows: what may be left out, and what never is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskapp_kit import RequestError, Step, TaskApp, action
from taskapp_kit.rollout.policy.options import (
    EstimatedTokens,
    FullHistory,
    LastTurns,
    TokenBudget,
    characters_of,
    read_history,
)
from taskapp_kit.wire.chat.conversation import ChatReply
from tests.rollout.policy.conversing import call, calling, saying, talk


class Reader:
    """Read pages."""

    def reset(self, seed: int) -> str:
        return "the first page"

    @action
    def turn(self, pages: int) -> Step:
        """Turn so many pages."""
        return Step(f"page after {pages}: " + "x" * pages)


def app_of() -> TaskApp:
    app = TaskApp("a")
    app.environment("e", max_steps=100)(Reader)
    return app


def turning(*pages: int) -> dict[str, Any]:
    return calling(*(call("turn", json.dumps({"pages": n}), f"c{index}") for index, n in enumerate(pages)))


@pytest.mark.parametrize(
    "given", ["fool", {"turns": 0}, {"turns": True}, {"tokens": 1.5}, {"turns": 1, "tokens": 9}, 3, {}]
)
def test_nonsense_is_refused_with_its_field(given: Any) -> None:
    with pytest.raises(RequestError, match="policy.config.history") as caught:
        read_history(given)
    assert caught.value.fields[0].loc == ("body", "policy", "config", "history")


def test_history_option_selects_the_history() -> None:
    assert (read_history(None), read_history("full")) == (FullHistory(), FullHistory())
    assert (read_history({"turns": 2}), read_history({"tokens": 9})) == (LastTurns(2), TokenBudget(9))


def test_the_last_turns_are_shown_after_the_opening() -> None:
    told = talk(app_of(), [turning(n) for n in range(1, 6)], policy_config={"history": {"turns": 2}})
    shown = [
        [message.get("content") for message in body["messages"] if message["role"] == "tool"] for body in told.bodies
    ]
    assert [len(pages) for pages in shown] == [0, 1, 2, 2, 2]
    assert shown[4] == ["page after 3: xxx", "page after 4: xxxx"]
    for body in told.bodies:
        assert [message["role"] for message in body["messages"][:2]] == ["system", "user"]
        assert body["messages"][1]["content"] == "the first page"
    assert [answer.details.get("left_out_turns") for answer in told.answers] == [None, None, None, 1, 2]
    assert [len(answer.messages) for answer in told.answers] == [3, 2, 2, 2, 2]  # the record is whole


def test_a_token_budget_is_estimated_by_characters() -> None:
    told = talk(app_of(), [turning(400) for _ in range(8)], policy_config={"history": {"tokens": 500}})
    sizes = [sum(map(characters_of, body["messages"])) + len(json.dumps(body["tools"])) for body in told.bodies]
    assert max(sizes) / 4 <= 500
    assert [len(body["messages"]) for body in told.bodies][-4:] == [8, 8, 8, 8]


def test_the_endpoints_own_count_sets_the_estimate_right() -> None:
    counter = EstimatedTokens()
    assert counter.tokens(400) == 100
    counter.learn(1000, 500)
    assert counter.tokens(400) == 200
    counter.learn(1000, 9e9)
    counter.learn(0, 5)
    assert counter.tokens(400) == 200

    def replies(tokens: float) -> list[Any]:
        return [ChatReply(turning(400), usage={"prompt_tokens": tokens}) for _ in range(8)]

    few = talk(app_of(), replies(100.0), policy_config={"history": {"tokens": 500}})
    assert len(few.messages(7)) > 6


def test_the_newest_exchange_is_shown_in_any_case() -> None:
    told = talk(app_of(), [turning(5000) for _ in range(3)], policy_config={"history": {"tokens": 1}})
    assert [len(body["messages"]) for body in told.bodies] == [2, 4, 4]


def test_a_picture_counts_the_same_however_large() -> None:
    def picture(size: int) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "x" * size}}]}

    assert characters_of(picture(10)) == characters_of(picture(100_000)) > 1000


@settings(max_examples=80)
@given(
    said=st.lists(
        st.lists(st.integers(0, 300), min_size=0, max_size=3).map(lambda n: turning(*n) if n else saying("words")),
        min_size=1,
        max_size=8,
    ),
    history=st.just("full")
    | st.integers(1, 5).map(lambda n: {"turns": n})
    | st.integers(1, 700).map(lambda n: {"tokens": n}),
    mode=st.sampled_from(["tool_calls", "text"]),
)
def test_no_window_drops_the_opening_or_parts_a_call_from_its_results(
    said: list[dict[str, Any]], history: Any, mode: Any
) -> None:
    """`talk` checks every body as a vendor does, who refuses a call without its result and a result without its call."""
    told = talk(app_of(), said, policy_config={"history": history}, output_mode=mode)
    whole = talk(app_of(), said, output_mode=mode)
    for body, full in zip(told.bodies, whole.bodies, strict=True):
        opening, rest = body["messages"][:2], body["messages"][2:]
        assert opening == full["messages"][:2]
        assert rest == full["messages"][len(full["messages"]) - len(rest) :]
        assert not rest or rest[0]["role"] == "assistant"
    assert [answer.messages for answer in told.answers] == [answer.messages for answer in whole.answers]

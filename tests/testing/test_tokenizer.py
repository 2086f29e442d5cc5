"""The tokenizer: nothing is lost, and a conversation that goes on begins with what it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.testing.mock_model import tokenizer
from taskapp_kit.testing.mock_model.reply import Call, Reply

WORDS = st.text(max_size=30)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
REPLIES = st.builds(
    Reply,
    content=st.none() | WORDS,
    calls=st.lists(st.builds(Call, name=st.sampled_from(["add", "take-away"]), arguments=WORDS), max_size=3),
    reasoning=st.none() | WORDS,
)


def as_message(reply: Reply) -> dict[str, Any]:
    """What a client appends to the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(reply.calls)
        ]
    return message


@given(WORDS)
def test_text_goes_there_and_back(words: str) -> None:
    assert tokenizer.text(tokenizer.ids([words.encode()])) == words


@given(st.lists(st.sampled_from(list(range(256, tokenizer.VOCABULARY))) | st.binary(max_size=9)))
def test_the_count_is_the_number_of_ids(pieces: list[int | bytes]) -> None:
    assert tokenizer.count(pieces) == len(tokenizer.ids(pieces))


@given(WORDS, st.lists(st.tuples(REPLIES, WORDS), max_size=4), st.none() | st.integers(1, 80))
def test_the_next_prompt_begins_with_this_prompt_and_this_answer(
    first: str, turns: list[tuple[Reply, str]], limit: int | None
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": first}]
    for reply, observation in turns:
        if limit is not None:
            reply = tokenizer.cut(reply, limit)
        prompt = tokenizer.prompt({"messages": messages, "tools": [TOOL]})
        said = tokenizer.ids(tokenizer.answer(reply, ended=reply.finish != "length"))
        assert limit is None or len(said) <= limit
        messages += [as_message(reply), {"role": "user", "content": observation}]
        after = tokenizer.ids(tokenizer.prompt({"messages": messages, "tools": [TOOL]}).pieces)
        before = tokenizer.ids(prompt.pieces) + said
        assert after[: len(before)] == before
        assert prompt.length == len(tokenizer.ids(prompt.pieces))


@given(REPLIES, st.integers(1, 120))
def test_an_answer_is_cut_where_its_tokens_end(reply: Reply, limit: int) -> None:
    whole = tokenizer.ids(tokenizer.answer(reply))
    short = tokenizer.cut(reply, limit)
    if len(whole) <= limit:
        assert short is reply
    else:
        assert short.finish == "length"
        left = tokenizer.ids(tokenizer.answer(short, ended=False))
        assert len(left) <= limit
        if not reply.reasoning or short.content or short.calls:  # a cut thought is closed, others break off
            assert whole[: len(left)] == left


def test_a_picture_costs_its_share() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    shown = tokenizer.prompt({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]})
    told = tokenizer.prompt({"messages": [{"role": "user", "content": "see"}]})
    assert shown.length == told.length + tokenizer.IMAGE_TOKENS

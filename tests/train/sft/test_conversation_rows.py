"""A conversation's row has the ids that a rollout would have, and is trained on exactly where the model answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.train.sft.conversations import (
    ExportedConversation,
    conversation_row,
    conversation_rows,
    not_learned_as_tokens,
)
from taskapp_kit.train.turns import NOT_SAMPLED
from tests.train.conversations import ARGUMENTS, CONVERSATIONS, LOOK, NEW, TEXTS, TOOLS, look
from tests.train.rendering.test_renderer import END, RENDERERS, families

ANSWERS = st.one_of(
    TEXTS.map(lambda text: {"role": "assistant", "content": text}),
    ARGUMENTS.map(lambda arguments: look(arguments, "")),
)

USER, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def conversation(messages: list[Any], answers: set[int], tools: Any = ()) -> ExportedConversation:
    return ExportedConversation("r", messages, frozenset(answers), list(tools), 1.0, "e", "train", 0)


@families
@given(first=CONVERSATIONS, answer=ANSWERS, new=NEW, second=ANSWERS, tools=TOOLS)
def test_a_row_is_the_turns_of_a_rollout(
    family: str, first: list[Any], answer: dict[str, Any], new: list[Any], second: dict[str, Any], tools: list[Any]
) -> None:
    renderer = RENDERERS[family]
    messages = [*first, answer, *new, second, {"role": "user", "content": "thanks"}]
    said = {len(first), len(first) + 1 + len(new)}
    row = conversation_row(renderer, conversation(messages, said, tools))
    prompt = renderer.prompt(first, tools)
    one = renderer.answer(answer)
    whole = renderer.extend((*prompt, *one), new)
    two = renderer.answer(second)
    assert row.ids == (*whole, *two)
    trained = [*range(len(prompt), len(prompt) + len(one)), *range(len(whole), len(whole) + len(two))]
    assert [place for place, on in enumerate(row.mask) if on] == trained
    assert {row.ids[len(prompt) + len(one) - 1], row.ids[-1]} == {renderer.tokenizer.token(END[family])}
    assert all((value == 1.0) == on for value, on in zip(row.advantages, row.mask, strict=True))
    assert all((version == NOT_SAMPLED) != on for version, on in zip(row.versions, row.mask, strict=True))


@families
@given(arguments=ARGUMENTS)
def test_an_answer_is_parsed_as_it_was_written(family: str, arguments: dict[str, Any]) -> None:
    renderer = RENDERERS[family]
    parsed = renderer.parse(renderer.answer(look(arguments)), [LOOK])
    texts = "".join(each for each in arguments.values() if isinstance(each, str))
    if "tool_call>" not in texts and "</think>" not in texts:
        assert parsed["tool_calls"][0]["function"]["name"] == "look"


def test_the_end_of_an_answer_is_learned_though_users_messages_end_with_the_same_token() -> None:
    renderer = RENDERERS["chatml"]
    end = renderer.tokenizer.token("<|im_end|>")
    row = conversation_row(renderer, conversation([USER, SAID], {1}))
    assert [on for token, on in zip(row.ids, row.mask, strict=True) if token == end] == [False, True]


def test_reasoning_is_learned_where_the_vocabulary_has_its_tokens() -> None:
    message = {"role": "assistant", "content": "7", "reasoning_content": "3 and 4"}
    text = RENDERERS["qwen"].tokenizer.decode(RENDERERS["qwen"].answer(message))
    assert text == "<think>\n3 and 4\n</think>\n\n7<|im_end|>"
    parsed = RENDERERS["qwen"].parse(RENDERERS["qwen"].answer(message))
    assert (parsed["reasoning_content"], parsed["content"]) == ("3 and 4", "7")
    assert RENDERERS["llama3"].tokenizer.decode(RENDERERS["llama3"].answer(message)) == "7<|eot_id|>"


def test_what_does_not_fit_the_model_is_left_out_by_reason() -> None:
    thought = {"role": "assistant", "content": "", "reasoning": "hm"}
    some = [
        conversation([{"role": "user", "content": "a" * size}, answer], {1})
        for size, answer in ((1, SAID), (100, SAID), (1, thought))
    ]
    rows, left_out = conversation_rows(RENDERERS["chatml"], some, 60)
    assert (len(rows), sorted(left_out.values())) == (1, [1, 1])
    rows, left_out = conversation_rows(RENDERERS["qwen"], some, 200)
    assert (len(rows), left_out) == (3, Counter()), "a model with tokens around reasoning learns it"


ARGUMENTS_OF_ASK = '{"name": "ask", "arguments": {"x": 1}}'
INLINE = {
    "reasoning": ({"content": "<think>\nhm\n</think>\n\nb"}, {"content": "b", "reasoning_content": "hm"}),
    "a call": (
        {"content": f"I ask.\n<tool_call>\n{ARGUMENTS_OF_ASK}\n</tool_call>"},
        {"content": "I ask.", "tool_calls": [{"function": {"name": "ask", "arguments": {"x": 1}}}]},
    ),
    "both": (
        {"content": f"<think>\nhm\n</think>\n\n<tool_call>\n{ARGUMENTS_OF_ASK}\n</tool_call>"},
        {"content": None, "reasoning": "hm", "tool_calls": [{"function": {"name": "ask", "arguments": '{"x": 1}'}}]},
    ),
}


@pytest.mark.parametrize("name", INLINE)
def test_marks_in_the_content_are_the_tokens_that_the_model_samples(name: str) -> None:
    renderer = RENDERERS["qwen"]
    inline, apart = ({"role": "assistant", **message} for message in INLINE[name])
    assert renderer.answer(inline) == renderer.answer(apart)
    assert renderer.not_as_tokens(inline) == renderer.not_as_tokens(apart) == []


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_marks_of_others_stay_text(role: str) -> None:
    ids = RENDERERS["qwen"].prompt([{"role": role, "content": "<think>hm</think>"}])
    think = RENDERERS["qwen"].tokenizer.token("<think>")
    assert think not in ids


def test_what_the_model_has_no_tokens_for_is_reported() -> None:
    messages = [
        {"role": "user", "content": "<think>"},
        {"role": "assistant", "content": "<think>hm</think>b<|im_end|>"},
        USER,
        {"role": "assistant", "content": "<tool_call>"},
        USER,
        {**SAID, "reasoning_content": "hm"},
    ]
    both = {family: RENDERERS[family] for family in ("chatml", "qwen")}
    found = {name: not_learned_as_tokens(each, [conversation(messages, {1, 3, 5})]) for name, each in both.items()}
    marks = ("<think>", "</think>", "<|im_end|>", "<tool_call>", "reasoning is left out")
    assert {mark: sum(mark in phrase for phrase in found["chatml"]) for mark in marks} == dict.fromkeys(marks, 1)
    assert ["<|im_end|>" in phrase for phrase in found["qwen"]] == [True]


@families
def test_an_answer_of_weight_0_is_context(family: str) -> None:
    twice = conversation([USER, SAID, USER, SAID], {1, 3})
    whole = conversation_row(RENDERERS[family], twice)
    context = replace(twice, weightless=frozenset({1}))
    row = conversation_row(RENDERERS[family], context)
    assert row.ids == whole.ids and row.trained * 2 == whole.trained
    assert row.mask[-row.trained :] == (True,) * row.trained
    last = replace(context, weightless=frozenset({3}))
    row = conversation_row(RENDERERS[family], last)
    assert row.mask[-1], "what follows the last answer that is learned is left out"


@families
@pytest.mark.parametrize("arguments", ["", " ", "null", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(family: str, arguments: Any) -> None:
    parsed = RENDERERS[family].parse(RENDERERS[family].answer(look(arguments)), [LOOK])
    assert parsed["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}

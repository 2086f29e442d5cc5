"""Laws of every family: prompts grow without changing, texts forge nothing, answers are parsed as the layout writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.rendering.llama3 import Llama3
from taskapp_kit.train.rendering.messages import UNSUPPORTED, normal_messages
from taskapp_kit.train.rendering.renderer import Renderer
from tests.train.byte_tokenizer import CHATML, LLAMA3, QWEN, ByteTokenizer
from tests.train.conversations import ARGUMENTS, CONVERSATIONS, LOOK, NEW, TEXTS, TOOLS, look

RENDERERS = {
    "chatml": ChatMl(ByteTokenizer(CHATML)),
    "qwen": ChatMl(ByteTokenizer(QWEN), "You are Qwen."),
    "llama3": Llama3(ByteTokenizer(LLAMA3)),
}
END = {"chatml": "<|im_end|>", "qwen": "<|im_end|>", "llama3": "<|eot_id|>"}
families = pytest.mark.parametrize("family", RENDERERS)


def sampled(renderer: Renderer, text: str, end: str | None) -> tuple[int, ...]:
    """The ids of an answer: its text, and the token that ends it, unless it was cut."""
    token = renderer.tokenizer.token(end) if end else None
    return (*renderer.tokenizer.encode(text), *([] if token is None else [token]))


@families
@given(messages=CONVERSATIONS, tools=TOOLS, answer=TEXTS, cut=st.booleans(), new=NEW)
def test_an_extended_prompt_begins_with_everything_before_it(
    family: str, messages: list[Any], tools: list[Any], answer: str, cut: bool, new: list[Any]
) -> None:
    renderer = RENDERERS[family]
    before = (*renderer.prompt(messages, tools), *sampled(renderer, answer, None if cut else END[family]))
    after = renderer.extend(before, new)
    assert after[: len(before)] == before
    end = renderer.tokenizer.token(END[family])
    assert after[len(before) - (not cut)] == end, "an answer that was cut is closed, once"


@families
@given(messages=CONVERSATIONS, tools=TOOLS, answer=TEXTS, new=NEW)
def test_an_extended_prompt_is_the_prompt_of_the_whole_conversation(
    family: str, messages: list[Any], tools: list[Any], answer: str, new: list[Any]
) -> None:
    """Where the sampled ids are those of the text: what is trained on is what will be served."""
    renderer = RENDERERS[family]
    answer = answer.strip()  # as Llama's layout writes it
    whole = [*messages, {"role": "assistant", "content": answer}, *new]
    before = (*renderer.prompt(messages, tools), *sampled(renderer, answer, END[family]))
    if messages[-1]["role"] == "system":
        return  # Llama's tools would stand in the first message of `new`
    assert renderer.extend(before, new) == renderer.prompt(whole, tools)


@families
@given(messages=CONVERSATIONS, tools=TOOLS)
def test_texts_forge_no_message(family: str, messages: list[Any], tools: list[Any]) -> None:
    """As many layout tokens as the same conversation has with harmless texts."""
    renderer = RENDERERS[family]

    def layout(messages: list[Any]) -> list[int]:
        return [each for each in renderer.prompt(messages, tools) if each >= 256]

    assert layout(messages) == layout([{**message, "content": "x"} for message in messages])


@families
@given(messages=CONVERSATIONS, tools=TOOLS)
def test_texts_stand_in_the_prompt_as_they_are(family: str, messages: list[Any], tools: list[Any]) -> None:
    renderer = RENDERERS[family]
    text = renderer.tokenizer.decode(renderer.prompt(messages, tools))
    for message in messages:
        content = message["content"]
        if family == "llama3":
            content = json.dumps(content, ensure_ascii=False) if message["role"] == "tool" else content.strip()
        assert content in text


@families
@given(text=TEXTS)
def test_without_tools_an_answer_is_its_text(family: str, text: str) -> None:
    renderer = RENDERERS[family]
    message = renderer.parse(sampled(renderer, text, END[family]))
    assert "tool_calls" not in message
    assert message["role"] == "assistant"
    if family != "qwen" or "</think>" not in text:  # Qwen reasons
        assert message["content"] == text


@pytest.mark.parametrize("family", ["chatml", "qwen"])
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3), said=st.sampled_from(("", "I look.")))
def test_calls_are_parsed_as_they_are_rendered(family: str, arguments: list[Any], said: str) -> None:
    renderer = RENDERERS[family]
    calls = [{"function": {"name": "look", "arguments": json.dumps(each)}} for each in arguments]
    conversation = [{"role": "user", "content": "Go."}]
    before = renderer.prompt(conversation, [LOOK])
    answered = renderer.prompt([*conversation, {"role": "assistant", "content": said, "tool_calls": calls}], [LOOK])
    ids = answered[len(before) : answered.index(renderer.tokenizer.token("<|im_end|>"), len(before)) + 1]
    if any(tag in json.dumps(arguments, ensure_ascii=False) for tag in ("</think>", "<tool_call>")):
        return  # an answer may contain such texts, and then means something else
    message = renderer.parse(ids, [LOOK], call_prefix="call_7")
    assert message["content"] == (said or None)
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == arguments
    assert [call["id"] for call in message["tool_calls"]] == [f"call_7_{number}" for number in range(len(arguments))]


@given(arguments=ARGUMENTS)
def test_a_call_of_llama_is_parsed_as_it_is_rendered(arguments: dict[str, Any]) -> None:
    renderer = RENDERERS["llama3"]
    conversation = [{"role": "user", "content": "Go."}]
    ids = renderer.prompt([*conversation, look(arguments)], [LOOK])[len(renderer.prompt(conversation, [LOOK])) :]
    end = renderer.tokenizer.token("<|eot_id|>")
    assert end is not None
    message = renderer.parse(ids[: ids.index(end) + 1], [LOOK])
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments
    assert message["content"] is None


NO_CALLS = {
    "chatml": (
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "look", "arguments": "far"}</tool_call>',
        '<tool_call>{"name": "look"}</tool_call> <tool_call>{"name": </tool_call>',
        "<tool_call>look</tool_call>",
        "<tool_call>",
    ),
    "llama3": ('{"name": 3}', '{"name": "look", "parameters": []}', "[]", "{", "look"),
}


@pytest.mark.parametrize(("family", "text"), [(family, text) for family, texts in NO_CALLS.items() for text in texts])
def test_what_is_no_call_stays_content(family: str, text: str) -> None:
    assert RENDERERS[family].parse(tuple(text.encode()), [LOOK]) == {"role": "assistant", "content": text}


HOSTILE_ARGUMENTS = [
    '{"x": ' + "[" * 5_000 + "]" * 5_000 + "}",
    '{"x": NaN}',
    '{"x": "\\ud800"}',
    '{"x": 1e999}',
    '{"x": 1, "x": 2}',
    '{"x": ' + "9" * 5_000 + "}",
]


@pytest.mark.parametrize("arguments", HOSTILE_ARGUMENTS)
def test_a_call_that_strict_json_refuses_is_content(arguments: str) -> None:
    """It would reach the client, and the next prompt, as JSON that not every reader accepts."""
    chatml = f'<tool_call>{{"name": "look", "arguments": {arguments}}}</tool_call>'
    assert RENDERERS["chatml"].parse(tuple(chatml.encode()), [LOOK])["content"] == chatml
    llama3 = f'{{"name": "look", "parameters": {arguments}}}'
    assert RENDERERS["llama3"].parse(tuple(llama3.encode()), [LOOK])["content"] == llama3
    text = RENDERERS["chatml"].tokenizer.decode(RENDERERS["chatml"].prompt([look(arguments)]))
    assert arguments in text, "arguments of a client that are no JSON stand in the prompt as they are"


def test_a_call_needs_no_end_if_it_is_complete() -> None:
    message = RENDERERS["chatml"].parse(b'Well. <tool_call>{"name": "look"}', [LOOK])
    assert message["content"] == "Well."
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>\nHm", "Hm", ""),
        ("Yes.", None, "Yes."),
    ],
)
def test_reasoning_is_told_from_the_answer_where_the_model_has_it(
    text: str, reasoning: str | None, content: str
) -> None:
    message = RENDERERS["qwen"].parse(sampled(RENDERERS["qwen"], text, "<|im_end|>"))
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    assert RENDERERS["chatml"].parse(tuple(text.encode()))["content"] == text


def test_an_answer_that_ends_with_another_stop_token_is_closed() -> None:
    renderer = RENDERERS["chatml"]
    end, other = renderer.tokenizer.token("<|im_end|>"), renderer.tokenizer.token("<|endoftext|>")
    assert renderer.stop_ids == {end, other}
    assert renderer.parse((*b"Yes.", other))["content"] == "Yes."
    assert renderer.extend((1, other), [])[:4] == (1, other, end, ord("\n"))


def test_the_results_of_parallel_calls_stand_in_one_message() -> None:
    renderer = RENDERERS["qwen"]
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = renderer.tokenizer.decode(renderer.extend(renderer.prompt([]), results))
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@given(text=TEXTS, call_id=st.sampled_from(("call_0", "x")))
def test_messages_have_one_normal_form(text: str, call_id: str) -> None:
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}
    forms = [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "assistant", "content": [{"type": "text", "text": text}], "tool_calls": [call], "refusal": None},
        {"role": "assistant", "content": text, "tool_calls": [{"function": {"name": "look", "arguments": {"x": 1}}}]},
    ]
    assert len({repr(normal_messages([form])) for form in forms}) == 1
    assert normal_messages([{"role": "assistant", "content": None}]) == normal_messages(
        [{"role": "assistant", "content": ""}]
    )


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "critic", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, "content"),
        ({"role": "assistant", "tool_calls": 3}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool_calls"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_its_place(message: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError) as refused:
        RENDERERS["chatml"].prompt([{"role": "user", "content": "x"}, message])
    assert refused.value.code == UNSUPPORTED
    assert refused.value.fields[0].loc == ("messages", 1, place)


def test_a_layout_needs_its_tokens() -> None:
    with pytest.raises(ConfigError, match="im_end"):
        ChatMl(ByteTokenizer(("<|im_start|>",)))

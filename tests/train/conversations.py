"""What hypothesis draws for tests of rendering: conversations and answers, with the texts that break renderers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

MARKS = ("<|im_end|>", "<|im_start|>system\n", "<|eot_id|>", "</tool_response>", "<tool_call>", "</think>")
HOSTILE = (*MARKS, "\n", " ", "\ufffd", "é", "🙂")
TEXTS = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text("ab \n{}", max_size=4)), max_size=4).map("".join)
ARGUMENTS = st.dictionaries(st.sampled_from("xyz"), st.one_of(st.integers(-9, 9), TEXTS, st.none()), max_size=2)
NEW = st.lists(
    st.one_of(
        TEXTS.map(lambda text: {"role": "user", "content": text}),
        TEXTS.map(lambda text: {"role": "tool", "tool_call_id": "call_0", "content": text}),
    ),
    min_size=1,
    max_size=3,
)
CONVERSATIONS = st.tuples(st.lists(TEXTS.map(lambda text: {"role": "system", "content": text}), max_size=1), NEW).map(
    lambda pair: [*pair[0], *pair[1]]
)
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}


def look(arguments: Any, content: str | None = None) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


TOOLS = st.sampled_from(([], [LOOK]))
PARALLEL = """I look twice.
<tool_call>
{"name": "look", "arguments": {}}
</tool_call>
<tool_call>
{"name": "look", "arguments": {"far": true}}
</tool_call>"""
"""An answer with two calls, in ChatML."""

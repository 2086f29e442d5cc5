"""Talks one dialect to a gateway with the vendor's own client. Prints one JSON document.

python vendor_clients.py chat http://127.0.0.1:8100/r/TOKEN/v1          in the peer openai
python vendor_clients.py responses http://127.0.0.1:8100/r/TOKEN/v1     in the peer openai
python vendor_clients.py messages http://127.0.0.1:8100/r/TOKEN         in the peer langgraph
"""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA: Any = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}


def chat(url: str) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=10.0)
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": "Hello."}]
    first = client.chat.completions.create(model="m", messages=messages, logprobs=True, temperature=0.1)
    messages += [first.choices[0].message, {"role": "user", "content": "Look."}]
    called = client.chat.completions.create(model="m", messages=messages, tools=tools, tool_choice="required")
    with client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
        streamed: Any = stream.get_final_completion()
    refused = []
    for change in ({"n": 2}, {"messages": [{"role": "user", "content": "x" * 5000}]}):
        try:
            client.chat.completions.create(**{"model": "m", "messages": messages, **change})
        except openai.APIStatusError as error:
            refused.append([type(error).__name__, error.code])
    text = client.completions.create(model="m", prompt="once").choices[0]
    calls: Any = called.choices[0].message.tool_calls, streamed.choices[0].message.tool_calls
    content: Any = first.choices[0].logprobs and first.choices[0].logprobs.content
    return {
        "tokens": [len(content), first.usage and first.usage.completion_tokens],
        "calls": [[call.function.name for call in each] for each in calls],
        "finish": [first.choices[0].finish_reason, called.choices[0].finish_reason, streamed.choices[0].finish_reason],
        "refused": refused,
        "text": text.text,
    }


def responses(url: str) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=10.0)
    tools: Any = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}]
    items: list[Any] = [{"role": "user", "content": "Hello."}]
    first = client.responses.create(model="m", input=items, tools=tools)
    call = first.output[-1]
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "A wall."}]
    with client.responses.stream(model="m", input=items, tools=tools) as stream:
        events = [event.type for event in stream]
        second = stream.get_final_response()
    refused = ""
    try:
        client.responses.create(model="m", input="Hello.", previous_response_id="resp_1")
    except openai.APIStatusError as error:
        refused = f"{type(error).__name__}: {error.message}"
    return {
        "call": call.name,
        "text": second.output_text,
        "status": second.status,
        "events": events,
        "refused": refused,
    }


def messages(url: str) -> dict[str, Any]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, timeout=10.0)
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    said: list[Any] = [{"role": "user", "content": "Hello."}]
    first = client.messages.create(model="m", max_tokens=90, messages=said, tools=tools)
    call: Any = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "A wall."}
    said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(model="m", max_tokens=90, messages=said, tools=tools) as stream:
        events = [event.type for event in stream]
        second = stream.get_final_message()
    refused = ""
    try:
        client.messages.create(model="m", max_tokens=9, messages=[*said, {"role": "assistant", "content": "I"}])
    except anthropic.APIStatusError as error:
        refused = f"{type(error).__name__}: {error.body['error']['message']}"  # type: ignore[index, call-overload]
    text: Any = second.content[0]
    return {"call": call.name, "text": text.text, "status": second.stop_reason, "events": events, "refused": refused}


if __name__ == "__main__":
    print(json.dumps({"chat": chat, "responses": responses, "messages": messages}[sys.argv[1]](sys.argv[2])))

"""Talks to a gateway with OpenAI's own client. Runs inside that peer's virtual environment, prints one JSON document.

python openai_client.py http://127.0.0.1:8100/r/TOKEN/v1
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def talk(client: openai.OpenAI) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "Hello."}]
    first = client.chat.completions.create(model="m", messages=messages, logprobs=True, temperature=0.1)
    messages += [first.choices[0].message, {"role": "user", "content": "Look."}]
    called = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, tool_choice="required")
    with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as stream:
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


if __name__ == "__main__":
    print(json.dumps(talk(openai.OpenAI(base_url=sys.argv[1], api_key="k", max_retries=0, timeout=10.0))))

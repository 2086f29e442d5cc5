"""Drives the mock model with OpenAI's own client. Runs inside that peer's virtual environment, prints one JSON document.

python openai_client.py answers http://127.0.0.1:8100/v1
python openai_client.py faults http://127.0.0.1:8100/v1 COUNT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from pydantic import BaseModel

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"amount": {"enum": [1, 2, 3]}}, "required": ["amount"]},
        },
    }
]
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Point(BaseModel):
    x: int
    name: str


def answers(client: openai.OpenAI) -> dict[str, Any]:
    plain = client.chat.completions.create(
        **ASKED, tools=TOOLS, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True}
    )
    choice: Any = plain.choices[0]
    with client.chat.completions.stream(**ASKED, tools=TOOLS) as stream:
        streamed: Any = stream.get_final_completion().choices[0]
    parsed = client.chat.completions.parse(**ASKED, response_format=Point).choices[0].message.parsed
    return {
        "call": [choice.message.tool_calls[0].function.name, choice.message.tool_calls[0].function.arguments],
        "streamed": [streamed.message.tool_calls[0].function.name, streamed.message.tool_calls[0].function.arguments],
        "finish": [choice.finish_reason, streamed.finish_reason],
        "tokens": [len(choice.token_ids), len(choice.logprobs.content), plain.usage and plain.usage.completion_tokens],
        "parsed": parsed is not None,
        "models": [model.id for model in client.models.list()],
        "words": bool(client.completions.create(model="m", prompt="once").choices[0].text),
    }


def faults(client: openai.OpenAI, count: int) -> list[str]:
    """What the client makes of each of the next `count` answers: an exception's name, or the finish reason."""
    found = []
    for _ in range(count):
        try:
            answer: Any = client.chat.completions.create(**ASKED)
            found.append(answer.choices[0].finish_reason if answer.choices else "no choices")
        except Exception as error:
            found.append(type(error).__name__)
    return found


if __name__ == "__main__":
    connected = openai.OpenAI(base_url=sys.argv[2], api_key="k", max_retries=0, timeout=1.0)
    told: Any = answers(connected) if sys.argv[1] == "answers" else faults(connected, int(sys.argv[3]))
    print(json.dumps(told))

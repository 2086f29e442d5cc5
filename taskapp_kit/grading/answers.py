"""The part of a reply that contains the final answer. Nothing outside this part counts.

Choose the part that the prompt asks for, and pass it to a grader:

    @app.rubric
    def correct(answer_text: str, task: Row) -> Grade:
        return number(tagged(answer_text), task.answer)

If a reply contains the part several times, the last one counts. If it contains none, or the last one is malformed, the
answer is "", which no grader accepts. Reasoning up to the last `</think>`, or in a `<think>` that is never closed, is ignored.
"""

from __future__ import annotations

import json
import re
from typing import Any

_EMPHASIS = " \t*_`"
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def without_thoughts(reply: str) -> str:
    """Return the reply without its reasoning."""
    return reply.rpartition("</think>")[2].partition("<think>")[0]


def tagged(reply: str, tag: str = "answer") -> str:
    """Return the text in the last `<answer>…</answer>`, or "" if the reply does not contain a closed one.

    Args:
        reply: The policy's reply.
        tag: The name of the tag, without brackets.
    """
    pieces = re.split(rf"<{re.escape(tag)}>", without_thoughts(reply), flags=re.IGNORECASE)
    parts = re.split(rf"</{re.escape(tag)}>", pieces[-1], flags=re.IGNORECASE)
    # a second closing tag leaves open where the answer ends
    return parts[0].strip() if len(pieces) > 1 and len(parts) == 2 else ""


def last_line(reply: str, label: str = "Answer:") -> str:
    """Return the last line that is not blank, without its label, or "" if the line does not start with the label.

    Text after the answer makes the answer "", because it may retract the answer.

    Args:
        reply: The policy's reply.
        label: How the line must start. Case and Markdown emphasis are ignored. Pass "" for a line without a label.
    """
    lines = without_thoughts(reply).strip().splitlines()
    line = lines[-1].strip(_EMPHASIS) if lines else ""
    if not line.casefold().startswith(label.casefold()):
        return ""
    return line[len(label) :].strip(_EMPHASIS)


def boxed(reply: str) -> str:
    r"""Return the content of the last `\boxed{…}`, or "" if the reply does not contain one or does not close it."""
    _, box, rest = without_thoughts(reply).rpartition(r"\boxed{")
    depth = 1
    for match in _BRACES.finditer(rest) if box else ():
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return rest[: match.start()].strip()
    return ""


def json_field(reply: str, field: str = "answer") -> str:
    """Return a field of a reply that is one JSON object, or "" if the reply is anything else or the field is missing.

    Args:
        reply: The policy's reply. The object may be in a Markdown code block.
        field: The name of the field. A value that is not a string is returned as JSON.
    """
    try:
        value = read_json(without_thoughts(reply))
    except ValueError:
        return ""
    if not isinstance(value, dict) or field not in value:
        return ""
    return value[field] if isinstance(value[field], str) else json.dumps(value[field], ensure_ascii=False)


_CODE_BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


def read_json(text: str) -> Any:
    """Return the value of a text that is one JSON value, or one code block with a JSON value.

    Raises:
        ValueError: The text is not JSON, repeats a field in an object, contains NaN or Infinity, or is too deeply nested.
    """
    block = _CODE_BLOCK.fullmatch(text.strip())
    try:
        return json.loads(block[1] if block else text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("the JSON is too deeply nested") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields as a dict. Raises ValueError if two fields have the same name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is repeated")
    return fields


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

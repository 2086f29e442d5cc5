"""Parses a response, in the format of any known endpoint, into a ChatReply, or classifies the error in it.

Token ids, log-probabilities and the version of the weights are read from the formats of vLLM (`return_token_ids`), SGLang
(`meta_info`, `metadata.weight_version`), Tinker-like gateways and NeMo Gym (in the message). They are never computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from taskapp_kit.records.content import Json
from taskapp_kit.rollout.models.attempts import AttemptFailed
from taskapp_kit.wire.chat.conversation import ChatReply

MOST_TOKENS = 10**12
"""The maximum plausible token count of a call. Larger counts are errors of the endpoint, and sums could overflow."""
CUT_SHORT = frozenset(("error", "abort", "aborted"))
"""Finish reasons of an aborted reply, for example during an update of the weights."""


def read_reply(status: int, body: bytes, retry_after: float | None = None) -> ChatReply:
    """Parse a chat completion. Raises AttemptFailed for an error or an invalid completion.

    retry_after: the delay in seconds that the endpoint requested, or None.
    """
    answer = _answer(status, body, retry_after)
    if not isinstance(answer, dict):
        raise _malformed("is not an object")
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise _malformed("has no list of choices")
    if not choices:
        raise AttemptFailed("empty", "returned 200 with an empty list of choices", status=status)
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise _malformed("has a choice without a message")
    finish_reason = choice.get("finish_reason")
    if finish_reason in CUT_SHORT:
        raise AttemptFailed(
            "aborted",
            f"aborted its reply ({finish_reason})",
            status=status,
            excerpt=text_of(choice.get("error")),
        )
    reply = ChatReply(
        message=_message(choice["message"]),
        finish_reason=finish_reason if isinstance(finish_reason, str) else "",
        model=answer["model"] if isinstance(answer.get("model"), str) else "",
        usage=_usage(answer.get("usage")),
    )
    _tokens(reply, answer, choice)
    return reply


def read_reward_reply(status: int, body: bytes, retry_after: float | None = None) -> ChatReply:
    """Parse a reward model's response. `message["answer"]` contains the unchanged JSON. Raises AttemptFailed for an error."""
    answer = _answer(status, body, retry_after)
    members = answer if isinstance(answer, dict) else {}
    return ChatReply(
        message={"role": "assistant", "content": "", "answer": answer},
        model=members["model"] if isinstance(members.get("model"), str) else "",
        usage=_usage(members.get("usage")),
    )


def _answer(status: int, body: bytes, retry_after: float | None) -> Any:
    """Return the JSON of a successful response. Raises AttemptFailed for an error."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        if status != 200:
            raise refused(status, None, body[:2000].decode(errors="replace"), retry_after) from None
        raise AttemptFailed("malformed", "returned 200 with a body that is not JSON", status=status) from None
    error = _error_of(answer)
    if status != 200 or error is not None:
        raise refused(status, error if error is not None else answer, "", retry_after)
    return answer


def _malformed(what: str) -> AttemptFailed:
    return AttemptFailed("malformed", f"returned 200 with a chat completion that {what}", status=200)


def _error_of(answer: Any) -> Any:
    """Return the error in a response, if any. SGLang and older vLLM send `{"object": "error", …}` instead of `{"error": …}`."""
    if isinstance(answer, list) and len(answer) == 1:  # Gemini wraps its errors in a list
        answer = answer[0]
    if not isinstance(answer, dict):
        return None
    if answer.get("error"):
        return answer["error"]
    return answer if answer.get("object") == "error" else None


def _message(message: dict[str, Any]) -> dict[str, Json]:
    """Normalize the message so that a conversation can send it back to the endpoint."""
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise _malformed("has content that is neither a string nor a list")
    if message.get("role") != "assistant":
        message["role"] = "assistant"
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise _malformed("has `tool_calls` of the wrong type; expected a list")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _malformed("has a tool call without a function name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):  # some local servers send an object or omit the arguments
            function["arguments"] = "{}" if arguments is None else orjson.dumps(arguments).decode()
        if not isinstance(call.get("id"), str) or not call["id"]:
            call["id"] = f"call_{index}"
        call.setdefault("type", "function")
    return message


def _usage(usage: Any) -> dict[str, float]:
    """Return all token counts by name. Counts inside `…_details` are added under their own names."""
    found: dict[str, float] = {}
    if not isinstance(usage, dict):
        return found
    for name, value in usage.items():
        if isinstance(value, dict):
            for inner, count in value.items():
                if _counts(count):
                    found.setdefault(inner, count)
        elif _counts(value):
            found[name] = value
    return found


def _counts(value: Any) -> bool:
    """Return whether the value is a plausible token count of one call."""
    return type(value) in (int, float) and 0 <= value <= MOST_TOKENS


# tokens


def _tokens(reply: ChatReply, answer: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    """Set the reply's token ids, log-probabilities and weights version.

    Raises AttemptFailed if the numbers of token ids and log-probabilities differ.
    """
    message = choice["message"]
    meta = choice.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    logprobs, named = _logprobs(choice, message, meta)
    ids = _first(choice.get("token_ids"), message.get("generation_token_ids"), meta.get("output_ids"), named)
    reply.logprobs = _numbers(logprobs)
    reply.token_ids = _ids(ids)
    reply.prompt_token_ids = _ids(
        _first(answer.get("prompt_token_ids"), choice.get("prompt_token_ids"), message.get("prompt_token_ids"))
    )
    reply.policy_version = _version(answer, meta)
    # training would use this turn with the log-probabilities of other tokens
    if reply.token_ids is not None and reply.logprobs is not None and len(reply.token_ids) != len(reply.logprobs):
        raise AttemptFailed(
            "token_mismatch",
            f"returned {len(reply.token_ids)} token ids but {len(reply.logprobs)} log-probabilities; expected the "
            "same number of each",
            status=200,
        )


def _logprobs(choice: Mapping[str, Any], message: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the log-probabilities and the token ids that they contain. Each is None if it is missing."""
    given = choice.get("logprobs")
    if isinstance(given, dict):
        entries = given.get("content")
        if isinstance(entries, list):
            if not entries and not choice.get("token_ids"):
                return None, None
            try:
                values = [entry["logprob"] for entry in entries]
                tokens = [entry["token"] for entry in entries]
            except (TypeError, KeyError):
                raise _malformed("has log-probabilities in an unknown format") from None
            if tokens and all(isinstance(token, str) and token.startswith("token_id:") for token in tokens):
                return values, [int(token[9:]) if token[9:].isdecimal() else None for token in tokens]
            return values, None
        given = given.get("token_logprobs")
    if isinstance(given, list):
        return given, None
    pairs = meta.get("output_token_logprobs")
    if isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return message.get("generation_log_probs"), None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _ids(values: Any) -> list[int] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise _malformed("has token ids that are not integers")
    return values


def _numbers(values: Any) -> list[float] | None:
    if values is None:
        return None
    # rounding may make a token's probability slightly more than 1
    if not isinstance(values, list) or not all(type(value) in (int, float) and value <= 1e-3 for value in values):
        raise _malformed("has log-probabilities that are not numbers of at most 0")
    return values


def _version(answer: Mapping[str, Any], meta: Mapping[str, Any]) -> str | None:
    metadata = answer.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for holder in (metadata, answer, meta):
        for name in ("weight_version", "policy_version"):
            version = holder.get(name)
            if isinstance(version, str) and version:
                return version
            if type(version) is int:
                return str(version)
    return None


OVERFLOW_CODES = frozenset(
    ("context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "model_context_window_exceeded")
)
SPENT_CODES = frozenset(("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"))
"""Error codes of a 429 response that make a retry useless."""

_OVERFLOW = re.compile(
    r"maximum context length"  # OpenAI, vLLM, SGLang, DeepSeek, Mistral, Fireworks
    r"|longer than the (model's context length|maximum model length)"  # SGLang, vLLM
    r"|exceeds? (the |its |your )?(model's |available |maximum )*(context|input) (length|size|window)"  # Ollama, llama.cpp
    r"|context (length|size|window) (is |was )?exceeded"
    r"|prompt is too long|input is too long"  # Anthropic, Bedrock
    r"|reduce the length of the (messages|prompt|input)"  # Groq
    r"|input token count [^.]{0,30}exceeds the maximum"  # Gemini
    r"|tokens \+ `?max_new_tokens`? must be",  # Together, TGI
    re.IGNORECASE,
)
_TOO_MANY_WANTED = re.compile(r"max(_completion)?_tokens\D{0,60}too large: (\d+)\D+?(\d+)", re.IGNORECASE)
_NEVER_MEASURED = (401, 403, 404, 429)
"""Statuses that never mean that the conversation is too long, even if the error message suggests it."""
_NEVER_SERVED = (501, 505)
"""Server errors that every repetition of the request causes again."""


def refused(status: int, error: Any, text: str, retry_after: float | None) -> AttemptFailed:
    """Convert an error response to a failed attempt. error: the body's error, if any. text: the body if it is not JSON."""
    words = text_of(error) or text
    codes = _codes(error)
    if status == 200:
        inner = _status_in(error)
        if inner is not None:
            status = inner
    if status not in _NEVER_MEASURED and status >= 200 and _overflows(codes, words):
        return AttemptFailed(
            "overflow", "rejected the conversation because it is too long", status=status, excerpt=words
        )
    if status == 200:
        return AttemptFailed("error_in_answer", "returned 200 with an error", status=status, excerpt=words)
    if status == 429:
        if codes & SPENT_CODES:
            return AttemptFailed(
                "refused",
                "returned 429: the key's credit is exhausted",
                status=status,
                hint="Add credit to the key's account, or use another key.",
            )
        return AttemptFailed("rate_limited", "returned 429", status=status, excerpt=words, retry_after=retry_after)
    if status == 408:
        return AttemptFailed("request_timeout", "returned 408", status=status, excerpt=words, retry_after=retry_after)
    if status >= 500 and status not in _NEVER_SERVED:
        kind = "overloaded" if status in (503, 529) else "server_error"
        return AttemptFailed(kind, f"returned {status}", status=status, excerpt=words, retry_after=retry_after)
    if status in (401, 403):  # no excerpt, because the text may repeat the key
        return AttemptFailed(
            "refused",
            f"returned {status}: the API key is missing or invalid",
            status=status,
            hint="Set policy.config.api_key to a valid key, or configure a key in TASKAPP_INFERENCE_KEYS_FOR.",
        )
    return AttemptFailed("refused", f"returned {status}", status=status, excerpt=words)


def _overflows(codes: set[str], words: str) -> bool:
    if codes & OVERFLOW_CODES:
        return True
    wanted = _TOO_MANY_WANTED.search(words)
    if wanted is not None and int(wanted[2]) >= int(wanted[3]) > 0:
        return False  # max_tokens alone exceeds the context window, so the settings are wrong, not the conversation
    return _OVERFLOW.search(words) is not None


def _codes(error: Any) -> set[str]:
    if not isinstance(error, dict):
        return set()
    return {value for value in (error.get("code"), error.get("type")) if isinstance(value, str)}


def _status_in(error: Any) -> int | None:
    """Return the HTTP status inside an error's body, if any. The proxy OpenRouter sends it there."""
    if isinstance(error, dict):
        for name in ("code", "status", "status_code"):
            value = error.get(name)
            if type(value) is int and 400 <= value <= 599:
                return value
    return None


def text_of(error: Any) -> str:
    """Return the message in an error of any format, or "" if it has no message."""
    for _ in range(4):
        if isinstance(error, str):
            return error[:2000]
        if not isinstance(error, dict):
            return ""
        error = error.get("message") or error.get("detail") or error.get("error") or error.get("msg")
    return ""

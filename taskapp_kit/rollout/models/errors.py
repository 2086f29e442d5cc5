"""Classifies error responses of endpoints by status and body, across the formats of different vendors."""

from __future__ import annotations

import re
from typing import Any

from taskapp_kit.rollout.models.retry import AttemptFailed

OVERFLOW_CODES = frozenset(
    ("context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "model_context_window_exceeded")
)
SPENT_CODES = frozenset(("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"))
"""Codes of a 429 for which a retry does not help."""

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
"""Statuses that never report a conversation's length, whatever their text is."""
_NEVER_SERVED = (501, 505)
"""Server errors that the same request causes again at any time."""


def refused(status: int, error: Any, text: str, retry_after: float | None) -> AttemptFailed:
    """The failed attempt for an error response. error: its JSON, else its text. Status 200 means an error in an answer."""
    words = text_of(error) or text
    codes = _codes(error)
    if status == 200:
        inner = _status_in(error)
        if inner is not None:
            status = inner
    if status not in _NEVER_MEASURED and status >= 200 and _overflows(codes, words):
        return AttemptFailed("overflow", "cannot read a conversation of this length", status=status, excerpt=words)
    if status == 200:
        return AttemptFailed("error_in_answer", "answered 200 with an error", status=status, excerpt=words)
    if status == 429:
        if codes & SPENT_CODES:
            return AttemptFailed(
                "refused", "answered 429: the key's credit is exhausted", status=status,
                hint="Top up the account of the key, or give another one.",
            )  # fmt: skip
        return AttemptFailed("rate_limited", "answered 429", status=status, excerpt=words, retry_after=retry_after)
    if status == 408:
        return AttemptFailed("request_timeout", "answered 408", status=status, excerpt=words, retry_after=retry_after)
    if status >= 500 and status not in _NEVER_SERVED:
        kind = "overloaded" if status in (503, 529) else "server_error"
        return AttemptFailed(kind, f"answered {status}", status=status, excerpt=words, retry_after=retry_after)
    if status in (401, 403):  # the text may repeat the key, so no excerpt
        return AttemptFailed(
            "refused", f"answered {status}: it does not take this key, or none was sent", status=status,
            hint="Give a key that it takes in policy.config.api_key, or set the server's own (TASKAPP_INFERENCE_KEYS_FOR).",
        )  # fmt: skip
    return AttemptFailed("refused", f"answered {status}", status=status, excerpt=words)


def _overflows(codes: set[str], words: str) -> bool:
    if codes & OVERFLOW_CODES:
        return True
    wanted = _TOO_MANY_WANTED.search(words)
    if wanted is not None and int(wanted[2]) >= int(wanted[3]) > 0:
        return False  # max_tokens alone exceeds the context window: an error of the settings, not of the conversation
    return _OVERFLOW.search(words) is not None


def _codes(error: Any) -> set[str]:
    if not isinstance(error, dict):
        return set()
    return {value for value in (error.get("code"), error.get("type")) if isinstance(value, str)}


def _status_in(error: Any) -> int | None:
    """The status inside an error's body, as the proxy OpenRouter sends it."""
    if isinstance(error, dict):
        for name in ("code", "status", "status_code"):
            value = error.get(name)
            if type(value) is int and 400 <= value <= 599:
                return value
    return None


def text_of(error: Any) -> str:
    """The message in an error of any format; empty when there is none."""
    for _ in range(4):
        if isinstance(error, str):
            return error[:2000]
        if not isinstance(error, dict):
            return ""
        error = error.get("message") or error.get("detail") or error.get("error") or error.get("msg")
    return ""

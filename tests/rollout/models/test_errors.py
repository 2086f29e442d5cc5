"""What an endpoint's refusal means, in the words of the endpoints that there are."""

from __future__ import annotations

import orjson
import pytest

from taskapp_kit.rollout.models.errors import text_of
from taskapp_kit.rollout.models.response import read_reply
from taskapp_kit.rollout.models.retry import KINDS, AttemptFailed


def failed(status: int, error: object, retry_after: float | None = None) -> AttemptFailed:
    body = error if isinstance(error, bytes) else orjson.dumps(error)
    with pytest.raises(AttemptFailed) as caught:
        read_reply(status, body, retry_after)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, "refused", False), (401, "refused", False), (403, "refused", False), (404, "refused", False),
        (405, "refused", False), (409, "refused", False), (413, "refused", False), (422, "refused", False),
        (408, "request_timeout", True), (429, "rate_limited", True), (500, "server_error", True),
        (502, "server_error", True), (503, "overloaded", True), (504, "server_error", True), (529, "overloaded", True),
        (202, "refused", False), (501, "refused", False), (505, "refused", False),
    ],
)  # fmt: skip
def test_statuses(status: int, kind: str, again: bool) -> None:
    found = failed(status, {"error": {"message": "no"}}, 3.0)
    assert (found.kind, found.status, KINDS[found.kind].again) == (kind, status, again)
    assert found.retry_after == (3.0 if again else None)


def test_only_what_says_too_much_to_do_closes_the_throttle() -> None:
    congested = {status for status in range(400, 600) if failed(status, {}).congested}
    assert congested == {408, 429, 503, 529}


OVERFLOWS = [
    # OpenAI, Groq, DeepSeek
    (400, {"error": {"message": "x", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "Please reduce the length of the messages or completion.", "type": "invalid_request_error"}}),
    (400, {"error": {"message": "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens"}}),
    # vLLM, now and before
    (400, {"object": "error", "message": "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens (7691 in the messages, 512 in the completion).", "code": 400}),
    (400, {"error": {"message": "The decoder prompt (length 17772) is longer than the maximum model length of 16384."}}),
    (400, {"error": {"message": "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 8192 tokens and your request has 8000 input tokens"}}),
    # SGLang
    (400, {"object": "error", "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).", "code": 400}),
    (400, {"object": "error", "message": "Requested token count exceeds the model's maximum context length of 40960 tokens."}),
    # Ollama, llama.cpp (500 at first)
    (400, {"error": {"message": "the input length exceeds the context length"}}),
    (500, {"error": {"message": "input exceeds context length"}}),
    (500, {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing", "type": "exceed_context_size_error"}}),
    # others
    (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    (400, [{"error": {"message": "The input token count (40000) exceeds the maximum number of tokens allowed (32768)."}}]),
    (422, {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 8193"}}),
    (200, {"error": {"message": "This endpoint's maximum context length is 4096 tokens.", "code": 400}}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "error"), OVERFLOWS)
def test_a_conversation_that_is_too_long(status: int, error: object) -> None:
    assert failed(status, error).kind == "overflow"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"error": {"message": "temperature must be at most 2"}}),
        (
            400,
            {
                "error": {
                    "message": "'max_tokens' is too large: 9000. This model's maximum context length is 8192 tokens and your request has 40 input tokens"
                }
            },
        ),
        (429, {"error": {"message": "Request too large: reduce the length of the messages"}}),
        (404, {"error": {"message": "no model 'maximum context length'"}}),
        (500, {"error": {"message": "internal error"}}),
    ],
)
def test_what_is_no_overflow(status: int, error: object) -> None:
    assert failed(status, error).kind != "overflow"


def test_money_that_is_spent_does_not_come_back() -> None:
    found = failed(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    assert found.kind == "refused"


@pytest.mark.parametrize("status", [401, 403])
def test_nothing_is_told_of_what_was_said_about_a_key(status: int) -> None:
    assert failed(status, {"error": {"message": "Incorrect API key provided: sk-abc***xyz"}}).excerpt == ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("words", "words"), ({"message": "words"}, "words"), ({"detail": "words"}, "words"),
        ({"error": {"message": "words"}}, "words"), ({"detail": {"error": {"message": "words"}}}, "words"),
        ({"message": 3}, ""), (None, ""), ([], ""), ({}, ""), ("x" * 3000, "x" * 2000),
    ],
)  # fmt: skip
def test_the_sentence_in_an_error(error: object, text: str) -> None:
    assert text_of(error) == text


def test_a_page_instead_of_json() -> None:
    assert failed(502, b"<html>Bad Gateway</html>").excerpt == "<html>Bad Gateway</html>"

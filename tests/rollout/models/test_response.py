"""Every dialect of an answer becomes the same reply, or says what is wrong with it; what an endpoint's refusal means."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.rollout.models.attempts import KINDS, AttemptFailed
from taskapp_kit.rollout.models.response import read_reply, text_of
from taskapp_kit.wire.chat.conversation import ChatReply

MESSAGE = {"role": "assistant", "content": "hello"}


def answer(
    message: object = MESSAGE, *, finish: object = "stop", choice: dict[str, Any] | None = None, **more: Any
) -> bytes:
    return orjson.dumps(
        {"model": "m", "choices": [{"message": message, "finish_reason": finish, **(choice or {})}], **more}
    )


def reply(*given: Any, **more: Any) -> ChatReply:
    return read_reply(200, answer(*given, **more))


def failed(body: bytes, status: int = 200) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        read_reply(status, body)
    return caught.value


def test_a_plain_answer() -> None:
    found = reply(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    assert found == ChatReply(MESSAGE, "stop", "m", {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})


def test_the_message_is_kept_as_it_came() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "refusal": "no", "annotations": []}
    assert reply(message, finish="content_filter").message == message
    assert reply({**MESSAGE, "reasoning": "hm"}).message["reasoning"] == "hm"
    assert reply({"content": [{"type": "text", "text": "a"}]}).message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}],
    }


def test_tool_calls_can_be_sent_back_whoever_wrote_them() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
        {"function": {"name": "b", "arguments": {"x": 1}}},
        {"id": "", "function": {"name": "c"}},
    ]
    found = reply({"content": None, "tool_calls": calls}, finish="tool_calls").message["tool_calls"]
    assert found == [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
        {"id": "call_1", "type": "function", "function": {"name": "b", "arguments": '{"x":1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "c", "arguments": "{}"}},
    ]


def test_arguments_that_are_no_json_are_behaviour() -> None:
    calls = [{"id": "1", "function": {"name": "a", "arguments": '{"x": '}}]
    assert reply({"tool_calls": calls}).message["tool_calls"][0]["function"]["arguments"] == '{"x": '


def test_every_count_of_usage() -> None:
    usage = {
        "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "cost": 0.25, "is_byok": False, "bad": -1,
        "prompt_tokens_details": {"cached_tokens": 6, "note": "x"}, "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    assert reply(usage=usage).usage == {
        "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "cost": 0.25, "cached_tokens": 6,
        "reasoning_tokens": 3,
    }  # fmt: skip
    assert reply(usage=None).usage == {} == reply(usage=[1]).usage


# token ids, log-probabilities, versions

ENTRIES = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]


IDS_AS_TOKENS = [{"token": f"token_id:{n}", "logprob": -n} for n in (5, 6)]
SGLANG = {"output_token_logprobs": [[-0.5, 5, "a"], [-1.0, 6, None]]}
NEMO_GYM = {**MESSAGE, "prompt_token_ids": [1], "generation_token_ids": [5], "generation_log_probs": [-0.5]}


@pytest.mark.parametrize(
    ("body", "prompt_token_ids", "token_ids", "logprobs"),
    [
        (
            answer(choice={"token_ids": [5, 6], "logprobs": {"content": ENTRIES}}, prompt_token_ids=[1]),
            [1],
            [5, 6],
            [-0.5, -1.0],
        ),
        (answer(choice={"logprobs": {"content": IDS_AS_TOKENS}}), None, [5, 6], [-5, -6]),
        (answer(choice={"logprobs": {"content": ENTRIES}}), None, None, [-0.5, -1.0]),
        (answer(choice={"token_ids": [5, 6], "logprobs": None}), None, [5, 6], None),
        (answer(choice={"meta_info": SGLANG}), None, [5, 6], [-0.5, -1.0]),
        (answer(NEMO_GYM), [1], [5], [-0.5]),
        (
            answer(choice={"token_ids": [5], "logprobs": {"token_logprobs": [-0.25]}, "prompt_token_ids": [1]}),
            [1],
            [5],
            [-0.25],
        ),
    ],
    ids=["vllm", "ids as tokens", "log-probabilities alone", "ids alone", "sglang", "nemo gym", "gateway"],
)
def test_tokens_in_every_dialect(
    body: bytes, prompt_token_ids: list[int] | None, token_ids: list[int] | None, logprobs: list[float] | None
) -> None:
    found = read_reply(200, body)
    assert (found.prompt_token_ids, found.token_ids, found.logprobs) == (prompt_token_ids, token_ids, logprobs)


@pytest.mark.parametrize(
    "told",
    [
        {"metadata": {"weight_version": "7"}},
        {"weight_version": 7},
        {"policy_version": "7"},
        {"metadata": None, "policy_version": 7},
        {"choice": {"meta_info": {"weight_version": "7"}}},
    ],
)
def test_the_weights_version(told: dict[str, Any]) -> None:
    assert reply(**told).policy_version == "7"
    assert reply().policy_version is None


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [5, 6, 7], "logprobs": {"content": ENTRIES}},
        {"token_ids": [5], "logprobs": {"content": ENTRIES}},
        {"token_ids": [5], "logprobs": {"content": []}},
        {"token_ids": [], "logprobs": {"content": ENTRIES}},
    ],
)
def test_ids_and_log_probabilities_of_different_length_are_an_error(choice: dict[str, Any]) -> None:
    assert failed(answer(choice=choice)).kind == "token_mismatch"


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.floats(-9, 0), max_size=6))
def test_the_law_of_lengths(ids: list[int], logprobs: list[float]) -> None:
    body = answer(choice={"token_ids": ids, "logprobs": {"content": [{"token": "x", "logprob": p} for p in logprobs]}})
    if ids and len(ids) != len(logprobs):
        assert failed(body).kind == "token_mismatch"
    elif len(ids) == len(logprobs):
        found = read_reply(200, body)
        assert found.token_ids == ids and (found.logprobs or []) == logprobs


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [1.5]}, {"token_ids": "12"}, {"token_ids": [True]}, {"token_ids": [-1]},
        {"logprobs": {"content": [{"token": "a"}]}}, {"logprobs": {"content": [{"token": "a", "logprob": "x"}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": 2.0}]}}, {"logprobs": {"content": ["a"]}},
        {"logprobs": {"content": [{"token": "token_id:x", "logprob": -1}]}},
    ],
)  # fmt: skip
def test_tokens_that_are_none(choice: dict[str, Any]) -> None:
    assert failed(answer(choice=choice)).kind == "malformed"


# what is wrong


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "malformed"), (b"{", "malformed"), (b"<html>", "malformed"), (b"[]", "malformed"), (b"null", "malformed"),
        (b"{}", "malformed"), (b'{"choices": {}}', "malformed"), (b'{"choices": []}', "empty"),
        (b'{"choices": [null]}', "malformed"), (b'{"choices": [{}]}', "malformed"),
        (b'{"choices": [{"message": "x"}]}', "malformed"), (answer({"content": 3}), "malformed"),
        (answer({"tool_calls": {}}), "malformed"), (answer({"tool_calls": [{}]}), "malformed"),
        (answer({"tool_calls": [{"function": {"name": 3}}]}), "malformed"), (b'{"choices": [{"message": {"content": NaN}}]}', "malformed"),
        (answer(finish="error"), "aborted"), (answer(finish="abort"), "aborted"),
        (orjson.dumps({"error": {"message": "x"}}), "error_in_answer"),
        (orjson.dumps({"error": "x", "choices": []}), "error_in_answer"),
        (orjson.dumps({"error": {"code": 429, "message": "slow down"}}), "rate_limited"),
        (orjson.dumps({"error": {"code": 502, "message": "upstream"}}), "server_error"),
        (orjson.dumps({"object": "error", "message": "x", "code": 400}), "refused"),
    ],
)  # fmt: skip
def test_a_200_that_is_no_answer(body: bytes, kind: str) -> None:
    assert failed(body).kind == kind


def test_an_error_that_is_null_is_none() -> None:
    assert reply(error=None).finish_reason == "stop"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "message",
                        "content",
                        "tool_calls",
                        "function",
                        "name",
                        "arguments",
                        "logprobs",
                        "error",
                        "usage",
                        "token_ids",
                        "id",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_no_json_breaks_it(value: Any) -> None:
    for body in (
        value,
        {"choices": [value]},
        {"choices": [{"message": value}]},
        {"choices": [{"message": {"tool_calls": [value]}, "logprobs": value}]},
    ):
        for status in (200, 400, 500):
            try:
                assert isinstance(read_reply(status, orjson.dumps(body)), ChatReply)
            except AttemptFailed as error:
                assert error.words


# refusals, in the words of the endpoints that there are


def refused(status: int, error: object, retry_after: float | None = None) -> AttemptFailed:
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
    found = refused(status, {"error": {"message": "no"}}, 3.0)
    assert (found.kind, found.status, KINDS[found.kind].again) == (kind, status, again)
    assert found.retry_after == (3.0 if again else None)


def test_only_congestion_lowers_the_concurrency_limit() -> None:
    congested = {status for status in range(400, 600) if refused(status, {}).congested}
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
    assert refused(status, error).kind == "overflow"


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
def test_similar_errors_are_not_a_context_overflow(status: int, error: object) -> None:
    assert refused(status, error).kind != "overflow"


def test_money_that_is_spent_does_not_come_back() -> None:
    found = refused(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    assert found.kind == "refused"


@pytest.mark.parametrize("status", [401, 403])
def test_error_about_a_key_has_no_excerpt(status: int) -> None:
    assert refused(status, {"error": {"message": "Incorrect API key provided: sk-abc***xyz"}}).excerpt == ""


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
    assert refused(502, b"<html>Bad Gateway</html>").excerpt == "<html>Bad Gateway</html>"

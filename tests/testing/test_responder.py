"""The mock model without its connections: whatever a client sends, it gets an answer, a fault, or a refusal that says why."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.net.sse import SseReader
from taskapp_kit.testing import Faults, Reply, bad, by_name, random_answers
from taskapp_kit.testing.mock_model import tokenizer
from taskapp_kit.testing.mock_model.behaviours import MISDEEDS, of_script
from taskapp_kit.testing.mock_model.chat_request import ChatRequest, Refused, check
from taskapp_kit.testing.mock_model.connection import ReceivedRequest, WritePlan
from taskapp_kit.testing.mock_model.responder import Responder

from .conversation import ADD, STOP, body, together

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
WHOLE = body(
    {"role": "developer", "content": "rules"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    },
    {**CALLED, "reasoning_content": "hm", "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    tools=[ADD, STOP],
    tool_choice={"type": "function", "function": {"name": "add"}},
    response_format={
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {}}}},
    },
    stream=True,
    stream_options={"include_usage": True},
    logprobs=True,
    top_logprobs=2,
    return_token_ids=True,
    n=1,
    max_tokens=100,
    temperature=1,
    seed=3,
    unknown_member=1,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "text", "minLength", "$ref"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def plan_of(sent: Any, responder: Responder) -> WritePlan:
    arrived = ReceivedRequest("POST", b"/v1/chat/completions", [(b"host", b"x")], orjson.dumps(sent))
    plan = responder.handle(arrived)
    assert isinstance(plan, WritePlan)
    return plan


def content_of(plan: WritePlan) -> bytes:
    """What is written after the header, not cut in chunks."""
    head, _, content = b"".join(data for _, data in plan.parts).partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return content
    pieces = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        pieces, content = pieces + content[: int(size, 16)], content[int(size, 16) + 2 :]
    return pieces


def answer_of(sent: Any, responder: Responder | None = None) -> dict[str, Any]:
    """The answer; of a stream, the one to which its chunks add up."""
    content = content_of(plan_of(sent, responder or Responder()))
    if not sent.get("stream"):
        answer: dict[str, Any] = json.loads(content)
        return answer
    *chunks, done = [frame.data for frame in SseReader().feed(content)]
    assert done == "[DONE]"
    return together([json.loads(chunk) for chunk in chunks])


# answers


@given(st.text(min_size=1, max_size=20), st.sampled_from(["auto", "required", None, "add"]))
def test_random_calls_fit_their_schemas(said: str, choice: str | None) -> None:
    wanted = {"type": "function", "function": {"name": "add"}} if choice == "add" else choice
    sent = body(said, tools=[ADD, STOP], tool_choice=wanted)
    (only,) = answer_of(sent, Responder(random_answers(3)))["choices"]
    assert only["finish_reason"] == "tool_calls" and only["message"]["content"] is None
    calls = only["message"]["tool_calls"]
    assert 1 <= len(calls) <= 3 and len({call["id"] for call in calls}) == len(calls)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (ADD, STOP)}
    for call in calls:
        assert choice != "add" or call["function"]["name"] == "add"
        jsonschema_rs.validate(schemas[call["function"]["name"]], json.loads(call["function"]["arguments"]))


@pytest.mark.parametrize(("more", "counts"), [({}, {1, 2, 3}), ({"parallel_tool_calls": False}, {1})])
def test_parallel_calls_only_where_they_are_allowed(more: dict[str, Any], counts: set[int]) -> None:
    answers = [answer_of(body(f"q{i}", tools=[ADD], **more), Responder(random_answers(3))) for i in range(30)]
    assert {len(answer["choices"][0]["message"]["tool_calls"]) for answer in answers} == counts


def test_words_where_no_tool_may_be_called_and_json_that_fits() -> None:
    for more in ({}, {"tools": [ADD], "tool_choice": "none"}):
        (only,) = answer_of(body("say something", **more))["choices"]
        assert only["finish_reason"] == "stop" and only["message"]["content"] and "tool_calls" not in only["message"]
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 900}}, "required": ["x"]}
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "point", "schema": schema}}):
        value = json.loads(answer_of(body(response_format=form))["choices"][0]["message"]["content"])
        jsonschema_rs.validate(schema if "json_schema" in form else {"type": "object"}, value)


def test_seed_and_n_give_other_answers() -> None:
    first, several = answer_of(body("tell me")), answer_of(body("tell me", n=4))
    texts = [one["message"]["content"] for one in several["choices"]]
    assert len(set(texts)) == 4 and [one["index"] for one in several["choices"]] == [0, 1, 2, 3]
    assert texts[0] == first["choices"][0]["message"]["content"]
    assert texts[0] != answer_of(body("tell me", seed=5))["choices"][0]["message"]["content"]
    assert (
        answer_of(body("söme wörds ✓"), Responder(by_name("echo")))["choices"][0]["message"]["content"]
        == "söme wörds ✓"
    )


def test_a_script_by_turns() -> None:
    both = {
        "content": "Both.",
        "tool_calls": [{"name": "add", "arguments": {"amount": 2}}, {"name": "stop", "arguments": "{"}],
    }
    responder = Responder(of_script([{"add": {"amount": 1}}, both, "Done."]))
    for conversation in ("one", "two"):
        messages: list[dict[str, Any]] = [{"role": "user", "content": conversation}]
        got = []
        for _ in range(4):
            message = answer_of(body(*messages, tools=[ADD, STOP]), responder)["choices"][0]["message"]
            calls = message.get("tool_calls", [])
            got.append((message["content"], [tuple(call["function"].values()) for call in calls]))
            messages += [message, *({"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls)]
        expected = (None, [("add", '{"amount":1}')]), ("Both.", [("add", '{"amount":2}'), ("stop", "{")])
        assert got == [*expected, ("Done.", []), ("Done.", [])]


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_bad_answers_are_bad_in_every_way(misdeed: str) -> None:
    message = answer_of(body(tools=[ADD]), Responder(bad(misdeeds=(misdeed,))))["choices"][0]["message"]
    calls = message.get("tool_calls", [])
    if misdeed in ("words", "blank"):
        assert not calls and bool(message["content"]) == (misdeed == "words")
        return
    name, arguments = calls[0]["function"].values()
    assert (name != "add") == (misdeed == "unknown_tool")
    if misdeed in ("broken_json", "no_arguments"):
        assert bool(arguments) == (misdeed == "broken_json")
        with pytest.raises(ValueError):
            json.loads(arguments)
    else:
        assert not jsonschema_rs.is_valid(ADD["function"]["parameters"], json.loads(arguments))


# tokens and streams


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 3, "return_token_ids": True},
        {"return_token_ids": True, "n": 3},
        {"max_tokens": 9, "logprobs": True, "return_token_ids": True},
        {"tools": [ADD, STOP]},
        {"tools": [ADD], "max_tokens": 14, "logprobs": True, "return_token_ids": True},
        {"tools": [ADD], "max_completion_tokens": 3, "return_token_ids": True},
    ],
)
@pytest.mark.parametrize(
    "script",
    [
        None,
        [Reply("Näh, ✓ words of some length.", reasoning="I think, therefore … ✓✓✓✓✓✓✓")],
        [Reply(refusal="No, thank you, not today.")],
    ],
)
def test_a_stream_adds_up_to_the_plain_answer(script: Any, more: dict[str, Any]) -> None:
    behaviour = random_answers() if script is None else of_script(script)
    usage = {"stream_options": {"include_usage": True}}
    plain, whole, without = (
        answer_of(body("count", **more, **streamed), Responder(behaviour, weight_version="step-3"))
        for streamed in ({}, {"stream": True, **usage}, {"stream": True})
    )
    for answer in (plain, whole, without):
        answer.pop("created"), answer.pop("object", None)
        for choice in answer["choices"]:
            choice["message"]["content"] = choice["message"]["content"] or None
    assert whole == plain == {**without, "usage": plain["usage"]}
    assert "usage" not in without and plain["metadata"] == {"weight_version": "step-3"}


def test_ids_logprobs_and_usage_agree_and_turns_begin_with_each_other() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Play."}, {"role": "user", "content": "start ✓"}]
    before: list[int] = []
    for turn in range(4):
        answer = answer_of(body(*messages, tools=[ADD, STOP], logprobs=True, top_logprobs=2, return_token_ids=True))
        (only,) = answer["choices"]
        prompt, said, logprobs = answer["prompt_token_ids"], only["token_ids"], only["logprobs"]["content"]
        assert prompt[: len(before)] == before
        before = prompt + said
        assert list(answer["usage"].values())[:3] == [len(prompt), len(said), len(prompt) + len(said)]
        assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in logprobs)
        assert len(logprobs) == len(said)
        assert tokenizer.text(said).startswith("<|call|>") and tokenizer.text(said).endswith("<|end|>")
        calls = only["message"]["tool_calls"]
        messages += [
            only["message"],
            *({"role": "tool", "tool_call_id": call["id"], "content": f"{turn}"} for call in calls),
        ]
    (named,) = answer_of(body(logprobs=True, return_token_ids=True, return_tokens_as_token_ids=True))["choices"]
    assert [entry["token"] for entry in named["logprobs"]["content"]] == [f"token_id:{i}" for i in named["token_ids"]]
    plain = answer_of(body())
    assert not plain.keys() & {"prompt_token_ids", "metadata"} and "token_ids" not in plain["choices"][0]


def test_limits_cut() -> None:
    for limit, words, reason in ((3, "abc", "length"), (8, "abcdefgh", "length"), (9, "abcdefgh", "stop")):
        (only,) = answer_of(body(max_tokens=limit), Responder(of_script(["abcdefgh"])))["choices"]
        assert (only["message"]["content"], only["finish_reason"]) == (words, reason)
    assert plan_of(body("hi"), Responder(context_tokens=50)).status == 200
    assert answer_of(body("hi" * 40), Responder(context_tokens=50))["error"]["code"] == "context_length_exceeded"


# refusals


@pytest.mark.parametrize(
    ("said", "more", "param"),
    [
        ([{"role": "wizard", "content": "x"}], {}, "messages[0].role"),
        ([{"role": "user", "content": None}], {}, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "data:"}]}], {}, "messages[0].content"),
        ([{"role": "assistant", "content": None}], {}, "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], {}, "messages[0].tool_calls"),
        (["x", CALLED], {}, "messages"),
        (["x", CALLED, "and?"], {}, "messages"),
        (["x", CALLED, {"role": "tool", "tool_call_id": "c2", "content": "ok"}], {}, "messages[2].tool_call_id"),
        (["x", {"role": "tool", "tool_call_id": "c1", "content": "ok"}], {}, "messages[1].tool_call_id"),
        (["x", {**CALLED, "tool_calls": [CALL, CALL]}], {}, "messages[1].tool_calls"),
        (["x", {**CALLED, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": {}}}]}], {}, "messages[1]."),
        (["x"], {"tools": []}, "tools"),
        (["x"], {"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        (["x"], {"tools": [STOP, STOP]}, "tools[1].function.name"),
        (["x"], {"tool_choice": "required"}, "tool_choice"),
        (["x"], {"tools": [STOP], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        (["x"], {"temperature": 3}, "temperature"),
        (["x"], {"max_tokens": 0}, "max_tokens"),
        (["x"], {"top_logprobs": 2}, "top_logprobs"),
        (["x"], {"stream_options": {"include_usage": True}}, "stream_options"),
        (["x"], {"response_format": {"type": "json_schema"}}, "response_format"),
        (["x"], {"messages": []}, "messages"),
        (["x"], {"stream": 1}, "stream"),
    ],
)
def test_requests_that_vendors_reject_are_rejected(said: list[Any], more: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        check({**body(*said), **more})
    assert refused.value.status == 400 and str(refused.value.param).startswith(param)
    error = json.loads(content_of(plan_of({**body(*said), **more}, Responder())))["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", refused.value.param)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at one place."""
    if not place:
        return new
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return value


@given(st.sampled_from(places(WHOLE)), JSON, st.booleans())
def test_whatever_is_sent_is_answered_or_refused(place: tuple[Any, ...], new: Any, tools: bool) -> None:
    responder = Responder()
    sent = changed(WHOLE, place, new)
    if not tools and isinstance(sent, dict):
        sent = {key: value for key, value in sent.items() if key not in ("tools", "tool_choice")}
    assert plan_of(sent, responder).status in (200, 400)
    assert responder.records.script_errors == 0


@pytest.mark.parametrize("required", [[None], [[]], [1], "name", 5, None])
def test_a_schema_may_require_nonsense(required: Any) -> None:
    responder = Responder()
    sent = changed(WHOLE, ("tools", 0, "function", "parameters", "required"), required)
    assert plan_of(sent, responder).status in (200, 400)
    assert responder.records.script_errors == 0


def test_the_whole_request_is_answered() -> None:
    assert plan_of(WHOLE, Responder()).status == 200


# faults and time


def test_a_status_with_retry_after_then_a_good_answer() -> None:
    responder = Responder(faults=Faults(sequence=("429", "503", "500", "418"), retry_after_seconds=3))
    plans = [plan_of(body("again"), responder) for _ in range(5)]
    assert [plan.status for plan in plans] == [429, 503, 500, 418, 200]
    assert [b"retry-after: 3" in plan.parts[0][1] for plan in plans] == [True, True, False, False, False]
    assert json.loads(content_of(plans[0]))["error"]["type"] == "rate_limit_error"
    assert [one.fault for one in responder.records.recorded] == ["429", "503", "500", "418", None]
    assert responder.records.faults == {"429": 1, "503": 1, "500": 1, "418": 1} and responder.records.answers == 1


def test_answers_that_are_not_answers() -> None:
    responder = Responder(faults=Faults(sequence=("malformed", "content_type", "error_200", "empty", "blank")))
    malformed, page, error, empty, blank = (plan_of(body(), responder) for _ in range(5))
    assert {plan.status for plan in (malformed, page, error, empty, blank)} == {200}
    with pytest.raises(ValueError):
        json.loads(content_of(malformed))
    assert b"text/html" in page.parts[0][1] and b"Bad Gateway" in content_of(page)
    assert json.loads(content_of(error))["error"]["type"] == "server_error"
    assert json.loads(content_of(empty))["choices"] == []
    assert json.loads(content_of(blank))["choices"][0]["message"]["content"] is None


def test_streams_that_are_not_streams() -> None:
    responder = Responder(faults=Faults(sequence=("malformed", "error_200", "empty")))
    plans = [plan_of(body(stream=True), responder) for _ in range(3)]
    malformed, error, empty = ([frame.data for frame in SseReader().feed(content_of(plan))] for plan in plans)
    with pytest.raises(ValueError):
        [json.loads(data) for data in malformed[:-1]]
    assert json.loads(error[0])["error"]["type"] == "server_error" and empty == ["[DONE]"]


@pytest.mark.parametrize(
    ("kind", "finish", "member", "words"),
    [
        ("length", "length", "content", "Some words"),
        ("content_filter", "content_filter", "content", None),
        ("refusal", "stop", "refusal", "I cannot help with that."),
    ],
)
def test_answers_that_say_less(kind: str, finish: str, member: str, words: str | None) -> None:
    responder = Responder(of_script(["Some words to be said."]), faults=Faults({kind: 1.0}))
    (only,) = answer_of(body(), responder)["choices"]
    assert only["finish_reason"] == finish and (only["message"][member] or "").startswith(words or "")
    assert len(only["message"]["content"] or "") < len("Some words to be said.")


@pytest.mark.parametrize("stream", [False, True])
def test_uneven_ids_and_logprobs(stream: bool) -> None:
    sent = body(logprobs=True, return_token_ids=True, stream=stream)
    (only,) = answer_of(sent, Responder(faults=Faults({"uneven": 1.0})))["choices"]
    assert len(only["logprobs"]["content"]) == len(only["token_ids"]) - 1


def test_a_script_may_ask_for_a_fault() -> None:
    responder = Responder(of_script([{"fault": "503"}, "Fine."]))
    assert plan_of(body(), responder).status == 503
    later = body("a", {"role": "assistant", "content": "b"}, "c")
    assert answer_of(later, responder)["choices"][0]["message"]["content"] == "Fine."
    assert responder.records.faults == {"503": 1}
    assert answer_of(body(), Responder(of_script([{"fault": "never"}])))["error"]["code"] == "script_error"


def test_faults_are_the_same_in_every_run_and_order() -> None:
    faults = Faults({"429": 0.2, "500": 0.1, "reset": 0.2, "truncated": 0.1}, seed=5)
    asked = [f"rollout {i}" for i in range(40)]

    def met(order: list[str]) -> dict[str, list[Any]]:
        responder = Responder(faults=faults)
        plans = {said: [plan_of(body(said), responder) for _ in range(3)] for said in order}
        return {said: [(plan.status, plan.end) for plan in tries] for said, tries in plans.items()}

    first = met(asked)
    assert first == met(asked[::-1])
    ends = {outcome for tries in first.values() for outcome in tries}
    assert ends == {(200, "keep"), (429, "keep"), (500, "keep"), (0, "reset"), (200, "reset"), (200, "close")}
    patient = Responder(faults=Faults({"429": 1.0}, up_to_attempt=2))
    assert [plan_of(body(), patient).status for _ in range(3)] == [429, 429, 200]


def test_an_answer_takes_the_time_that_was_set() -> None:
    drawn = [plan_of(body(f"q{i}"), Responder(latency_seconds=(0.02, 0.12))).parts[0][0] for i in range(8)]
    assert len(set(drawn)) == 8 and all(0.02 <= seconds <= 0.12 for seconds in drawn)
    script = of_script(["x" * 60])
    paced = plan_of(body(stream=True), Responder(script, chunk_seconds=0.03))
    assert len(paced.parts) > 5 and {seconds for seconds, _ in paced.parts[1:-1]} == {0.03}
    for stream in (False, True):
        slow = Responder(script, faults=Faults({"slow": 1.0}, slow_seconds=3.0))
        plan = plan_of(body(stream=stream), slow)
        assert len(plan.parts) > 5 and sum(seconds for seconds, _ in plan.parts) == pytest.approx(3.0, rel=0.2)


def test_how_often_a_conversation_came_is_remembered_within_bounds() -> None:
    responder = Responder(remembered=10)
    for said in ["first", *(f"q{i}" for i in range(10)), "first", "first", "q9"]:
        plan_of(body(said), responder)
    assert [one.attempt for one in responder.records.recorded][-3:] == [0, 1, 1]


def test_a_script_is_given_the_request() -> None:
    request = ChatRequest(body("a", {"role": "assistant", "content": "b"}, "c"), query="cid=trace_1")
    assert (request.turn, request.last_text, request.text, request.cid) == (1, "c", "a\n\nb\n\nc", "trace_1")

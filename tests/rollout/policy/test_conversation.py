"""The conversation with a model: what it reads, what its replies mean, and the laws that hold whatever it says."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskapp_kit import Image, InvalidAction, Private, RequestError, Step, TaskApp, Text, action
from taskapp_kit.records.events import answer_from_json, answer_to_json
from taskapp_kit.records.protocols import View
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.rollout.policy.conversation import Conversation
from taskapp_kit.rollout.policy.options import PolicyOptions, read_options
from taskapp_kit.testing.mock_model import tokenizer
from taskapp_kit.testing.mock_model.reply import reply_of
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.rollout import StructuredConfig
from tests.rollout.policy.conversing import call, calling, saying, talk


class Counter:
    """Count upwards."""

    def reset(self, seed: int) -> str:
        self.total = 0
        return "total 0"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add to the total."""
        self.total += amount
        return Step(f"total {self.total}", reward=1.0, info={"hidden": "never shown"})

    @action
    def wait(self) -> Step:
        """Do nothing."""
        raise InvalidAction("waiting is over")

    @action
    def note(self, text: str) -> Step:
        """Write a note."""
        return Step({"noted": text})


class Talker(Counter):
    """Talk and count."""

    @action(text=True)
    def say(self, text: str) -> Step:
        """Speak to the customer."""
        return Step(f"heard {text}")


def app_of(cls: type = Counter, **options: Any) -> TaskApp:
    app = TaskApp("a")
    app.environment("e", **{"max_steps": 30, **options})(cls)
    return app


def question_app() -> TaskApp:
    app = TaskApp("q")
    app.tasks("q", prompt="{q}", train=[{"q": "two and two?"}])
    return app


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_results_are_sent_back_in_order_with_their_call_ids() -> None:
    told = talk(
        app_of(),
        [
            calling(call("add", '{"amount": 2}', "x"), call("wait", "{}", "y"), call("note", '{"text": "n"}', "z")),
            calling(call("fly", "{}", "f")),
            saying(None, tool_calls=[call("add", '{"amount": 9}', "w")]),
            saying("hm"),
        ],
    )
    assert told.messages(1)[3:] == [
        {"role": "tool", "tool_call_id": "x", "content": "total 2"},
        {"role": "tool", "tool_call_id": "y", "content": "waiting is over"},
        {"role": "tool", "tool_call_id": "z", "content": '{"noted": "n"}'},
    ]
    steps = told.trajectory.steps
    assert [step.tool for step in steps] == ["add", "wait", "note", "fly", "add", ""]
    assert told.messages(2)[-1] == {"role": "tool", "tool_call_id": "f", "content": steps[3].refused}
    assert "there is no tool 'fly'" in str(steps[3].refused)
    assert told.messages(3)[-1] == {"role": "tool", "tool_call_id": "w", "content": steps[4].refused}
    assert "never shown" not in json.dumps(told.bodies)


def test_request_has_tools_tool_choice_and_sampling_parameters() -> None:
    config = {
        "temperature": 0.5, "max_tokens": 100, "stop": ["x"], "seed": 3, "parallel_tool_calls": False,
        "api_key": "sk-secret", "inference_url": "http://h/v1", "model": "m", "extra_body": {"chat_template_kwargs": {}},
    }  # fmt: skip
    (body,) = talk(app_of(), [saying("x")], policy_config=config, logprobs=True, mode="rl").bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "wait", "note"]
    assert {name: part for name, part in body.items() if name not in ("messages", "tools")} == {
        "tool_choice": "required", "temperature": 0.5, "max_tokens": 100, "stop": ["x"], "seed": 3,
        "parallel_tool_calls": False, "logprobs": True, "return_token_ids": True, "chat_template_kwargs": {},
    }  # fmt: skip
    (body,) = talk(app_of(), [saying("x")], logprobs=True).bodies
    assert body["logprobs"] is True
    assert "return_token_ids" not in body  # vendors that do not know it refuse it
    (body,) = talk(app_of(Talker), [saying("x")], policy_config={"tool_choice": "auto"}).bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "wait", "note"]
    assert body["tool_choice"] == "auto"
    assert "Speak to the customer." in body["messages"][0]["content"]


@pytest.mark.parametrize("mode", ["tool_calls", "text", "structured"])
def test_environment_with_only_a_text_action_is_a_plain_chat(mode: str) -> None:
    told = talk(question_app(), [saying("four")], output_mode=mode, policy_config={"parallel_tool_calls": True})
    (body,) = told.bodies
    assert body.keys() == {"messages"}
    assert body["messages"][-1] == {"role": "user", "content": "two and two?"}
    assert told.trajectory.answer_text == "four"
    assert told.trajectory.status == "terminated"


def test_text_next_to_tools_becomes_the_text_action() -> None:
    told = talk(app_of(Talker), [saying("hello"), calling(call("add", '{"amount": 1}')), saying(None)])
    assert [(step.tool, step.args) for step in told.trajectory.steps][:2] == [
        ("say", {"text": "hello"}),
        ("add", {"amount": 1}),
    ]
    assert told.messages(1)[-1] == {"role": "user", "content": "heard hello"}
    assert told.answers[2].problem == "Nothing was done: answer with a tool call. The tools are: add, wait, note, say."


def test_text_mode_parses_actions_from_text() -> None:
    told = talk(
        app_of(),
        [
            saying('I add. {"tool": "add", "arguments": {"amount": 2}}'),
            saying('{"add": {"amount": 1}}\n{"wait": {}}'),
            saying("let me think"),
        ],
        output_mode="text",
    )
    assert "tools" not in told.bodies[0]
    assert [step.tool for step in told.trajectory.steps] == ["add", "add", "wait", ""]
    assert told.messages(1)[-1] == {"role": "user", "content": "total 2"}
    assert told.messages(2)[-1]["content"] == 'add {"amount":1}:\ntotal 3\n\nwait {}:\nwaiting is over'
    assert "no action was found" in str(told.answers[2].problem)
    assert told.answers[0].output == 'I add. {"tool": "add", "arguments": {"amount": 2}}'


def test_text_mode_with_a_text_action() -> None:
    told = talk(
        app_of(Talker),
        [
            saying("plain words"),
            saying('{"tool": "say", "arguments": {"text": "hi"}}'),
            saying('{"tool": "add", "arguments": {"amount": 1'),
        ],
        output_mode="text",
    )
    assert [(turn.answer.output, turn.steps[0].tool) for turn in told.trajectory.turns][:2] == [
        ("plain words", "say"),
        ("hi", "say"),
    ]
    assert "cannot be read" in str(told.answers[2].problem)


def test_structured_mode_requests_and_parses_one_action() -> None:
    told = talk(app_of(), [saying('{"action": {"tool": "add", "arguments": {"amount": 3}}}')], output_mode="structured")
    form = told.bodies[0]["response_format"]["json_schema"]
    assert form["strict"] is True
    tools = [branch["properties"]["tool"]["enum"] for branch in form["schema"]["properties"]["action"]["anyOf"]]
    assert tools == [["add"], ["wait"], ["note"]]
    assert told.trajectory.steps[0].observation == "total 3"


def test_structured_mode_with_the_callers_own_schema() -> None:
    own = StructuredConfig(schema={"type": "object", "properties": {"answer": {"type": "string"}}}, strict=False)
    told = talk(question_app(), [saying('{"answer": "four"}')], output_mode="structured", structured=own)
    assert told.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": own.json_schema, "strict": False},
    }
    assert told.trajectory.answer_text == '{"answer": "four"}'


def test_thoughts_are_kept_and_are_no_answer() -> None:
    told = talk(
        app_of(Talker),
        [saying("<think>add 3?</think>hello"), saying("hi", reasoning_content="because"), saying("<think>cut")],
    )
    assert [answer.output for answer in told.answers] == ["hello", "hi", None]
    assert told.messages(1)[2]["content"] == "<think>add 3?</think>hello"
    assert told.messages(2)[4] == {"role": "assistant", "content": "hi", "reasoning_content": "because"}
    without = talk(
        app_of(Talker),
        [saying("hi", reasoning_content="because"), saying("x")],
        policy_config={"keep_reasoning": False},
    )
    assert without.messages(1)[2] == {"role": "assistant", "content": "hi"}
    assert without.answers[0].messages[-1]["reasoning_content"] == "because"


def test_arguments_that_are_no_json_are_a_problem_and_go_back_readable() -> None:
    told = talk(app_of(), [calling(call("add", "{amount: 2}", "x"), call("add", '{"amount": 1}', "y")), saying("x")])
    answer = told.answers[0]
    assert [item.args for item in answer.tool_calls] == ["{amount: 2}", {"amount": 1}]
    assert str(answer.problem).startswith("add was not done: its arguments are not JSON (")
    assert str(answer.problem).endswith('Give a JSON object, for example {"amount":1}.')
    assert told.messages(1)[2]["tool_calls"][0]["function"]["arguments"] == '{"unreadable":"{amount: 2}"}'
    assert answer.messages[-1]["tool_calls"][0]["function"]["arguments"] == "{amount: 2}"
    assert answer.details["rewritten_arguments"] == 1
    assert [message["content"] for message in told.messages(1)[3:]] == [answer.problem, "total 1"]
    assert told.trajectory.metrics["invalid_actions"] == 2


@pytest.mark.parametrize(
    "written",
    ['{"amount": 2}', '"{\\"amount\\": 2}"', '```json\n{"amount": 2}\n```', {"amount": 2}, ' {"amount": 2}\n'],
)
def test_arguments_are_read_kindly(written: Any) -> None:
    told = talk(app_of(), [calling(call("add", written)), saying("x")])
    assert told.answers[0].tool_calls[0].args == {"amount": 2}
    assert told.messages(1)[-1]["content"] == "total 2"
    assert json.loads(told.messages(1)[2]["tool_calls"][0]["function"]["arguments"]) == {"amount": 2}


def test_calls_without_an_id_of_their_own_get_one() -> None:
    told = talk(
        app_of(), [calling(call("wait", "", None), call("wait", "{}", "a"), call("wait", None, "a")), saying("")]
    )
    ids = [item.id for item in told.answers[0].tool_calls]
    assert ids == ["call_0_0", "a", "call_0_2"]
    assert [message["tool_call_id"] for message in told.messages(1)[3:]] == ids


def test_truncated_reply_is_reported_to_the_model() -> None:
    (answer,) = talk(app_of(), [ChatReply(saying("I would"), finish_reason="length")]).answers
    assert str(answer.problem).startswith("Your answer was cut off at its limit of tokens. Nothing was done")
    assert answer.details["finish_reason"] == "length"


def test_token_data_and_usage_are_kept_as_they_came() -> None:
    reply = ChatReply(
        saying("x"), finish_reason="stop", model="m-7", usage={"prompt_tokens": 9.0, "completion_tokens": 2.0},
        cost=0.5, prompt_token_ids=[1, 2], token_ids=[7, 8], logprobs=[-0.5, 0.0], policy_version="w3", seconds=1.5,
        attempts=3, retries=[{"kind": "status", "status": 429}, {"kind": "reset"}],
    )  # fmt: skip
    (answer,) = talk(app_of(), [reply]).answers
    assert (answer.prompt_token_ids, answer.token_ids, answer.logprobs) == ([1, 2], [7, 8], [-0.5, 0.0])
    assert (answer.policy_version, answer.usage) == ("w3", {"prompt_tokens": 9.0, "completion_tokens": 2.0})
    assert answer.details == {
        "finish_reason": "stop", "model": "m-7", "seconds": 1.5, "attempts": 3, "cost": 0.5, "retries": reply.retries,
    }  # fmt: skip


class Seer:
    """Look at pictures."""

    def reset(self, seed: int) -> Any:
        self.count = 0
        return self.seen()

    def seen(self) -> Any:
        self.count += 1
        width = self.count.to_bytes(4, "big")
        return [Text(f"frame {self.count}"), Image(b"\x89PNG\r\n\x1a\n" + bytes(8) + width + bytes((0, 0, 0, 5)))]

    @action
    def look(self) -> Step:
        """Look again."""
        return Step(self.seen())


def test_pictures_are_shown_as_parts_and_kept_by_their_hash() -> None:
    told = talk(app_of(Seer), [calling(call("look", "{}", "a"), call("look", "{}", "b")), saying("x"), saying("y")])
    opening = told.messages(0)[1]["content"]
    assert [part["type"] for part in opening] == ["text", "image_url"]
    assert opening[1]["image_url"]["url"].startswith("data:image/png;base64,")
    results = told.messages(1)[3:]
    assert [message["role"] for message in results] == ["tool", "tool", "user"]
    assert results[0]["content"] == "frame 2\n[picture 2 x 5: in the next message]"
    assert [part["type"] for part in results[2]["content"]] == ["text", "text", "image_url"] * 2
    picture = next(block for block in told.trajectory.steps[0].observation if isinstance(block, Image))
    kept = json.dumps([answer.messages for answer in told.answers])
    assert "base64" not in kept
    assert f"/blobs/{picture.hash}" in kept


def test_disabled_images_become_text() -> None:
    told = talk(app_of(Seer), [calling(call("look", "{}")), saying("x")], policy_config={"images": False})
    assert told.messages(0)[1]["content"] == "frame 1\n[picture 1 x 5: not shown]"
    assert told.messages(1)[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "frame 2\n[picture 2 x 5: not shown]",
    }


def test_scripted_actions_are_shown_as_the_callers() -> None:
    spec = app_of().freeze()
    environment = spec.environments["e"]
    tools = [item.tool for item in environment.actions.values()]
    conversation = Conversation(spec, environment, PolicyOptions())
    conversation.ask(View(0, "total 0", (), tools, initial="total 0"))
    conversation.read(ChatReply(calling(call("add", '{"amount": 1}', "x"), call("wait", "{}", "y"))))
    steps = [PlayedStep(0, "add", {"amount": 1}, "total 1"), PlayedStep(1, "add", {"amount": 3}, "total 4")]
    body = conversation.ask(View(2, "total 4", steps, tools))
    assert body["messages"][3:] == [
        {"role": "tool", "tool_call_id": "x", "content": "total 1"},
        {"role": "tool", "tool_call_id": "y", "content": "This was not done."},
        {"role": "user", "content": 'Done by the caller, not by you: add {"amount":3}:\ntotal 4'},
    ]
    assert conversation.ask(View(2, "total 4", steps, tools)) == body


def test_malformed_action_does_not_become_a_text_action() -> None:
    told = talk(app_of(Talker), [saying('{"tool": "add", "arguments": {"amount": 1'), saying("hm")], output_mode="text")
    assert [step.tool for step in told.trajectory.steps] == ["", "say"]
    assert told.messages(1)[-1]["content"] == told.answers[0].problem


def test_conversation_includes_scripted_actions() -> None:
    def by_caller(amount: int) -> dict[str, Any]:
        return {"type": "env", "tool": "add", "args": {"amount": amount}}

    ops = [by_caller(1), "agent", by_caller(3), "agent"]
    told = talk(app_of(), lambda body: calling(call("add", '{"amount": 2}')), ops=ops)
    assert told.messages(0)[1]["content"] == 'total 0\n\nDone by the caller, not by you: add {"amount":1}:\ntotal 1'
    assert told.messages(1)[3:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "total 3"},
        {"role": "user", "content": 'Done by the caller, not by you: add {"amount":3}:\ntotal 6'},
    ]


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
        ({"extra_body": {"messages": []}}, "extra_body.messages"),
        ({"extra_body": 3}, "extra_body"),
        ({"keep_reasoning": 1}, "keep_reasoning"),
    ],
)
def test_invalid_option_is_rejected_with_its_field(config: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        talk(app_of(), [saying("x")], policy_config=config)
    assert caught.value.fields[0].loc == ("body", "policy", "config", *where.split("."))


# -- laws -------------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=40) | st.sampled_from(
    [
        '{"add": {"amount": 1}}',
        "<add><amount>2</amount></add>",
        "<think>",
        "</think> wait",
        "wait",
        '{"tool": "fly"',
        "",
    ]
)
ARGUMENTS = (
    st.sampled_from(['{"amount": 1}', '{"text": "é"}', "{}", "", "{amount}", "[1]", "NaN", '{"amount": 1e999}']) | WORDS
)
CALLS = st.builds(
    call, st.sampled_from(["add", "wait", "note", "fly", ""]), ARGUMENTS | st.just({"amount": 2}),
    st.sampled_from(["a", "b", "", None]) | st.text(min_size=1, max_size=5),
)  # fmt: skip
MESSAGES = st.builds(
    lambda content, calls, extra: {"role": "assistant", "content": content, "tool_calls": calls, **extra},
    st.none() | WORDS, st.lists(CALLS, max_size=3) | st.none(),
    st.dictionaries(st.sampled_from(["reasoning_content", "refusal", "audio", "vendor"]), st.none() | WORDS, max_size=2),
)  # fmt: skip
MODES = st.sampled_from(["tool_calls", "text", "structured"])


def sendable(message: dict[str, Any]) -> bool:
    """Nothing in the message had to be rewritten: its calls have names, ids and JSON objects as arguments."""
    calls = message.get("tool_calls") or []
    if len({item.get("id") or "" for item in calls} - {""}) < len(calls):
        return False
    for item in calls:
        try:
            if not item["function"]["name"] or not isinstance(orjson.loads(item["function"]["arguments"]), dict):
                return False
            if json.loads(item["function"]["arguments"]).get("amount") == float("inf"):
                return False
        except ValueError:
            return False
    return True


@given(said=st.lists(MESSAGES, min_size=1, max_size=6), mode=MODES, words=st.booleans())
def test_messages_only_grow_and_replies_survive_json(said: list[dict[str, Any]], mode: Any, words: bool) -> None:
    told = talk(app_of(Talker if words else Counter), said, output_mode=mode)
    for turn, (body, after) in enumerate(zip(told.bodies, told.bodies[1:], strict=False)):
        before = len(body["messages"])
        assert orjson.dumps(after["messages"][:before]) == orjson.dumps(body["messages"])
        own = after["messages"][before]
        assert own["role"] == "assistant"
        if sendable(said[turn]):
            assert own.get("tool_calls", []) == (said[turn]["tool_calls"] or [])
            assert (own["content"] or "") == (said[turn]["content"] or "")
            assert own == told.answers[turn].messages[-1]
            answered = tokenizer.ids(tokenizer.answer(reply_of(said[turn])))
            read = tokenizer.ids(tokenizer.prompt(body).pieces) + answered
            assert tokenizer.ids(tokenizer.prompt(after).pieces)[: len(read)] == read
        assert {name: part for name, part in after.items() if name != "messages"} == {
            name: part for name, part in body.items() if name != "messages"
        }
    for answer in told.answers:
        assert answer_from_json(orjson.loads(orjson.dumps(answer_to_json(answer)))) == answer
        assert answer.messages[-1]["role"] == "assistant"
        assert answer.tool_calls or answer.output or answer.problem
    new = [message for answer in told.answers for message in answer.messages]
    assert len(new) == len(told.bodies[-1]["messages"]) + 1  # deltas: each message once


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
    | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
ANY_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "content": ANY_JSON,
        "tool_calls": ANY_JSON | st.lists(st.fixed_dictionaries({"id": ANY_JSON, "function": st.fixed_dictionaries(
            {"name": ANY_JSON, "arguments": ANY_JSON})}), max_size=2),
        "refusal": ANY_JSON, "role": ANY_JSON, "reasoning": ANY_JSON, "\ud800": ANY_JSON,
    },
)  # fmt: skip


@given(message=ANY_MESSAGE, mode=MODES, words=st.booleans())
def test_any_reply_becomes_an_answer_or_a_problem(message: dict[str, Any], mode: Any, words: bool) -> None:
    told = talk(app_of(Talker if words else Counter), [message, saying("x")], output_mode=mode)
    answer = told.answers[0]
    assert answer_from_json(orjson.loads(orjson.dumps(answer_to_json(answer)))) == answer
    assert answer.tool_calls or answer.output or answer.problem
    orjson.dumps(told.bodies)


SECRETS = st.text("abcdefghij", min_size=12, max_size=24)


@settings(max_examples=60)
@given(secret=SECRETS, public=st.text(st.characters(exclude_categories=("C",)), max_size=20), mode=MODES)
def test_private_fields_are_in_no_body(secret: str, public: str, mode: Any) -> None:
    import pydantic

    row = pydantic.create_model("Row", q=(str, ...), a=(Private[str], ...), deep=(dict[str, Private[str]], ...))
    app = TaskApp("q")
    app.tasks("q", row=row, prompt="{q}", train=[{"q": public, "a": secret, "deep": {"x": secret}}])
    told = talk(app, [saying("x")], output_mode=mode)
    assert public == "" or public in told.messages(0)[-1]["content"]
    assert secret in public or secret not in json.dumps(told.bodies)


def test_read_options_ignores_unknown_members() -> None:
    assert read_options({"policy": "x", "thinking_budget": 3, "temperature": None}) == PolicyOptions()
    assert read_options({}, record_logprobs=True, mode="rl") == PolicyOptions(logprobs=True, token_ids=True)
    assert read_options({"return_token_ids": False}, record_logprobs=True, mode="rl") == PolicyOptions(logprobs=True)

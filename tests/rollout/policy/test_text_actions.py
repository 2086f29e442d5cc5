"""Actions read out of words: every notation, every doubt, and hostile megabytes."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskapp_kit import TaskApp, action
from taskapp_kit.records.protocols import Tool
from taskapp_kit.rollout.policy.sampling import example_arguments
from taskapp_kit.rollout.policy.text.text_actions import parse_actions, without_thoughts


class Place(BaseModel):
    row: int = Field(ge=3)
    column: Literal["a", "b"]


class Model(BaseModel):
    word: str = Field(min_length=5)
    pair: tuple[int, str]
    inner: Model | None = None


class Everything:
    """Everything."""

    def reset(self, seed: int) -> str:
        return ""

    @action
    def add(self, amount: Literal[1, 2, 3]) -> None:
        """Add."""

    @action
    def wait(self) -> None:
        """Wait."""

    @action
    def submit(self, answer: str) -> None:
        """Submit."""

    @action
    def write(self, path: str, text: str = "", lines: list[int] | None = None) -> None:
        """Write."""

    @action
    def place(self, where: Place, times: float = 0.5) -> None:
        """Place."""


def tools_of(*names: str) -> list[Tool]:
    app = TaskApp("a")
    app.environment("e")(Everything)
    actions = app.freeze().environments["e"].actions
    return [actions[name].tool for name in names or actions]


ALL = tools_of()
ADD = tools_of("add")


def read(words: str, tools: list[Tool] = ALL) -> list[tuple[str, Any]]:
    parsed = parse_actions(words, tools)
    assert parsed.problem is None, parsed.problem
    return [(call.tool, call.args) for call in parsed.calls]


@pytest.mark.parametrize(
    "words",
    [
        '{"tool": "add", "arguments": {"amount": 2}}',
        '{"tool": "add", "args": {"amount": 2}}',
        '{"name": "add", "arguments": "{\\"amount\\": 2}"}',
        '{"name": "add", "parameters": {"amount": 2}}',
        '{"action": "add", "amount": 2}',
        '{"action": "add", "action_input": {"amount": 2}, "thought": "two"}',
        '{"add": {"amount": 2}}',
        '{"add": 2}',
        '{"thought": "two", "add": {"amount": 2}}',
        '{"action": {"tool": "add", "arguments": {"amount": 2}}}',
        '{"type": "function", "id": "x", "function": {"name": "add", "arguments": "{\\"amount\\": 2}"}}',
        '[{"name": "add", "arguments": {"amount": 2}}]',
        'I see {the total} and act.\n{"tool": "add", "arguments": {"amount": 2}}\nDone.',
        'Sure:\n```json\n{"tool": "add", "arguments": {"amount": 2}}\n```\nThat is it.',
        '```\n{"add": {"amount": 2}}\n```',
        '```json {"add": {"amount": 2}} ```',
        '```xml\n<add><amount>2</amount></add>\n```',
        'So {"add": {"amount": 2}}. Again: {"add": {"amount": 2}}',
        '<think>{"add": {"amount": 3}}</think>{"add": {"amount": 2}}',
        'it began before </think> {"add": {"amount": 2}}',
        '<tool_call>\n{"name": "add", "arguments": {"amount": 2}}\n</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"amount": 2}}',
        '<tool_call>\n<function=add>\n<parameter=amount>\n2\n</parameter>\n</function>\n</tool_call>',
        '<function=add>{"amount": 2}</function>',
        '<|python_tag|>{"name": "add", "parameters": {"amount": 2}}',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"amount": 2}}]',
        '[TOOL_CALLS]add[ARGS]{"amount": 2}',
        '<add><amount>2</amount></add>',
        '<add>\n  <amount> 2 </amount>\n</add>',
        '<add>{"amount": 2}</add>',
        '<add amount="2"/>',
        '<add>2</add>',
        '<action>{"tool": "add", "args": {"amount": 2}}</action>',
        '<action><add><amount>2</amount></add></action>',
        '<answer>{"add": {"amount": 2}}</answer>',
    ],
)  # fmt: skip
def test_every_notation(words: str) -> None:
    assert read(words) == [("add", {"amount": 2})]


@pytest.mark.parametrize(
    "words", ["wait", "`wait`", "wait()", "Wait a moment.\nAction: wait", "<wait/>", "<wait></wait>", "<wait>", '{"wait": {}}',
              "<action>wait</action>", '{"tool": "wait"}', "```\nwait\n```", "**Action:** wait", "<tool_call>wait</tool_call>"]
)  # fmt: skip
def test_an_action_without_arguments(words: str) -> None:
    assert read(words) == [("wait", {})]


def test_bare_arguments_call_the_only_tool() -> None:
    assert read('{"amount": 2}', ADD) == [("add", {"amount": 2})]
    assert parse_actions('{"amount": 2}', ALL).calls == []
    assert parse_actions('{"tool": "sub", "arguments": {"amount": 2}', ADD).calls == []


def test_boxed_answer_is_the_argument_of_the_text_tool() -> None:
    tools = tools_of("submit", "wait", "add")
    assert read("So \\boxed{\\frac{1}{2}}", tools) == [("submit", {"answer": "\\frac{1}{2}"})]
    assert read("\\boxed{7} indeed, \\boxed{7}.", tools) == [("submit", {"answer": "7"})]
    assert read("<answer> 42 </answer>", tools) == [("submit", {"answer": "42"})]
    assert read("\\boxed{a \\} b}", tools) == [("submit", {"answer": "a \\} b"})]
    assert "different actions" in str(parse_actions("\\boxed{7} or \\boxed{8}", tools).problem)
    assert "not closed" in str(parse_actions("\\boxed{7", tools).problem)
    assert parse_actions("\\boxed{7}", ADD).calls == []


def test_values_in_tags_follow_the_schema() -> None:
    words = "<write><path>1</path><text>\na < b & \\n\n</text><lines>[1, 2]</lines></write>"
    assert read(words) == [("write", {"path": "1", "text": "a < b & \\n", "lines": [1, 2]})]
    words = '<function=place><parameter=where>{"row": 3, "column": "a"}</parameter></function>'
    assert read(words) == [("place", {"where": {"row": 3, "column": "a"}})]
    assert read('<submit>{"x": 1} is it</submit>') == [("submit", {"answer": '{"x": 1} is it'})]


def test_a_line_end_inside_a_string_is_read() -> None:
    assert read('{"submit": {"answer": "def f():\n  return {"}}') == [("submit", {"answer": "def f():\n  return {"})]


def test_several_are_done_where_several_are_plainly_meant() -> None:
    two = [("add", {"amount": 1}), ("wait", {})]
    assert (
        read('<tool_call>{"name":"add","arguments":{"amount":1}}</tool_call>\n<tool_call>{"name":"wait"}</tool_call>')
        == two
    )
    assert read('[{"add": {"amount": 1}}, {"wait": {}}]') == two
    assert read('First one.\n```json\n[{"add": {"amount": 1}}, {"wait": {}}]\n```') == two
    assert read('{"actions": [{"add": {"amount": 1}}, {"wait": {}}]}') == two
    assert read('{"add": {"amount": 1}}\n{"wait": {}}') == two
    assert read('<|python_tag|>{"name": "add", "parameters": {"amount": 1}}; {"name": "wait", "parameters": {}}') == two


@pytest.mark.parametrize(
    "words",
    [
        'Either {"add": {"amount": 1}} or {"add": {"amount": 2}}',
        '```json\n{"add": {"amount": 1}}\n```\nor\n```json\n{"wait": {}}\n```',
        "<add>1</add> or <add>2</add>",
    ],
)
def test_two_different_actions_are_a_question_back(words: str) -> None:
    parsed = parse_actions(words, ALL)
    assert parsed.calls == []
    assert "different actions" in str(parsed.problem)
    assert parsed.attempted


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "the answer was empty"),
        ("<think>all thoughts", "the answer was empty"),
        ("I will add two.", "no action was found"),
        ('{"tool": "add", "arguments": {"amount": 2}', "expecting ',' delimiter at character"),
        ("{'tool': 'add', 'args': {'amount': 2}}", "property name enclosed in double quotes at character 2"),
        ('```json\n{"add": {"amount": }}\n```', "expecting value at character"),
        ('{"add": {"amount": NaN}}', "NaN is no number in JSON"),
        ('{"add": {"amount": 1e999}}', "not a finite number"),
        ('{"add": {"amount": 1' + "0" * 5000 + "}}", "4300 digits"),
        ('{"submit": {"answer": "\\ud800"}}', "lone surrogate"),
        ("<tool_call>add two</tool_call>", "in <tool_call> stands no JSON"),
        (
            '<tool_call>{"name": "add", "arguments": {"amount": 2}}</tool_call><tool_call>{"name"</tool_call>',
            "cannot be read",
        ),
        ("<add><amount>2</amount>", "<add> is not closed by </add>"),
        ("<write>what</write>", "in <write> stands no argument of it"),
        ("<action>dance</action>", "in <action> stands no action: 'dance'"),
        ("[TOOL_CALLS] now", "after [TOOL_CALLS] stands no JSON"),
    ],
)
def test_feedback_has_the_problem_and_a_valid_example(words: str, why: str) -> None:
    parsed = parse_actions(words, ALL)
    assert parsed.calls == []
    problem = str(parsed.problem)
    assert why in problem
    assert len(problem) < 600
    example = problem.partition("for example ")[2].partition(". The tools are: ")[0]
    assert read(example) == [("add", {"amount": 1})]
    assert problem.endswith("The tools are: add, wait, submit, write, place.")


def test_an_unknown_tool_is_called_by_its_name() -> None:
    """The episode refuses it, and says which tools there are."""
    assert read('{"tool": "fly", "arguments": {}}') == [("fly", {})]
    assert parse_actions('{"name": "Ada", "age": 3}', ALL).calls == []
    assert parse_actions('{"amount": 3, "wait": 2, "list": []}', ALL).calls == []  # the observation said again


def test_thoughts_are_cut_out() -> None:
    assert without_thoughts("a<think>b</think>c<thinking>d</thinking>e") == "ace"
    assert without_thoughts("b</think>c") == "c"
    assert without_thoughts("a<think>b<think>c</think>d") == "a"
    assert without_thoughts("a < b > c") == "a < b > c"


def test_every_example_is_accepted_by_its_tool() -> None:
    class Odd:
        """Odd."""

        def reset(self, seed: int) -> str:
            return ""

        @action
        def one(self, a: int = Field(ge=10, multiple_of=7), b: float = Field(gt=0, lt=0.5), c: bool = True) -> None:
            """One."""

        @action
        def two(self, model: Model, few: Annotated[list[Model], Field(min_length=2)]) -> None:
            """Two."""

        @action
        def three(self, either: int | str | None, names: dict[str, int], short: str = Field(max_length=2)) -> None:
            """Three."""

        @action
        def four(self, n: int = Field(lt=-3), x: float = Field(ge=-2.5, le=-1.5)) -> None:
            """Four."""

    app = TaskApp("a")
    app.environment("e")(Odd)
    app.environment("f")(Everything)
    for environment in app.freeze().environments.values():
        for item in environment.actions.values():
            item.arguments.read(example_arguments(item.tool))


PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"', "tool", "add", ":", ",", "arguments", "amount", "1", "<", ">", "/", "<think>", "</think>",
     "```", "\n", "json", "<tool_call>", "</tool_call>", "<add>", "</add>", "<function=add>", "<parameter=amount>",
     "\\boxed{", "[TOOL_CALLS]", "<|python_tag|>", "<action>", "</action>", '{"add": {"amount": 1}}', "\\", "=", "'", " "]
)  # fmt: skip


@settings(max_examples=400)
@given(words=st.lists(PIECES | st.text(st.characters(), max_size=3), max_size=30).map("".join))
def test_parser_never_raises_and_its_result_is_recordable(words: str) -> None:
    parsed = parse_actions(words, ALL)
    assert bool(parsed.calls) != (parsed.problem is not None)
    orjson.dumps([[call.tool, call.args] for call in parsed.calls])
    orjson.dumps(parsed.problem)


LONG = 250_000
HOSTILE = [
    "{", '{"a":', "[", '{"', '"', "<add>", "<add ", '<add a="', "<a1>", "<tool_call>", "<tool_call>{", "```", "```\nx\n",
    "```json\n{\n", "\\boxed{", "<think>", "</think>", "[TOOL_CALLS]", "<parameter=x>", "<function=add><parameter=x>",
    '{"tool": "', '{"add":{"amount":1}} ', "<action><answer>", " ", "\\", "<add>1</add>", "9", '{"tool":"x","arguments":',
    "<function=", "\n", '{"add":{"amount":1}},', "<wait>", "[[{", "</add>",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_hostile_text_takes_no_more_than_another(piece: str) -> None:
    """A quadratic reader would take half a minute to hours; linear ones were measured at 0.003 to 0.1 s."""
    words = piece * (LONG // len(piece))
    for text in (words, '{"submit": {"answer": "' + words, "<add>" + words + "</add>", "[TOOL_CALLS]" + words):
        began = time.thread_time()
        parse_actions(text, ALL)
        assert time.thread_time() - began < 2.0


def test_different_tags_without_end_are_not_each_looked_for() -> None:
    words = "<write>" + "".join(f"<b{index}>" for index in range(120_000)) + "</write>"
    began = time.thread_time()
    parse_actions(words, ALL)
    assert time.thread_time() - began < 8.0

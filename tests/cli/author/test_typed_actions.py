from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.cli.author.play import NotUnderstood, read_line
from taskapp_kit.records.protocols import Tool


def tool(name: str, text: bool = False, **fields: Any) -> Tool:
    return Tool(name, "", {"type": "object", "properties": fields}, text=text)


INTEGER, WORDS = {"type": "integer"}, {"type": "string"}
MOVES = {"type": "array", "items": {"enum": ["move_left", "do"], "type": "string"}}
ADD = tool("add", amount={"enum": [1, 2, 3]})
INTERACT = tool("interact", actions=MOVES)
MOVE = tool("move", x=INTEGER, y=INTEGER, why=WORDS)
PULL = tool("pull")
SAY = tool("say", text=True, words=WORDS)
MAYBE = tool("maybe", it={"anyOf": [INTEGER, {"type": "null"}]})


@pytest.mark.parametrize(
    ("line", "tools", "name", "args"),
    [
        ("3", [ADD], "add", {"amount": 3}),
        ("add 3", [ADD], "add", {"amount": 3}),
        ("amount=3", [ADD], "add", {"amount": 3}),
        ('add {"amount": 3}', [ADD], "add", {"amount": 3}),
        ('{"amount": 3}', [ADD], "add", {"amount": 3}),
        ('{"add": {"amount": 3}}', [ADD], "add", {"amount": 3}),
        ("move_left do do", [INTERACT], "interact", {"actions": ["move_left", "do", "do"]}),
        ("move_left, do", [INTERACT], "interact", {"actions": ["move_left", "do"]}),
        ('["do"]', [INTERACT], "interact", {"actions": ["do"]}),
        ("move 3 4", [MOVE, PULL], "move", {"x": 3, "y": 4}),
        ("move y=4 x=3 why='to see'", [MOVE, PULL], "move", {"x": 3, "y": 4, "why": "to see"}),
        ("pull", [MOVE, PULL], "pull", {}),
        ("none", [MAYBE], "maybe", {"it": None}),
        ("7", [MAYBE], "maybe", {"it": 7}),
        ("Paris, of course", [SAY], "say", {"words": "Paris, of course"}),
        ("say hello", [SAY, PULL], "say", {"words": "hello"}),
    ],
)
def test_a_line_is_a_call(line: str, tools: list[Tool], name: str, args: dict[str, Any]) -> None:
    (call,) = read_line(line, tools).tool_calls
    assert (call.tool, call.args) == (name, args)


def test_plain_words_go_to_the_tool_that_takes_words() -> None:
    answer = read_line("the answer is 3", [SAY, PULL])
    assert (answer.output, answer.tool_calls) == ("the answer is 3", [])
    assert read_line("Paris", [SAY]).output == "Paris"


@pytest.mark.parametrize(
    ("line", "tools", "words"),
    [
        ("jump", [MOVE, PULL], "'jump'.*: move, pull"),
        ("pull hard", [MOVE, PULL], "^pull "),
        ("move 1 2 a b", [MOVE, PULL], "^move .*: x, y, why"),
        ("move 'a", [MOVE, PULL], "closing"),
        ('{"amount": ', [ADD], "JSON"),
        ('{"jump": {}}', [MOVE, PULL], ": move, pull"),
    ],
)
def test_what_is_no_action_is_told(line: str, tools: list[Tool], words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        read_line(line, tools)


@given(st.lists(st.sampled_from(["move_left", "do"]), min_size=1))
def test_a_list_of_choices_needs_no_json(actions: list[str]) -> None:
    short, long = read_line(" ".join(actions), [INTERACT]), read_line(json.dumps({"actions": actions}), [INTERACT])
    assert short.tool_calls == long.tool_calls


@given(st.text(min_size=1))
def test_any_line_is_an_answer_or_is_told(line: str) -> None:
    for tools in ([ADD], [MOVE, PULL], [SAY, PULL], [INTERACT], [MAYBE]):
        try:
            answer = read_line(line, tools)
        except NotUnderstood as error:
            assert str(error)
        else:
            assert answer.tool_calls or answer.output is not None

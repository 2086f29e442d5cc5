"""The system prompt and the tools: what a model is told before anything happens."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.records.protocols import View
from taskapp_kit.rollout.policy.conversation import Conversation, prompt_of, system_prompt, tool_schemas
from taskapp_kit.rollout.policy.options import PolicyOptions
from taskapp_kit.rollout.policy.text.structured import action_schema, response_format


class Where(BaseModel):
    """A place."""

    row: int
    inner: Where | None = None


class Game:
    """Win the game."""

    def reset(self, seed: int) -> str:
        return "begin"

    @action
    def move(self, to: Literal["left", "right"]) -> Step:
        """Move one step."""
        return Step("moved")

    @action
    def put(self, where: Where) -> Step:
        """Put
        a stone."""
        return Step("put")

    @action(text=True)
    def say(self, words: str) -> Step:
        """Say something."""
        return Step("said")


def spec_of(app_prompt: str | None = None, **options: Any) -> Any:
    app = TaskApp("a", system_prompt=app_prompt)
    app.environment("e", **options)(Game)
    return app.freeze()


def said(spec: Any, mode: Any = "tool_calls", *names: str) -> str:
    environment = spec.environments["e"]
    tools = [item.tool for item in environment.actions.values() if not names or item.name in names]
    return system_prompt(spec, environment, mode, tools)


def test_environment_prompt_overrides_app_prompt_and_default() -> None:
    assert said(spec_of("of the app", prompt="of the environment")) == "of the environment"
    assert said(spec_of("of the app")) == "of the app"
    assert said(spec_of(max_steps=7, max_turns=1)) == (
        "Win the game.\n\nAct by calling the tools. Several calls in one answer are done in the order in which they stand. "
        "An answer in plain words, without a call, is an action too: Say something.\n\n"
        "The episode ends at the latest after 7 actions or after 1 of your answers."
    )
    assert said(spec_of(), "tool_calls", "say") == "Win the game.\n\nSay something."


@pytest.mark.parametrize("prompt", [None, "of the app"])
@pytest.mark.parametrize("mode", ["text", "structured"])
def test_prompt_without_tool_calls_lists_the_actions(mode: str, prompt: str | None) -> None:
    told = said(spec_of(prompt), mode)
    assert told.startswith(prompt or "Win the game.")
    for words in ("- move: Move one step.", "- put: Put a stone.", '"enum":["left","right"]', "- say: Say something."):
        assert words in told
    example = '{"tool":"move","arguments":{"to":"left"}}'
    assert (example if mode == "text" else f'{{"action":{example}}}') in told
    assert ("taken as the action say" in told) == (mode == "text")


def test_tools_are_functions_with_a_schema_of_an_object() -> None:
    environment = spec_of().environments["e"]
    told = tool_schemas([item.tool for item in environment.actions.values()])
    assert [item["function"]["name"] for item in told] == ["move", "put"]
    for item in told:
        assert item["function"]["parameters"]["type"] == "object"
    assert "Where" in told[1]["function"]["parameters"]["$defs"]


def test_the_schema_of_the_actions_keeps_the_definitions_apart() -> None:
    tools = [item.tool for item in spec_of().environments["e"].actions.values()]
    schema = action_schema(tools)
    assert set(schema["$defs"]) == {"put_Where"}
    written = json.dumps(schema)
    assert "#/$defs/Where" not in written
    assert written.count("#/$defs/put_Where") == 2
    assert (
        response_format(PolicyOptions(mode="structured"), tools)["json_schema"]["strict"] is False
    )  # `inner` is optional
    assert response_format(PolicyOptions(mode="structured"), tools[:1])["json_schema"]["strict"] is True


def test_prompt_of_is_the_first_request() -> None:
    spec = spec_of()
    environment = spec.environments["e"]
    view = View(0, "begin", (), [item.tool for item in environment.actions.values()], initial="begin")
    for mode in ("tool_calls", "text", "structured"):
        asking = PolicyOptions(mode=mode)
        assert prompt_of(spec, environment, asking, view) == Conversation(spec, environment, asking).ask(view)

"""The renderer of a model is found from its tokens and writes the same text as the model's own chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.rendering.families import differences, renderer_for
from tests.train.byte_tokenizer import CHATML, LLAMA3, QWEN, ByteTokenizer

TEMPLATES = Path(__file__).parent / "templates"
SMOLLM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
NO_TOOLS = ["tools", "tool calls"]


@pytest.mark.parametrize(
    ("template", "names", "family", "default", "different"),
    [
        ("smollm2", CHATML, "chatml", SMOLLM, NO_TOOLS),
        ("qwen2.5", QWEN, "chatml", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", []),
        ("qwen3", QWEN, "chatml", "", []),
        ("llama3", LLAMA3, "llama3", "", NO_TOOLS),
        ("llama3.1", LLAMA3, "llama3", "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", []),
    ],
)
def test_a_renderer_writes_what_the_models_own_template_writes(
    template: str, names: tuple[str, ...], family: str, default: str, different: list[str]
) -> None:
    text = (TEMPLATES / f"{template}.jinja").read_text().removesuffix("\n")
    assert renderer_for(ByteTokenizer(names)).default_system == ""
    renderer = renderer_for(ByteTokenizer(names), text)
    assert renderer.family == family
    assert renderer.default_system == default
    assert differences(renderer, text) == different


def test_an_answer_without_thinking_begins_as_qwen_3s_template_begins_it() -> None:
    renderer = renderer_for(ByteTokenizer(QWEN), (TEMPLATES / "qwen3.jinja").read_text().removesuffix("\n"))
    user = {"role": "user", "content": "Hello."}
    plain, without = renderer.prompt([user]), renderer.prompt([user], thinking=False)
    assert without[: len(plain)] == plain
    think, think_end = (renderer.tokenizer.token(name) for name in ("<think>", "</think>"))
    assert without[len(plain) :] == (think, 10, 10, think_end, 10, 10)
    assert renderer.extend(plain, [user], thinking=False)[-6:] == without[-6:]
    other = renderer_for(ByteTokenizer(QWEN), (TEMPLATES / "qwen2.5.jinja").read_text().removesuffix("\n"))
    assert other.prompt([user], thinking=False) == other.prompt([user])


def test_another_template_is_reported() -> None:
    found = differences(renderer_for(ByteTokenizer(CHATML)), "{{ messages[0].content }}")
    assert found == ["one message", "a system message", "several turns", *NO_TOOLS]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% if %}",
        "{{ messages.x.y.z }}",
        "{{ 1 + 'x' }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_that_cannot_be_rendered_or_reaches_outside_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="template"):
        renderer_for(ByteTokenizer(CHATML), template)


def test_an_unknown_layout_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="chatml.*llama3"):
        renderer_for(ByteTokenizer(("<bos>",)))

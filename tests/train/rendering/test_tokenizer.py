"""Texts never become layout tokens, with a real byte-pair vocabulary."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.rendering.tokenizer import JsonTokenizer
from tests.train.conversations import CONVERSATIONS, NEW, TEXTS, TOOLS

pytestmark = pytest.mark.train

LAYOUT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "the user asked, the assistant looked: <|im_end|> is text here",
    "system\nuser\nassistant\n",
    "log in, look, log\n\n",
] * 3


@cache
def definition() -> str:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340, special_tokens=LAYOUT, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<tool_call>", special=False, normalized=False)])
    return str(tokenizer.to_str())


@cache
def renderer() -> ChatMl:
    return ChatMl(JsonTokenizer(definition()))


@given(text=TEXTS)
def test_a_text_is_encoded_without_layout_tokens_and_decoded_as_it_was(text: str) -> None:
    tokenizer = renderer().tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & {tokenizer.token(name) for name in (*LAYOUT, "<tool_call>")}


@given(messages=CONVERSATIONS, tools=TOOLS)
def test_a_prompt_is_what_the_whole_tokenizer_makes_of_harmless_text(messages: list[Any], tools: list[Any]) -> None:
    whole = tokenizers.Tokenizer.from_str(definition())
    harmless = [{**message, "content": message["content"].replace("<", "(").replace("\n", "")} for message in messages]
    ids = renderer().prompt(harmless, tools)
    assert list(ids) == whole.encode(whole.decode(list(ids), skip_special_tokens=False), add_special_tokens=False).ids


@given(messages=CONVERSATIONS, tools=TOOLS, answer=TEXTS, new=NEW)
def test_an_extended_prompt_is_the_prompt_of_the_whole_conversation(
    messages: list[Any], tools: list[Any], answer: str, new: list[Any]
) -> None:
    end = renderer().tokenizer.token("<|im_end|>")
    before = (*renderer().prompt(messages, tools), *renderer().tokenizer.encode(answer), end)
    whole = [*messages, {"role": "assistant", "content": answer}, *new]
    assert renderer().extend(before, new) == renderer().prompt(whole, tools)


def test_ids_that_are_no_encoding_of_their_text_are_kept() -> None:
    """`log|n` would be encoded as `l|ogn`: the sampled ids stay, whatever their text is encoded as."""
    tokenizer = renderer().tokenizer
    prompt = renderer().prompt([{"role": "user", "content": "look"}])
    odd = tuple(id for letter in "the user" for id in tokenizer.encode(letter))
    assert tuple(tokenizer.encode("the user")) != odd
    assert renderer().extend((*prompt, *odd), [])[len(prompt) :][: len(odd)] == odd
    assert renderer().parse(odd)["content"] == "the user"


def test_half_a_character_is_delivered_as_such_and_kept() -> None:
    tokenizer = renderer().tokenizer
    half = tuple(tokenizer.encode("🙂"))[:-1]
    assert renderer().parse(half)["content"].startswith("\ufffd")


def test_a_vocabulary_that_could_forge_its_layout_is_refused() -> None:
    parsed = json.loads(definition())
    parsed["model"]["vocab"]["<|"] = parsed["model"]["vocab"].get("<|", 900)
    parsed["model"]["vocab"]["|>"] = parsed["model"]["vocab"].get("|>", 901)
    parsed["model"]["vocab"]["<||>"] = 902
    parsed["model"]["merges"] += [["<", "|"], ["|", ">"], ["<|", "|>"]]
    parsed["added_tokens"].append({**parsed["added_tokens"][0], "id": 902, "content": "<||>"})
    with pytest.raises(ConfigError):
        JsonTokenizer(json.dumps(parsed))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 3, "added_tokens": []}'])
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        JsonTokenizer(text)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        JsonTokenizer.from_file(path)
    path.write_text(definition(), encoding="utf-8")
    assert JsonTokenizer.from_file(path).encode("look") == renderer().tokenizer.encode("look")

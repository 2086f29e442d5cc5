"""Whatever was sampled, and whatever a client does to it, a prompt has the sampled tokens or is a new root."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.train.gateway.call_reader import ChatPrompt, TextPrompt
from taskapp_kit.train.gateway.recognition import Recognition
from tests.train.gateway.peers import END, RENDERER, TOKENIZER

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
TURNS = st.lists(st.tuples(st.lists(st.integers(0, 255), max_size=12), st.booleans(), TEXTS), min_size=1, max_size=6)
"""Of each turn: what is sampled, whether the end token is, and what the user says next."""


def play(recognition: Recognition, turns: Any, change: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Each turn's prompt and ids, when the client sends each answer back as `change(message)`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    played = []
    for sampled, ended, following in turns:
        prompt = ChatPrompt(tuple(messages))
        found = recognition.prompt(prompt)
        ids = (*sampled, END) if ended else tuple(sampled)
        returned = RENDERER.parse(ids)
        recognition.add(prompt, found, ids, returned)
        played.append((found, found.ids + ids))
        messages += [change(returned), {"role": "user", "content": following}]
    return played


def check(played: list[tuple[Any, tuple[int, ...]]]) -> None:
    for index, (found, _) in enumerate(played):
        assert found.parent == (index - 1 if index else None)
        if index:
            before = played[index - 1][1]
            assert found.ids[: len(before)] == before


@given(TURNS)
def test_messages_that_come_back_as_they_were_keep_their_tokens(turns: Any) -> None:
    played = play(Recognition(RENDERER), turns, dict)
    check(played)
    assert not any(found.stripped for found, _ in played)


@given(TURNS)
def test_messages_that_come_back_stripped_keep_their_tokens(turns: Any) -> None:
    check(play(Recognition(RENDERER), turns, lambda message: {**message, "content": message["content"].strip()}))


@given(TURNS)
def test_messages_that_come_back_changed_are_never_taken_for_sampled_ones(turns: Any) -> None:
    played = play(Recognition(RENDERER), turns, lambda message: {**message, "content": f"{message['content']}!"})
    assert all(found.parent is None for found, _ in played)


def test_other_tools_make_another_conversation() -> None:
    recognition = Recognition(RENDERER)
    user = {"role": "user", "content": "Hello."}
    tool = {"type": "function", "function": {"name": "look"}}
    prompt = ChatPrompt((user,), (tool,))
    ids = (*b"Hi.", END)
    returned = RENDERER.parse(ids)
    recognition.add(prompt, recognition.prompt(prompt), ids, returned)  # type: ignore[arg-type]
    assert recognition.prompt(ChatPrompt((user, returned, user), (tool,))).parent == 0
    assert recognition.prompt(ChatPrompt((user, returned, user))).parent is None


@given(st.lists(st.tuples(st.lists(st.integers(32, 126), min_size=1, max_size=8), TEXTS), min_size=1, max_size=5))
def test_texts_that_go_on_keep_their_tokens(turns: Any) -> None:
    recognition = Recognition(RENDERER)
    given_text, before = "Begin.", ()
    for index, (sampled, following) in enumerate(turns):
        prompt = TextPrompt(given_text)
        found = recognition.prompt(prompt)
        assert found.ids[: len(before)] == before
        assert found.parent == (index - 1 if index else None)
        recognition.add(prompt, found, tuple(sampled), TOKENIZER.decode(sampled))
        before = found.ids + tuple(sampled)
        given_text += TOKENIZER.decode(sampled) + following

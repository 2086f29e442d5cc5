"""The names of trained models."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.checkpoints.facts import KINDS, Kind, TrainedModelName

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(PARTS, PARTS, PARTS, st.sampled_from(KINDS))
def test_a_name_is_parsed_as_it_was_printed(model: str, job: str, checkpoint: str, kind: Kind) -> None:
    name = TrainedModelName(model, job, checkpoint, kind)
    assert TrainedModelName.parse(str(name)) == name
    assert str(name) == f"{kind}:{model}:{job}:{checkpoint}"
    assert name.folder(Path("models")) == Path("models", kind, model, job, checkpoint)


@given(st.text(), PARTS)
def test_any_base_gives_a_name_or_is_refused(base: str, job: str) -> None:
    try:
        name = TrainedModelName.of(base, job, "checkpoint-1")
    except BadArgument:
        assert not any(letter.isascii() and letter.isalnum() for letter in base)
    else:
        assert TrainedModelName.parse(str(name)) == name


def test_the_name_of_the_guide() -> None:
    name = TrainedModelName.of("Qwen/Qwen3-0.6B", "job_1", "checkpoint-epoch-1")
    assert str(name) == "rl:Qwen-Qwen3-0.6B:job_1:checkpoint-epoch-1"
    assert (name.model, name.job, name.checkpoint) == ("Qwen-Qwen3-0.6B", "job_1", "checkpoint-epoch-1")


@pytest.mark.parametrize(
    "text",
    ["", "rl", "rl:", "rl:a:b", "rl:a:b:c:d", "ft:a:b", "sft:a:b:c", "RL:a:b:c", "rl:a:b:", "rl::b:c", "rl:a:../b:c", "rl:a:b:.c",
     "rl:a:b:c/d", "rl:a:b:c\n", "rl:a:b:c\0", "rl:a:b:ｃ", "rl:a:b:" + "c" * 129],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        TrainedModelName.parse(text)

"""What is learned from, what is held out, what is left out; configs and files that are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError, JobConfigError
from taskapp_kit.jobs.client.config.sft_config import load_sft_config
from taskapp_kit.train.job_settings import LoraSettings
from taskapp_kit.train.sft.conversations import ChosenConversations, chosen_conversations, read_conversations
from taskapp_kit.train.sft.sft_settings import sft_settings
from tests.train.sft.sft_files import SYSTEM, line, write_config, write_lines

RL_CONFIG = Path("examples/rl/learn_tiny.toml")
"""It evaluates on the seeds 72 to 95 of the environment `keys`."""


def chosen(folder: Path, lines: list[dict[str, Any]], **options: Any) -> ChosenConversations:
    """Of a file `gold.jsonl` with these lines."""
    write_lines(folder / "gold.jsonl", lines)
    return chosen_conversations(sft_settings(load_sft_config(write_config(folder, **options))))


def seeds(conversations: Any) -> list[int]:
    return [each.seed for each in conversations]


def test_a_share_of_the_seeds_is_held_out(tmp_path: Path) -> None:
    lines = [line(seed % 20, rollout=f"r{seed}") for seed in range(60)]
    found = chosen(tmp_path, lines)
    assert (len(found.learned), len(found.held_out)) == (54, 6)
    assert not set(seeds(found.learned)) & set(seeds(found.held_out))
    assert found.left_out == Counter()
    assert chosen(tmp_path, lines) == found
    assert len(chosen(tmp_path, lines, data="held_out_share = 0.5").held_out) == 30
    assert chosen(tmp_path, lines, data="held_out_share = 0").held_out == []


def test_seeds_that_rl_evaluates_on_are_left_out(tmp_path: Path) -> None:
    lines = [line(seed) for seed in range(60, 80)] + [line(80, environment="other")]
    found = chosen(tmp_path, lines, data=f'held_out_share = 0\nrl_config = "{RL_CONFIG}"')
    assert seeds(found.learned) == [*range(60, 72), 80]
    assert found.left_out == Counter({f"of a seed that {RL_CONFIG} evaluates on": 8})


def test_low_rewards_are_left_out(tmp_path: Path) -> None:
    lines = [line(0), line(1, reward=0.5), line(2, reward=None), line(3, reward=0)]
    found = chosen(tmp_path, lines, data="held_out_share = 0\nmin_reward = 0.5")
    assert seeds(found.learned) == [0, 1]
    assert found.left_out == Counter({"without a reward": 1, "with a reward below 0.5": 1})
    with pytest.raises(ConfigError, match="no conversation .* Omitted: 3 with a reward below 2, 1 without"):
        chosen(tmp_path, lines, data="min_reward = 2")


def test_a_file_of_its_own_is_held_out_and_its_seeds_are_not_learned(tmp_path: Path) -> None:
    held = write_lines(tmp_path / "held.jsonl", [line(3), line(4, split="test")])
    found = chosen(tmp_path, [line(seed) for seed in range(5)], data=f'held_out = "{held}"')
    assert (seeds(found.learned), seeds(found.held_out)) == ([0, 1, 2], [3, 4])
    assert found.left_out == Counter({"a seed of the held-out file": 1, "equal to one of the held-out file": 1})


def answered(question: str, answer: str, **changes: Any) -> dict[str, Any]:
    """A line of another program."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]} | changes


EQUAL = {
    "without seeds": [answered(f"q{at % 10}", "a") for at in range(200)],
    "with seeds": [line(seed, messages=line(seed % 10)["messages"]) for seed in range(200)],
    "some with seeds": [answered(f"q{at % 10}", "a", **({} if at % 3 else {"seed": at})) for at in range(200)],
    "in other words": [
        answered(f"q{at % 10}", "a") if at < 10 else answered("", "", messages=[
            {"content": [{"type": "text", "text": f"q{at % 10}"}], "role": "user", "name": "x"},
            {"content": "a", "role": "assistant", "tool_calls": []},
            {"content": f"more {at}", "role": "user"},
        ])
        for at in range(200)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_conversations_are_on_one_side(tmp_path: Path, name: str) -> None:
    found = chosen(tmp_path, EQUAL[name])
    learned, held_out = ({each.digest for each in some} for some in (found.learned, found.held_out))
    assert (len(learned), len(held_out), len(found.learned), len(found.held_out)) == (9, 1, 180, 20)


def test_seeds_that_share_conversations_with_others_are_on_one_side(tmp_path: Path) -> None:
    """Those of 0 and 1 are equal, and 1 has another one, which is that of 2."""
    pairs = [(0, "a"), (1, "a"), (1, "b"), (2, "b"), *((seed, f"{seed}") for seed in range(3, 10))]
    lines = [answered(name, "x", seed=seed) for seed, name in pairs]
    for share in (0.2, 0.5, 0.8):
        found = chosen(tmp_path, lines, data=f"held_out_share = {share}")
        learned, held_out = set(seeds(found.learned)), set(seeds(found.held_out))
        assert learned and held_out and not learned & held_out
        assert {0, 1, 2} <= learned or {0, 1, 2} <= held_out


def test_different_conversations_are_not_equal(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "a"}
    messages = [{"role": "user", "content": "q"}]
    different = [
        {"messages": [*messages, said]},
        {"messages": [*messages, said], "tools": [{"type": "function", "function": {"name": "ring"}}]},
        {"messages": [*messages, {**said, "reasoning_content": "hm"}]},
        {"messages": [*messages, {**calling("{}"), **said}]},
        {"messages": [*messages, said, *messages, said]},
        {"messages": [*messages, {**said, "weight": 0}, *messages, said]},
    ]
    found = list(read_conversations(write_lines(tmp_path / "a.jsonl", different)))
    assert len({each.digest for each in found}) == len(different)


def test_lines_of_other_programs_need_messages_only(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "a"}
    messages = [SYSTEM, said, {"role": "user", "content": ""}, {**said, "weight": 1.0}]
    (found,) = read_conversations(write_lines(tmp_path / "a.jsonl", [{"messages": messages, "tools": {}, "more": 1}]))
    assert (found.answers, found.reward, found.seed, found.tools) == (frozenset({1, 3}), None, None, [])


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "ring", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def with_answer(**answer: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, {"role": "user", "content": "x"}, {"role": "assistant", **answer}]}


def with_more(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*line(0)["messages"], *messages]}


EMPTY_ANSWERS = ({"content": None}, {"content": ""}, {"content": " \n"}, {}, {"text": "1"}, {"content": []})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"messages": "hello"}, "`messages` is not a list"),
        ({"messages": None, "prompt": [], "chosen": []}, "`messages` is not a list.*prompt"),
        ({"messages": [{"role": "human", "content": "x"}]}, "human.*user, assist"),
        ({"messages": [{"from": "human", "value": "x"}]}, "messages.0 .*from, value"),
        ({"messages": [SYSTEM]}, "no assistant message"),
        (with_answer(content=True), "messages.2.c"),
        (with_more({"role": "user", "content": {"x": 1}}), "messages.3.c"),
        (with_more({"role": "user", "text": "x"}), "messages.3 .*role, text"),
        (with_more({"role": "tool", "content": None}), "messages.3 .*neither content"),
        *((with_answer(**empty), "messages.2 .*(neither content|no co)") for empty in EMPTY_ANSWERS),
        *((with_answer(content="c", weight=weight), "messages.2 ") for weight in (0.5, 2, True, "0", [0])),
        (with_answer(content="I ring.", function_call={"name": "ring"}), "messages.2 .*function_call"),
        (with_answer(tool_calls=[{"name": "ring"}]), "messages.2.tool"),
        ({"answers": [1]}, r"`answers` is \[1\]"),
        ({"answers": []}, r"`answers` is \[\]"),
        ({"answers": [[2]]}, "`answers` is "),
        ({"tools": [1]}, "`tools` is not a list of objects"),
        ({"reward": "good"}, "the reward is 'good'"),
    ],
)
def test_faults_of_a_file_are_reported_with_their_line(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [line(0), line(1) | wrong])
    with pytest.raises(ConfigError, match=f"line 2.*{said}"):
        list(read_conversations(path))


@pytest.mark.parametrize("arguments", ['{"a": ', "[]", "[1]", '"x"', 3, True, '{"a": NaN}'])
def test_calls_without_an_object_are_left_out_with_their_line(tmp_path: Path, arguments: Any) -> None:
    called = [{"role": "user", "content": "x"}, calling(arguments)]
    done = [{"role": "tool", "content": ""}, {"role": "assistant", "content": "done"}]
    lines = [line(0), line(1, messages=called, answers=[1]), line(2, messages=called + done, answers=[3])]
    found = chosen(tmp_path, lines, data="held_out_share = 0")
    assert seeds(found.learned) == [0, 2], "a broken call that is context is what the model read"
    ((reason, count),) = found.left_out.items()
    assert count == 1 and "gold.jsonl, line 2" in reason


def test_answers_of_weight_0_are_not_learned(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "a"}
    user = {"role": "user", "content": "x", "weight": 0}
    one = answered("", "", messages=[user, {**said, "weight": 0}, user, said, user, {**said, "weight": None}])
    lines = [one, answered("", "", messages=[user, {**said, "weight": 0}])]
    found = chosen(tmp_path, lines, data="held_out_share = 0")
    assert [each.learned for each in found.learned] == [{3, 5}]
    assert list(found.left_out.values()) == [1]


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_conversations(tmp_path / "none.jsonl"))
    (tmp_path / "b.jsonl").write_text("{\n")
    with pytest.raises(ConfigError, match="line 1: invalid JSON"):
        list(read_conversations(tmp_path / "b.jsonl"))


def test_numbers_that_would_lose_digits_are_not_learned(tmp_path: Path) -> None:
    user = {"role": "user", "content": "x"}
    lines = [{"messages": [user, calling(f'{{"amount": {amount}}}')]} for amount in (3, 3**99)]
    assert list(chosen(tmp_path, lines, data="held_out_share = 0").left_out.values()) == [1]
    (tmp_path / "c.jsonl").write_text(f'{{"messages": [], "seed": {3**99}}}')
    with pytest.raises(ConfigError, match="line 1"):
        list(read_conversations(tmp_path / "c.jsonl"))


def test_every_problem_of_a_config_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "sft.toml").write_text(
        "[model]\nbase = 'tiny'\nsource = 'ft:a:b:c'\ntrainer_mode = 'full'\n[data]\nheld_out_share = 1.0\n"
        "[training]\nnum_epochs = 0\nbatch_size = 8\nlearning_rate = 1e-3\nbatchsize = 3\n"
    )
    with pytest.raises(JobConfigError) as caught:
        load_sft_config(tmp_path / "sft.toml")
    problems = caught.value.problems
    assert all(problem.startswith("line ") for problem in problems)
    found = ("label: missing", "train: missing", "source and base", "num_epochs: found 0", "held_out_share: found 1")
    for key in found:
        assert any(key in problem for problem in problems), key


def test_what_the_trainer_does_not_do_is_refused_with_its_line(tmp_path: Path) -> None:
    config = load_sft_config(write_config(tmp_path, mode="qlora", more="[lora]\ndropout = 0.1"))
    with pytest.raises(JobConfigError) as caught:
        sft_settings(config)
    assert all(problem.startswith("line ") for problem in caught.value.problems)
    assert ["trainer_mode" in caught.value.problems[0], "dropout" in caught.value.problems[1]] == [True, True]


def test_lora_beside_full_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobConfigError, match="found with trainer_mode"):
        sft_settings(load_sft_config(write_config(tmp_path, more="[lora]\nr = 4")))


def test_settings_are_those_of_the_config(tmp_path: Path) -> None:
    more = "[lora]\nr = 4\nalpha = 8\n[evaluation]\nevery_n_iters = 5\n[checkpoints]\nevery_n_iters = 2\n"
    config = load_sft_config(write_config(tmp_path, mode="lora", more=more + "[weights]\nx = 1"), model="ft:tiny:a:b")
    settings = sft_settings(config)
    assert settings.model == "ft:tiny:a:b" and config.document["model"]["label"] == "keys"
    assert isinstance(settings.lora, LoraSettings) and (settings.lora.rank, settings.lora.alpha) == (4, 8.0)
    assert (settings.evaluate_every, settings.save_every, settings.batch_size) == (5, 2, 8)
    assert ["nothing reads it" in warning for warning in config.warnings] == [True]


def test_an_rl_config_without_seeds_keeps_nothing_apart(tmp_path: Path) -> None:
    text = RL_CONFIG.read_text()
    (tmp_path / "rl.toml").write_text(text[: text.index("[evaluation]")])
    with pytest.raises(ConfigError, match="has no .evaluation. seeds"):
        sft_settings(load_sft_config(write_config(tmp_path, data=f'rl_config = "{tmp_path / "rl.toml"}"')))

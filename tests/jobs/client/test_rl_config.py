"""The RL config: every problem at once with its line, warnings, overrides, files that are none."""

from __future__ import annotations

import math
import os
import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError, FieldProblem, JobConfigError
from taskapp_kit.jobs.client.config.review import Review, read_document
from taskapp_kit.jobs.client.config.rl_config import RlConfig, load_rl_config, review_rl_document
from taskapp_kit.jobs.client.config.schema import SECTIONS, RlDocument, keys_of
from taskapp_kit.jobs.client.config.toml_file import lines_of

CONTRACT = (Path(__file__).parent / "data" / "rl_config.toml").read_text()
SHORT = """[trainer]
batch_size = 2
group_size = 4
[env]
max_steps_per_episode = 3
[job]
model = "Qwen/Qwen3-0.6B"
[runner]
stream_seconds = 0
empty_polls_threshold = 5
startup_deadline_s = 45
"""
SECRET = "sk-Abc123Def456Ghi789Jkl012"


def load(folder: Path, text: str) -> RlConfig:
    path = folder / "rl.toml"
    path.write_text(text, encoding="utf-8")
    return load_rl_config(path)


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(JobConfigError) as caught:
        load(folder, text)
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ValueError)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def review(text: str) -> Review:
    """The problems and warnings of a document, by their places."""
    document = tomllib.loads(text)
    return review_rl_document(document, *read_document(RlDocument, document))


def with_value(section: str, key: str, value: str, text: str = CONTRACT) -> tuple[str, int]:
    """The text with another value of a key, and the number of its line."""
    rows = text.split("\n")
    at = next(i for i in range(rows.index(f"[{section}]"), len(rows)) if rows[i].startswith(f"{key} = "))
    rows[at] = f"{key} = {value}"
    return "\n".join(rows), at + 1


def test_the_contracts_config_has_no_problem_and_no_warning(tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT)
    assert config.document == tomllib.loads(CONTRACT) and config.warnings == () and config.path == tmp_path / "rl.toml"
    assert config.model == "Qwen/Qwen3-4B" and config.task_url == "http://127.0.0.1:8401"


def test_the_smoke_test_form_alone_is_valid(tmp_path: Path) -> None:
    config = load(tmp_path, SHORT)
    assert config.warnings == () and config.model == "Qwen/Qwen3-0.6B" and config.task_url is None


@pytest.mark.parametrize("header", [name for name, section in SECTIONS.items() if keys_of(section)])
def test_every_key_of_the_schema_is_accepted_as_its_example_shows_it(header: str) -> None:
    """Beside a smoke-test config, which demands nothing else; the model is named once."""
    examples = {name: str(key.examples[0]) for name, key in keys_of(SECTIONS[header]).items() if key.examples}
    rows = [f"{name} = {text}" for name, text in examples.items() if text not in ('"ft:my-model"', '"Qwen/Qwen3-4B"')]
    text = "\n".join([SHORT if header not in ("trainer", "env", "job", "runner") else "", f"[{header}]", *rows])
    if header == "algorithm":
        text = CONTRACT[CONTRACT.index("[services]") :] + "\n".join(["[algorithm]", *rows])
    if header in ("trainer", "env", "runner"):
        text += '\n[job]\nmodel = "m"\n'
    found = review(text)
    assert not found.problems and not [place for place in found.warnings if place[0] == header and len(place) > 1]


@pytest.mark.parametrize(
    "more",
    [
        "[checkpoints]",
        "[sampler]\ndeterministic = true",
        "[gateway]",
        '[models.alias]\n"Qwen/Qwen3-4B" = "tiny"',
        '[services]\ntask_app = "app.py"',
    ],
)
def test_a_config_for_this_machine_needs_no_gpus(more: str) -> None:
    text = CONTRACT[: CONTRACT.index("[services]")] + CONTRACT[CONTRACT.index("[model]") : CONTRACT.index("[compute]")]
    text += CONTRACT[CONTRACT.index("[rollout]") :]
    assert set(review(text).problems) == {("compute",), ("compute", "topology")}
    assert review(f"{text}\n{more}\n") == Review()
    assert set(review(f'{text}\n{more}\n[compute]\ngpu_type = "H100"\n').problems) == {("compute", "gpu_count")}


def test_policy_stands_in_for_model(tmp_path: Path) -> None:
    model = '[model]\nbase = "Qwen/Qwen3-4B"\ntrainer_mode = "full"\nlabel = "counter-check"\n'
    assert model in CONTRACT
    for name, key in (("m", "model_name"), ("ft:m", "source")):
        assert load(tmp_path, CONTRACT.replace(model, f'[policy]\n{key} = "{name}"\ntemperature = 0.5\n')).model == name
    both = CONTRACT + '\n[policy]\nmodel_name = "Qwen/Qwen3-4B"\n'
    assert load(tmp_path, both).warnings == ()
    (problem,) = problems(tmp_path, both.replace('model_name = "Qwen/Qwen3-4B"', 'model_name = "other"'))
    assert "[policy] model_name: " in problem and "in line 10" in problem
    assert set(review(CONTRACT.replace(model, "[policy]\ntemperature = 0.5\n")).problems) == {("policy",)}


def test_topology_stands_at_either_place_or_in_part_at_both(tmp_path: Path) -> None:
    assert review(CONTRACT.replace("[compute.topology]", "[topology]")) == Review()
    assert review(CONTRACT + "\n[topology]\ngpus_for_vllm = 1\n") == Review()
    (problem,) = problems(tmp_path, CONTRACT + "\n[topology]\ngpus_for_vllm = 2\n")
    lines = [CONTRACT.split("\n").index("gpus_for_vllm = 1") + 1, CONTRACT.count("\n") + 3]
    assert [int(line) for line in re.findall(r"line (\d+)", problem)] == lines[::-1]
    text = CONTRACT.replace("tensor_parallel = 1", "tensor_paralel = 1") + '\n[topology]\ntensor_parallel = "x"\n'
    assert set(review(text).problems) == {("topology", "tensor_parallel")}
    neither = text.replace('tensor_parallel = "x"', "gpus_for_ref = 0")
    assert set(review(neither).problems) == {("compute", "topology", "tensor_paralel")}


def with_values(values: dict[str, Any]) -> dict[str, Any]:
    """The contract's document with other values of keys such as `training.lora.r`."""
    document = tomllib.loads(CONTRACT)
    for key, value in values.items():
        *sections, name = key.split(".")
        table = document
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return document


@pytest.mark.parametrize(
    ("key", "values", "inside"),
    [
        ("training.batch_size", ["two", True, 2.0, 0, [2], {"a": 1}, None, date(1979, 5, 27), 10**20], ()),
        ("training.learning_rate", [math.nan, -math.inf, 0, True], ()),
        ("algorithm.method", ["grpo"], ()),
        ("algorithm.variety", ["  "], ()),
        ("model.trainer_mode", ["ful"], ()),
        ("model.base", [7, ""], ()),
        ("services.task_url", ["localhost:8001", "http://h/?x=1", "http://user@h"], ()),
        ("policy.top_p", [1.5], ()),
        ("training.weight_sync.enable", [1], ()),
        ("rollout.ops", [["agent", "enf"]], (1,)),
        ("rollout.environments", [[{"weight": 1}]], ()),
        (
            "rollout.environments",
            [[{"weight": 1}, {"weight": 0, "env_name": ""}], [{"weight": 1}, {"seeds": [1]}]],
            (1,),
        ),
        ("evaluation.seeds", [3], ()),
        ("evaluation.seeds", [[0, -1], [0, True]], (1,)),
        ("evaluation", [[{"instances": 1}]], ()),
        ("curriculum", [{"levels": [1.5, "a"], "up": 1}], ("levels", 0)),
        ("models.alias", [{"a": 1}], ("a",)),
        ("training.lora.target_modules", [["q", 3]], (1,)),
        ("compute.topology.tensor_parallel", [2], ()),
        ("vllm.tensor_parallel_size", [2], ()),
        ("judge.reward_blend", [{"env": 0, "event": 0.0, "outcome": -1}], ("outcome",)),
        ("judge.reward_blend", [{"env": 0}], ()),
        ("judge.options", [{"event": False, "outcome": False}], ()),
        ("trainer.batch_size", [3], ()),
        ("tags.when", [date(2026, 1, 1), math.inf], ()),
    ],
)
def test_a_wrong_value_is_one_problem_at_its_place(key: str, values: list[Any], inside: tuple[str | int, ...]) -> None:
    for value in values:
        document = with_values({key: value})
        found = review_rl_document(document, *read_document(RlDocument, document))
        assert list(found.problems) == [(*key.split("."), *inside)], value


def test_gpus_in_use_are_a_problem_of_the_topology() -> None:
    text, _ = with_value("compute.topology", "gpus_for_vllm", "2")
    assert set(review(text).problems) == {("compute", "topology")}


def test_a_problem_has_its_line_what_was_found_what_was_expected_and_what_to_do(tmp_path: Path) -> None:
    text, line = with_value("training", "batch_size", '"two"')
    sentence = 'found "two"; expected an integer of at least 1. Write, for example, batch_size = 2.'
    assert problems(tmp_path, text) == (f"line {line}: [training] batch_size: {sentence}",)


def test_all_problems_come_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        "[algoritm]\ntype = 'online'\n[model]\nbase = 'a'\nsource = 'ft:b'\ntrainer_mode = 'full'\n[compute]\n"
        "gpu_type = 'H100'\ngpu_count = 0\n[rollout]\nenv_nam = 'adder'\npolicy_name = 3\n"
    )
    lines = [re.match(r"line (\d+): ", problem) for problem in problems(tmp_path, text)]
    assert [int(line[1]) for line in lines if line][:7] == [1, 3, 4, 7, 9, 10, 10]
    places = set(review(text).problems)
    assert places >= {("algoritm",), ("model", "label"), ("model", "base"), ("compute", "topology")}
    assert places >= {("rollout", "env_nam"), ("rollout", "policy_name")}


def test_an_empty_file_is_told_what_is_needed() -> None:
    needed = ("algorithm", "compute", "rollout", "model")
    assert set(review("").problems) == {*((name,) for name in needed), ("compute", "topology")}
    assert set(review("[trainer]\nbatch_size = 2\n").problems) == {("job",)}
    assert ("model",) in review("model = 'x'\n" + SHORT).problems


def test_a_list_of_wrong_seeds_does_not_flood_the_terminal(tmp_path: Path) -> None:
    text, _ = with_value("evaluation", "seeds", "[" + "-1, " * 50_000 + "]")
    assert len(problems(tmp_path, text)) == 5
    many = SHORT + "[what]\n" + "".join(f"k{number} = nan\n" for number in range(3000))
    found = problems(tmp_path, many)
    assert len(found) == 101 and found[-1] == "… and 2900 more"


@pytest.mark.parametrize(
    ("row", "meant"),
    [("async_semaphor_max = 3", "async_semaphore_max"), ("env_name = 'x'", "[rollout] env_name")],
)
def test_an_unknown_key_is_a_warning_that_says_did_you_mean(row: str, meant: str) -> None:
    text = CONTRACT.replace("[training]\n", f"[training]\n{row}\n")
    ((place, warning),) = review(text).warnings.items()
    assert place == ("training", row.partition(" ")[0]) and warning.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("more", "places"),
    [
        ("[vllm]\nmax_model_len = 8192\nother = 1\n[smoke]\nx = 1\n[tags]\nteam = 'a'\n", []),
        ("[vllm]\ntensor_parallel_sise = 1\n", [("vllm", "tensor_parallel_sise")]),
        ("[rewards]\nx = 1\n[evaluations]\n", [("rewards",), ("evaluations",)]),
        ("[rubric]\nmodel = 'x'\n", [("rubric",)]),
        ("[judge.options]\nprovider = 'mine'\n", [("judge", "options", "provider")]),
    ],
)
def test_what_nothing_reads_or_not_every_trainer_accepts_is_a_warning(more: str, places: list[tuple[str, ...]]) -> None:
    assert list(review(SHORT + more).warnings) == places


def test_warnings_have_their_lines(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, "lr = 3\n" + CONTRACT).warnings
    assert warning.startswith("line 1: lr is not in a section")
    text = CONTRACT.replace("gpu_count = 2", "gpu_count = 8")
    (warning,) = load(tmp_path, text).warnings
    assert f"line {text.split(chr(10)).index('[compute.topology]') + 1}: " in warning and "6 of 8 GPUs" in warning


@pytest.mark.parametrize(
    "row",
    [
        f'note = "{SECRET}"',
        'api_key = "short1"',
        'password = "hunter2"',
        'openai_token = "abcdef"',
        f'deep = {{ a = ["x", "{SECRET}"] }}',
        'jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"',
        'db = "postgres://user:hunter2@host/db"',
        'env_key = "' + "0a" * 32 + '"',
    ],
)
def test_what_looks_like_a_key_is_a_warning_and_is_never_shown(row: str, tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT + f"\n[tags]\n{row}\n")
    (warning,) = config.warnings
    told = warning + repr(config)
    assert not [secret for secret in (SECRET[:8], "short1", "hunter2", "abcdef", "eyJ", "0a0a") if secret in told]


@pytest.mark.parametrize(
    "row",
    ["max_tokens = 3", 'api_key_env = "OPENAI_API_KEY"', 'monkey = "see"', 'model = "Qwen/Qwen3-4B-Thinking-2507"'],
)
def test_what_only_sounds_like_a_key_is_no_warning(row: str) -> None:
    assert review(CONTRACT + f"\n[tags]\n{row}\n") == Review()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("algorithm", "method", f'"{SECRET}"'),
        ("services", "task_url", f'"http://user:{SECRET}@host"'),
        ("training", "batch_size", f'"{SECRET}"'),
        ("training", "batch_size", '"' + "long " * 300 + '"'),
        ("training", "batch_size", '"a\\u001b[31mb"'),
    ],
)
def test_no_problem_shows_a_key_a_long_text_or_a_control_character(
    section: str, key: str, value: str, tmp_path: Path
) -> None:
    text, _ = with_value(section, key, value)
    (problem,) = problems(tmp_path, text)
    assert SECRET[:8] not in problem and "long long" not in problem and problem.isprintable() and len(problem) < 400


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = \n", 2), ("a = True\n", 1), ("[a]\n[b]\n[a]\n", 3), ("[a.b]\nx = 1\nx = 2\n", 3), ("a = 1\nb = 'x\n", 2),
     ("[a\nb = 1\n", 1), ("what is this\n", 1)],
)  # fmt: skip
def test_broken_toml_has_the_parsers_line(text: str, line: int, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.startswith((f"line {line}, column ", f"line {line}, the end"))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_rl_config(tmp_path / "gone.toml")
    path = tmp_path / "odd.toml"
    for wrong in (tmp_path, "a\0b"):
        with pytest.raises(JobConfigError):
            load_rl_config(wrong)
    for content in (b"\xff\xfea\x00=\x001\x00", b"a = 1\nb = '\xe9'\n", b"#" * (1024 * 1024 + 1)):
        path.write_bytes(content)
        with pytest.raises(JobConfigError):
            load_rl_config(path)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    path.write_bytes(b"\xef\xbb\xbf" + CONTRACT.replace("\n", "\r\n").encode())
    assert load_rl_config(path).document == tomllib.loads(CONTRACT)
    text, line = with_value("training", "batch_size", "0")
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    with pytest.raises(JobConfigError, match=rf"line {line}: \[training\] batch_size:"):
        load_rl_config(path)


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    """As in `--config <(generate)`."""
    reading, writing = os.pipe()
    os.write(writing, CONTRACT.encode())
    os.close(writing)
    try:
        assert load_rl_config(f"/dev/fd/{reading}").model == "Qwen/Qwen3-4B"
    finally:
        os.close(reading)


def test_overrides_merge_key_by_key_and_change_nothing_of_the_callers(tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT)
    given = {"training": {"num_epochs": 5, "lora": {"r": 8}}, "evaluation": {"seeds": (7, 8)}}
    changed = config.with_overrides(given)
    assert changed.document["training"]["num_epochs"] == 5 and changed.document["training"]["batch_size"] == 2
    assert changed.document["training"]["lora"] == {"r": 8} and changed.document["evaluation"]["seeds"] == [7, 8]
    assert given == {"training": {"num_epochs": 5, "lora": {"r": 8}}, "evaluation": {"seeds": (7, 8)}}
    assert config.document == tomllib.loads(CONTRACT)
    changed.document["training"]["lora"]["r"] = 99
    changed.document["rollout"]["ops"].append("env")
    assert given["training"]["lora"] == {"r": 8} and config.document == tomllib.loads(CONTRACT)  # type: ignore[index]
    assert "evaluation" not in config.with_overrides({"evaluation": None}).document


def test_overrides_are_checked_like_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT)
    with pytest.raises(JobConfigError) as caught:
        config.with_overrides({"training": {"num_epochs": "5"}, "rollout": {"max_turns": None}})
    assert sorted((problem.split(" expected")[0] for problem in caught.value.problems), reverse=True) == [
        'overrides: [training] num_epochs: found "5";',
        "overrides: [rollout] max_turns: missing;",
    ]
    (warning,) = config.with_overrides({"training": {"num_epoch": 5}}).warnings
    assert warning.startswith("overrides: [training] num_epoch is unknown")


@pytest.mark.parametrize(
    ("overrides", "model"),
    [
        ({"model": {"source": "ft:a"}}, "ft:a"),
        ({"model": {"base": "b"}}, "b"),
        ({"policy": {"model_name": "c"}}, "c"),
        ({"model": "rl:d"}, "rl:d"),
        ({"job": {"model": "e"}}, "e"),
    ],
)
def test_whoever_names_the_model_names_it_instead(overrides: dict[str, Any], model: str, tmp_path: Path) -> None:
    for text in (CONTRACT, SHORT):
        assert load(tmp_path, text).with_overrides(overrides).model == model


def test_overrides_count_before_anything_is_found_missing(tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text("[trainer]\nbatch_size = 2\n")
    config = load_rl_config(tmp_path / "rl.toml", {"model": "m", "task_url": "http://h:1/"})
    assert config.model == "m" and config.task_url == "http://h:1"


def test_overrides_that_are_none(tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT)
    endless: dict[str, Any] = {}
    endless["again"] = endless
    for wrong in (endless, {3: 4}, [1], {"training": {1: 2}}):
        with pytest.raises(JobConfigError):
            config.with_overrides(wrong)  # type: ignore[arg-type]
    for tags in ({"\ud800": 1}, *({"odd": odd} for odd in (object(), {1, 2}, b"x", float("nan"), 2**70))):
        with pytest.raises(JobConfigError, match=r"overrides: \[tags\]"):
            config.with_overrides({"tags": tags})


WRITTEN = """1|0|-1|1.5|nan|true|""|"x"|[]|[1]|["x"]|{}|{a = 1}|1979-05-27|'http://h'|[[1]]|"agent"|"full"|[1,\n 2]"""
LITERALS = st.sampled_from([*WRITTEN.split("|"), "0x" + "f" * 40, '"""a\n[training]\n"""'])
KNOWN_NAMES = st.sampled_from(
    sorted({name for section in SECTIONS.values() for name in keys_of(section)}) + sorted(SECTIONS)
)
NAMES = st.one_of(KNOWN_NAMES, st.sampled_from(["lr", '"a b"', "topology.x", "api_key", "modle"]))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    rows = draw(st.sampled_from([CONTRACT, SHORT])).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(rows) - 1))
        way = draw(st.sampled_from(["drop", "value", "value", "insert", "section", "name"]))
        if way == "drop":
            rows[at] = ""
        elif way == "value" and " = " in rows[at]:
            rows[at] = rows[at].split(" = ")[0] + " = " + draw(LITERALS)
        elif way == "name" and " = " in rows[at]:
            rows[at] = draw(NAMES) + " = " + rows[at].split(" = ", 1)[1]
        elif way == "insert":
            rows.insert(at, f"{draw(NAMES)} = {draw(LITERALS)}")
        elif way == "section":
            rows.insert(at, f"[{draw(NAMES)}]")
    return "\n".join(rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
@example("[trainer]\n[trainer.batch_size]\n")
def test_any_mutation_is_taken_or_refused_and_each_remark_has_the_line_of_its_place(tmp_path: Path, text: str) -> None:
    try:
        remarks = load(tmp_path, text).warnings
    except JobConfigError as error:
        remarks = error.problems
        assert remarks
    try:
        found, lines = review(text), lines_of(text)
    except tomllib.TOMLDecodeError:
        return
    expected = found.problems or found.warnings
    assert len(remarks) == len(expected)
    for place, sentence in expected.items():
        enclosing = [place[:length] for length in range(len(place), 0, -1) if place[:length] in lines]
        line = f"line {lines[enclosing[0]]}: " if enclosing else ""
        without_lines = [re.sub(r" in line \d+(?=,|\.)", "", remark) for remark in remarks]
        assert line + sentence in without_lines


def test_lines_are_added_to_what_a_trainer_reports(tmp_path: Path) -> None:
    config = load(tmp_path, CONTRACT)
    rows = CONTRACT.splitlines()
    seeds, variety = rows.index("seeds = [0, 1]") + 1, rows.index('variety = "gspo"') + 1
    places: dict[str, tuple[str | int, ...]] = {
        "Odd seeds.": ("evaluation", "seeds", 1), "Odd variety.": ("algorithm", "variety"), "Odd a.": ("nowhere", "a"), "Odd.": (),
    }  # fmt: skip
    fields = [FieldProblem(("body", "data", "config", *place), sentence) for sentence, place in places.items()]
    assert config.with_lines(f"Refused: {' '.join(places)}", fields) == (
        f"Refused: line {seeds}: Odd seeds. line {variety}: Odd variety. Odd a. Odd."
    )
    changed = config.with_overrides({"algorithm": {"variety": "x"}})
    assert changed.with_lines("Odd variety.", fields) == "Odd variety."

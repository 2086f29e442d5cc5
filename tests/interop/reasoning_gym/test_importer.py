"""Generators of reasoning-gym through the adapter, played by the service."""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="needs taskapp-kit[reasoning-gym]")

import reasoning_gym
from reasoning_gym.factory import DATASETS

from taskapp_kit import DeclarationError, InvalidAction, RequestError, RolloutFailed, TaskApp
from taskapp_kit.errors import ConfigError
from taskapp_kit.interop.reasoning_gym import from_reasoning_gym
from taskapp_kit.interop.reasoning_gym import importer as adapter
from taskapp_kit.testing import Rollout, play
from tests.interop.shared.adapted_apps import printed_by_processes, wrong_findings

THREE = ("chain_sum", "gsm_symbolic", "mini_sudoku")
EVALUATED = sorted(adapter.LISTS | adapter.FORMULAS - adapter.UNORDERED)


def app_of(name: str, **options: Any) -> TaskApp:
    app = TaskApp("asked")
    made = from_reasoning_gym(name, **options)
    app.environment("asked", splits={"train": range(5000), "test": range(5000, 6000)}, max_turns=3)(made)
    app.policy("gold", environment="asked")(made.gold)
    return app


def handed_in(name: str, answer: str, **options: Any) -> Rollout:
    return play(app_of(name), seed=0, action={"submit": {"answer": answer}}, **options)


def opened(name: str, seed: int = 0, **options: Any) -> Any:
    environment = from_reasoning_gym(name, **options)()
    environment.reset(seed)
    return environment


@pytest.mark.parametrize("name", THREE)
def test_gold_is_correct_and_nothing_private_is_recorded(name: str) -> None:
    rollout = play(app_of(name), seed=3, policy="gold")
    assert rollout.reward == 1.0
    entry = reasoning_gym.create_dataset(name, seed=0, size=1000)[3]
    assert rollout.trajectory.initial == entry["question"].strip()
    assert rollout.trajectory.steps[0].info == {"submitted": entry["answer"].strip()}


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("name", THREE)
def test_the_doctor_finds_nothing_wrong(name: str) -> None:
    assert wrong_findings(app_of(name)) == {}


@pytest.mark.ci
@pytest.mark.process
def test_a_seed_is_the_same_problem_in_every_process_and_past_a_block() -> None:
    names = (*THREE, "zebra_puzzles", "word_sorting")
    code = (
        "from taskapp_kit.interop.reasoning_gym.importer import from_reasoning_gym as made\n"
        f"print([made(name)().reset(seed) for name in {names!r} for seed in (7, 999, 1000, 4321)])"
    )
    here = [from_reasoning_gym(name)().reset(seed) for name in names for seed in (7, 999, 1000, 4321)]
    assert printed_by_processes(code) == {f"{here}"}
    assert len(set(here)) == len(here)


def test_a_seed_is_the_item_of_one_large_data_set_where_items_are_drawn_one_by_one() -> None:
    large = reasoning_gym.create_dataset("chain_sum", seed=42, size=5000)
    environment = from_reasoning_gym("chain_sum", dataset_seed=42)()
    assert [environment.reset(seed) for seed in (0, 1500, 4999)] == [large[i]["question"] for i in (0, 1500, 4999)]


# -- answers ------------------------------------------------------------------------------------------------------


def test_text_around_the_answer_is_not_scored_and_hedging_scores_zero() -> None:
    environment = opened("gcd")
    right = environment.entry["answer"]
    hedge = f"{right} or {right}1"
    assert environment._scorer.score_answer(hedge, environment.entry) > 0  # theirs pays it
    assert opened("gcd").submit(hedge).reward == 0.0
    assert opened("gcd").say(f"Is it 5? No.\n<answer> {right} </answer> I am sure.").reward == 1.0
    assert opened("gcd").say(f"<think><answer>5</answer></think><answer>{right}</answer>").reward == 1.0
    for text in ("it is 5", f"<answer>{right}</answer> or <answer>{right}1</answer>"):
        with pytest.raises(InvalidAction, match="Nothing was handed in"):
            opened("gcd").say(text)


def test_partial_credit_equals_reasoning_gyms() -> None:
    environment = opened("word_sorting")
    first, second, *rest = environment.entry["metadata"]["sorted_words"]
    assert 0 < environment.submit(", ".join([second, first, *rest])).reward < 1


def test_empty_answer_scores_zero_and_too_long_an_answer_is_refused() -> None:
    assert handed_in("countdown", "").reward == 0.0  # theirs: 0.01
    with pytest.raises(InvalidAction, match="at most 10000 characters"):
        opened("gcd").say(f"<answer>{'1' * 10_001}</answer>")


def test_an_answer_that_breaks_a_sound_scorer_is_refused_and_a_broken_scorer_fails() -> None:
    rollout = handed_in("prime_factorization", "two and three")
    assert rollout.trajectory.status == "truncated" and rollout.reward == 0.0
    assert "cannot be read (ValueError)" in str(rollout.trajectory.steps[0].observation)

    class Broken(from_reasoning_gym("gcd")):  # type: ignore[misc]
        """A generator whose scorer always raises."""

        def reset(self, seed: int) -> str:
            question = str(super().reset(seed))
            self._scorer = self
            return question

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            raise KeyError("oracle")

    app = TaskApp("broken")
    app.environment("broken")(Broken)
    with pytest.raises(RolloutFailed) as failed:
        play(app, action={"submit": {"answer": "5"}})
    assert failed.value.boundary == "environment"


def _evaluates(name: str) -> set[str]:
    """Which of `eval`, `exec` and `parse_expr` a generator's scorer calls, with the methods that it calls."""
    cls, _ = DATASETS[name]
    calls, todo, seen = set(), ["score_answer"], set()
    while todo:
        method = todo.pop()
        source = getattr(cls, method, None)
        if method in seen or source is None:
            continue
        seen.add(method)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(source)))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                calls |= {called} & {"eval", "exec", "parse_expr", "sympify"}
                if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "self":
                    todo.append(called)
    return calls


def test_every_generator_that_evaluates_an_answer_is_known() -> None:
    found = {name: _evaluates(name) for name in DATASETS if name != "composite"}
    assert {name for name, calls in found.items() if "parse_expr" in calls} == adapter.FORMULAS
    # number_sorting evaluates its own expected answer alone
    assert {name for name, calls in found.items() if calls & {"eval", "exec"}} == adapter.LISTS | {"number_sorting"}


@pytest.mark.parametrize("name", EVALUATED)
def test_no_answer_runs_as_code(name: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    environment = opened(name)
    for code in (
        f"open({str(made)!r}, 'w')",
        f"[open({str(made)!r}, 'w')]",
        f"[[c for c in [open({str(made)!r}, 'w')]]]",
        f'f"{{open({str(made)!r}, chr(119))}}"',
        f"__import__('pathlib').Path({str(made)!r}).touch()",
        f"sqrt(__import__('pathlib').Path({str(made)!r}).touch())",
        "9**9**9**9",
        "((9**99)**99)**99",
        "exit()",
    ):
        try:
            environment.submit(code)
        except InvalidAction as refused:
            assert "Nothing was handed in" in str(refused)
        assert not made.exists(), code


@pytest.mark.parametrize("name", EVALUATED)
def test_expected_answers_of_those_generators_are_accepted(name: str) -> None:
    for seed in range(12):
        environment = opened(name, seed)
        answer = environment.entry["answer"]
        if "Integral(" in answer:  # theirs accepts the question as its own answer
            with pytest.raises(InvalidAction):
                environment.submit(answer)
        else:
            assert environment.submit(answer).reward == 1.0


# -- declarations -------------------------------------------------------------------------------------------------


def test_options_are_the_generators_and_env_config_may_set_some() -> None:
    app = app_of("chain_sum", min_digits=1, max_digits=1, configurable={"max_terms": 2})
    assert play(app, seed=1, policy="gold").trajectory.initial.count(" + ") <= 1
    assert any(play(app, seed=seed, policy="gold", config={"max_terms": 6}).trajectory.initial.count(" ") > 14
               for seed in range(6))  # fmt: skip
    with pytest.raises(RequestError):
        play(app, seed=1, policy="gold", config={"max_terms": 1})  # below min_terms
    with pytest.raises(RequestError):
        play(app, seed=1, policy="gold", config={"min_terms": 2})


def test_mistakes_are_reported() -> None:
    for options in ({"name": "gcd", "seed": 4}, {"name": "gcd", "configurable": {"a": object()}}):
        app = TaskApp("wrong")
        app.environment("it")(from_reasoning_gym(**options))
        with pytest.raises(DeclarationError, match=Path(__file__).name):
            app.freeze()
    for name, options, message in (
        ("chain_sums", {}, "did you mean 'chain_sum'"),
        ("chain_sum", {"terms": 3}, "terms"),
        ("chain_sum", {"min_terms": 9}, "."),
    ):
        with pytest.raises(ConfigError, match=message):
            from_reasoning_gym(name, **options).setup_worker()


@pytest.mark.process
def test_generators_that_draw_from_sets_need_a_fixed_hash_seed() -> None:
    code = "from taskapp_kit.interop.reasoning_gym import from_reasoning_gym\nfrom_reasoning_gym('ransom_note')()"
    for hash_seed, fine in (("0", True), ("random", False)):
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
        assert (ran.returncode == 0) is fine
        assert fine or "PYTHONHASHSEED=0" in ran.stderr


def test_the_process_keeps_its_random_state() -> None:
    import random

    before = random.getstate()
    environment = opened("gsm_symbolic", 5)
    environment.submit("1")
    assert random.getstate() == before

"""Math as it is served: what pays, what is refused, and what never leaves the server."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from math import factorial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import MATH, REASONING_GYM

if not REASONING_GYM:
    pytest.skip(MATH, allow_module_level=True)

from environments.math.generators import GENERATORS, problem
from taskapp_kit import TaskApp
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, DeclarationError, DiscoveryError
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.programs import printed

pytestmark = [pytest.mark.process, pytest.mark.server]

ROOT = Path(__file__).parents[3]
KEY = "a key of this test"
ROWS = [
    {"question": "Expand (x+1)^2.", "answer": "x^2+2x+1", "difficulty": "easy"},
    {"question": "Simplify the root of 8.", "answer": r"2\sqrt{2}"},
    {"question": "6 x 7?", "answer": 42, "note": "canary-of-a-note"},
    {"question": "Which word?", "answer": "canaryanswer"},
    {"question": "What is 25!?", "answer": 15511210043330985984000000},
    {"question": "How many?", "answer": "canary-of-a-solution says 9 * 8 = 72 #### 72"},
]


def own_copy(folder: Path, rows: Path, patch: pytest.MonkeyPatch) -> TaskApp:
    """The app, imported anew with the operator's rows."""
    shutil.copytree(ROOT / "environments" / "math", folder / "math", ignore=shutil.ignore_patterns("__pycache__"))
    patch.setenv("TASKAPP_MATH_ROWS", str(rows))
    return find_app(str(folder / "math" / "app.py"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "rollouts.db"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("app")
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.MonkeyPatch.context() as patch:
        app = own_copy(folder, rows, patch)
    settings = Settings(environment_api_key=KEY, store=f"sqlite:///{store}", gold=True)
    with (
        BackgroundServer(build(app, settings)) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}, timeout=120) as client,
    ):
        yield client


def rollout(
    client: httpx.Client, action: Any = None, seed: int = 3, environment: str = "math", **config: Any
) -> dict[str, Any]:
    """The answer to one rollout: of `constant` with that action, of `gold` without."""
    policy = (
        {"policy_name": "gold", "config": {}}
        if action is None
        else {"config": {"policy": "constant", "action": action}}
    )
    body = {
        "run_id": "r", "mode": "rl", "ops": [], "policy": policy,
        "env": {"env_name": environment, "seed": seed, "config": config},
    }  # fmt: skip
    answer = client.post("/rollout", json=body)
    assert answer.status_code == 200, answer.text[:500]
    return dict(answer.json())


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def submit(answer: str) -> dict[str, Any]:
    return {"submit": {"answer": answer}}


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_right_answer_pays_in_both_ways(generator: str, client: httpx.Client) -> None:
    made = problem(generator, "medium", 3)  # type: ignore[arg-type]
    for action in (None, submit(made.answer), f"First this, then that: \\boxed{{{made.answer}}}."):
        answer = rollout(client, action, generator=generator)
        assert answer["reward"] == 1.0
        assert answer["metrics"]["outcome_score"] == 1.0
        assert len(answer["trajectories"][0]["steps"]) == 1
    assert rollout(client, submit("1234567891"), generator=generator)["reward"] == 0.0
    assert rollout(client, "I think \\boxed{1234567891}", generator=generator)["reward"] == 0.0


def test_the_longest_reply_is_read_and_a_longer_one_is_refused(client: httpx.Client) -> None:
    made = problem("gsm_symbolic", "medium", 3)
    box = f"\\boxed{{{made.answer}}}"
    longest = rollout(client, box.rjust(400_000))
    assert longest["reward"] == 1.0
    longer = rollout(client, box.rjust(400_001))
    assert longer["reward"] == 0.0
    assert longer["metrics"]["details"]["refusals"] == len(longer["trajectories"][0]["steps"])


def test_text_without_a_box_is_refused_until_the_last_turn(client: httpx.Client) -> None:
    made = problem("gsm_symbolic", "medium", 3)
    for words in (f"The answer is {made.answer}.", f"\\boxed{{{made.answer}}} or \\boxed{{1}}", "\\boxed{" * 100_000):
        answer = rollout(client, words)
        steps = answer["trajectories"][0]["steps"]
        assert answer["reward"] == 0.0
        assert len(steps) == 4
        assert steps[0]["obs"]["text"].startswith("Nothing was handed in: ")
        assert answer["metrics"]["details"]["refusals"] == 4


def test_an_answer_of_a_megabyte_is_refused_at_once(client: httpx.Client) -> None:
    for action in (submit("7" * 1_000_000), "7" * 1_000_000):
        began = time.monotonic()
        answer = rollout(client, action)
        assert answer["reward"] == 0.0
        assert answer["metrics"]["details"]["handed_in"] == 0
        assert time.monotonic() - began < 10


def test_one_attempt_and_no_word_on_whether_it_was_right(client: httpx.Client) -> None:
    made = problem("gsm_symbolic", "medium", 3)
    body: dict[str, Any] = {
        "run_id": "r", "mode": "rl", "env": {"env_name": "math", "seed": 3}, "policy": {"config": {"policy": "noop"}},
        "ops": [{"type": "env", "tool": "submit", "args": {"answer": text}} for text in ("1", made.answer)],
    }  # fmt: skip
    answer = client.post("/rollout", json=body).json()
    (step,) = answer["trajectories"][0]["steps"]
    assert answer["reward"] == 0.0
    assert step["done"] is True
    assert made.answer not in json.dumps(step["obs"])


def test_the_rows_of_a_file_are_played(client: httpx.Client) -> None:
    assert [rollout(client, seed=seed, environment="rows")["reward"] for seed in range(6)] == [1.0] * 6
    for seed, right in (
        (0, "(x+1)^2"),
        (1, r"\sqrt{8}"),
        (2, "42.0"),
        (3, "CanaryAnswer"),
        (4, str(factorial(25))),
        (5, "$72$"),
    ):
        assert rollout(client, submit(right), seed, "rows")["reward"] == 1.0
        for wrong in ("x^2", "15511210043330986000000000"):
            assert rollout(client, submit(wrong), seed, "rows")["reward"] == 0.0


def test_private_data_is_neither_shown_nor_stored(
    client: httpx.Client, store: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    seed, made = next(
        (seed, made)
        for seed in range(4, 100)
        if len((made := problem("polynomial_equations", "medium", seed)).answer) > 18
    )
    word = problem("gsm_symbolic", "medium", seed)
    private = [made.answer, word.solution.splitlines()[0], "answer_cot", "polynomial_expr", "canary"]
    told = [
        as_json(rollout(client, submit("0"), seed, generator="polynomial_equations")),
        as_json(rollout(client, "what?", seed, generator="polynomial_equations")),
        as_json(rollout(client, submit("0"), seed)),
        *(as_json(rollout(client, submit("0"), row, "rows")) for row in (2, 3, 5)),
        *(client.get("/task_info", params={"seed": row, "environment": "rows"}).text for row in (2, 3, 5)),
        client.get("/task_info", params={"seed": seed}).text,
        client.get("/task_info").text, client.get("/info").text, client.get("/metrics").text,
        client.post("/rollout", json={"run_id": "r", "env": {"env_name": "rows", "seed": 99}}).text,
        caplog.text, *capfd.readouterr(),
    ]  # fmt: skip
    assert [text for text in told if made.question.split("=")[0] in text]
    assert [part for part in private for text in told if part in text] == []
    kept = b"".join(file.read_bytes() for file in store.parent.iterdir())
    assert b"polynomial_equations" in kept, "the rows can be read"
    assert [part for part in private[:4] if part.encode() in kept] == []
    assert b"canary-of" not in kept


def test_an_unknown_generator_and_a_difficulty_that_is_not_there_are_the_callers_mistakes(client: httpx.Client) -> None:
    for config, told in (
        ({"generator": "sudoku"}, "chain_sum"),
        ({"difficulty": "extreme"}, "medium"),
        ({"difficulty": "hard"}, "'gsm_symbolic' has the difficulty medium only"),
    ):
        body = {"run_id": "r", "mode": "rl", "ops": [], "policy": {"policy_name": "gold"}}
        answer = client.post("/rollout", json={**body, "env": {"env_name": "math", "seed": 0, "config": config}})
        assert answer.status_code == 422
        assert told in answer.text


def test_missing_or_long_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises((ConfigError, DiscoveryError), match=r"TASKAPP_MATH_ROWS .*train\.jsonl"):
        own_copy(tmp_path / "a", empty, monkeypatch)
    with pytest.raises(DeclarationError, match=r"none\.jsonl"):
        own_copy(tmp_path / "b", tmp_path / "none.jsonl", monkeypatch).freeze()
    (tmp_path / "bad.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1+2?", "answer": " "}\n')
    with pytest.raises(DeclarationError, match=r"bad\.jsonl:2") as told:
        own_copy(tmp_path / "c", tmp_path / "bad.jsonl", monkeypatch).freeze()
    assert "the answer is empty" in str(told.value)


def test_a_folder_gives_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for number, name in enumerate(("train", "test")):
        (rows / f"{name}.jsonl").write_text(f'{{"question": "1+{number}?", "answer": "{1 + number}"}}\n')
    spec = own_copy(tmp_path / "app", rows, monkeypatch).freeze()
    assert spec.environments["rows"].split_names == ("train", "test")
    assert spec.default_environment.name == "math"


def test_the_file_of_the_app_loads_neither_package() -> None:
    program = (
        "import sys; from taskapp_kit.declare.discovery import find_app; find_app('math').freeze()\n"
        "print([name for name in ('reasoning_gym', 'sympy', 'numpy') if name in sys.modules])"
    )
    assert printed(program, cwd=ROOT) == "[]\n"

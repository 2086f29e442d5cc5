"""The declarations: an episode as agents, trainers and operators meet it, through the service."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from environments.python_sandbox.app import app
from environments.python_sandbox.boxes import JUDGE_IDS, POLICY_IDS, Boxes
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.errors import RolloutFailed, SandboxTooWeak
from taskapp_kit.rollout.service import Service
from taskapp_kit.sandbox import uids
from taskapp_kit.sandbox.folder import PREFIX
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.environments.python_sandbox.episodes import (
    SPLITS,
    app_at,
    app_with,
    body,
    play,
    run,
    seed_of,
    shares,
    shown,
    submit,
)
from tests.programs import printed
from tests.sandbox.boxes import LEVELS

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
SPLIT, SEED, TASK = seed_of("mirror-digits")
KEY = "a key of this test"
needs_walls = pytest.mark.skipif(not LEVELS, reason="needs bubblewrap (Debian: apt-get install bubblewrap), or root")


def test_two_tools_and_a_private_row() -> None:
    spec = app.freeze().environments["python_sandbox"]
    assert list(spec.actions) == ["run", "submit"]
    assert spec.tasks is not None
    told = spec.tasks.public(TASK)
    assert set(told) == {"id", "difficulty", "tags", "statement", "entry", "signature", "examples"}
    assert [(item.name, item.weight) for item in app.freeze().criteria] == [("passed", 1.0), ("share", 0.0)]
    assert not set(POLICY_IDS) & set(JUDGE_IDS)


def test_an_episode_of_trying_and_submitting(level: int) -> None:
    programs = [
        run("open('kept.txt', 'w').write('7')\nprint('hello')"),
        run("import sys\nprint(open('kept.txt').read())\nprint('oh', file=sys.stderr)\nsys.exit(3)"),
        run("def f():\n    return {}['x']\nf()"),
        run("print(object(), hash('a'), {'b', 'a', 'c'})"),
        run("import os\nprint(os.getcwd(), __file__, flush=True)\nos.abort()"),
        submit(TASK.reference),
    ]
    first, again = play(app_at(level), *[body(programs, seed=SEED, split=SPLIT)] * 2)
    hello, kept, raised, hashed, aborted, done = shown(first)
    assert hello == "Exit code 0.\nstdout:\nhello"
    assert kept == "Exit code 3.\nstdout:\n7\nstderr:\noh"
    assert raised.startswith(
        'Exit code 1.\nstderr:\nTraceback (most recent call last):\n  File "main.py", line 3, in <module>'
    )
    assert raised.endswith("KeyError: 'x'")
    assert "at 0x0>" in hashed
    assert aborted == "Ended by signal 6.\nstdout:\n. main.py"
    assert "box-" not in "".join(shown(first))
    assert done == "submitted"
    assert first.digest == again.digest
    assert (first.scorecard.reward, shares(first)) == (1.0, 1.0)
    assert first.scorecard.metrics == {"sandbox_level": level, "submitted": 1.0, "runs": 5.0}
    assert [step.info for step in first.trajectory.steps] == [{"sandbox_level": level}, {}, {}, {}, {}, {}]
    assert first.trajectory.final_state == {"outcomes": ["right"] * len(TASK.hidden_tests), "sandbox_level": level}


@needs_walls
def test_part_of_the_tests_pays_nothing_but_is_measured() -> None:
    half = TASK.reference.replace("sign * ", "")
    nothing, part = play(
        app_at(max(LEVELS)),
        body([run("print(1)")], seed=SEED, split=SPLIT),
        body([submit(half)], seed=SEED, split=SPLIT),
    )
    assert part.scorecard.reward == 0.0
    assert 0.5 < (shares(part) or 0.0) < 1.0
    assert (nothing.scorecard.reward, shares(nothing)) == (0.0, 0.0)
    assert nothing.trajectory.status == "truncated"
    assert nothing.trajectory.final_state["outcomes"] is None


def test_a_spoiled_working_directory_is_replaced(level: int) -> None:
    spoil = "import os\nos.remove('main.py')\nos.mkdir('main.py')\nopen('main.py/x', 'w')\nopen('kept', 'w')"
    (rollout,) = play(app_at(level), body([run(spoil), run("import os\nprint(os.listdir())"), submit("")], seed=SEED))
    assert shown(rollout)[1] == (
        "What earlier runs left could not be used; this is a new working directory.\nExit code 0.\nstdout:\n['main.py']"
    )


def test_code_that_is_too_long_is_refused(level: int) -> None:
    (rollout,) = play(app_at(level), body([submit("#" * 50_001), submit("")], seed=SEED))
    assert rollout.trajectory.steps[0].refused
    assert rollout.trajectory.length == 2


@needs_walls
def test_no_box_for_the_judge_is_a_failure_and_no_reward() -> None:
    """All user ids of judges are lent: nobody can say what the submission is worth."""
    if os.getuid() != 0:
        pytest.skip("only root gives boxes ids of their own")
    held = uids.lease(JUDGE_IDS)
    try:
        starved = app_with(Boxes(max(LEVELS), judge_ids=[held.uid]))
        with pytest.raises(RolloutFailed) as failed:
            play(starved, body(seed=SEED, split=SPLIT))
    finally:
        held.release()
    assert failed.value.boundary == "environment"
    (rollout,) = play(starved, body(seed=SEED, split=SPLIT))
    assert rollout.scorecard.reward == 1.0


@pytest.mark.server
@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
def test_weak_sandbox_requires_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKAPP_ALLOW_WEAK_SANDBOX", raising=False)
    with pytest.raises(SandboxTooWeak, match="TASKAPP_ALLOW_WEAK_SANDBOX"):
        Service(app_with(Boxes(1))).prepare()
    monkeypatch.setenv("TASKAPP_ALLOW_WEAK_SANDBOX", "1")
    weak = app_with(Boxes(1))
    (rollout,) = play(weak, body(seed=SEED, split=SPLIT))
    assert rollout.scorecard.reward == 1.0
    assert rollout.scorecard.metrics["sandbox_level"] == 1.0


def test_hidden_tests_that_a_box_can_read_are_refused(level: int) -> None:
    with pytest.raises(SandboxTooWeak, match="python_sandbox: env"):
        Service(app_with(Boxes(level, private_files=[Path("/nowhere"), Path("/usr/bin/env")]))).prepare()


@pytest.mark.server
@needs_walls
def test_private_fields_stay_here() -> None:
    secret = [TASK.reference, *TASK.wrong, "hidden_tests", "also_right", "1234567890123"]
    with (
        BackgroundServer(build(app, Settings(environment_api_key=KEY, gold=True))) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}, timeout=60) as client,
    ):
        asked = body([run("print(1)"), submit("def mirror_digits(number):\n    return 1\n")], seed=SEED, split=SPLIT)
        answers = [
            client.post("/rollout", json=asked),
            client.get("/task_info", params={"seed": SEED}),
            client.get("/info"),
        ]
        gold = client.post("/rollout", json=body(seed=SEED, split=SPLIT)).json()
    for answer in answers:
        assert answer.status_code == 200
        assert not [
            word for word in secret if word in json.dumps(answer.json(), ensure_ascii=False) or word in answer.text
        ]
    assert gold["reward"] == 1.0


@pytest.mark.ci
@needs_walls
def test_eight_at_once_and_nothing_left() -> None:
    def mine() -> set[str]:
        return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}

    requests = [
        body([run(f"open('n', 'w').write('{n}')"), run("import os\nprint(open('n').read(), os.listdir())"),
              submit(SPLITS["train"][n].reference)], seed=n)
        for n in range(8)
    ]  # fmt: skip
    before = mine()
    found = play(app_at(max(LEVELS)), *requests)
    assert [rollout.scorecard.reward for rollout in found] == [1.0] * 8
    assert [int(shown(rollout)[1].split("\n")[2].split()[0]) for rollout in found] == list(range(8))
    alone = play(app_at(max(LEVELS)), requests[5])[0]
    assert alone.digest == found[5].digest
    deadline = time.monotonic() + 20
    while mine() - before and time.monotonic() < deadline:  # those of other tests come and go
        time.sleep(0.1)
    assert not mine() - before


EPISODES = """
import sys, types
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [sys.argv[1] + "/tests"]
from tests.environments.python_sandbox.episodes import app_at, body, play, run, submit

programs = [
    run("print({'x', 'y', 'zz', 'w'}, object(), frozenset('hello'))"),
    run("import nothing_like_it"),
    run("def f(n):\\n    return f(n + 1)\\nf(0)"),
    run("import threading, tempfile\\nprint(threading.Lock(), tempfile.gettempdir())"),
    run("class A:\\n    pass\\nraise ValueError(A(), A.__init__)"),
    submit("def tidy_spaces(text):\\n    return ' '.join(sorted(set(text.split(' '))))\\n"),
]
for rollout in play(app_at(int(sys.argv[2])), body(programs), body(seed=4), body(seed=4, split="test")):
    print(rollout.digest, rollout.scorecard.reward)
"""


@pytest.mark.ci
def test_two_processes_play_the_same_episodes(level: int) -> None:
    def digests(hash_seed: str) -> list[str]:
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return printed(EPISODES, str(ROOT), str(level), cwd=ROOT, env=environ).splitlines()

    first = digests("1")
    assert [line.split()[1] for line in first] == ["0.0", "1.0", "1.0"]
    assert digests("2") == first


@needs_walls
def test_what_a_policy_reads_holds_no_answer() -> None:
    for split, rows in SPLITS.items():
        for seed, task in enumerate(rows[:3]):
            (rollout,) = play(app_at(max(LEVELS)), body([run("print(1)")], seed=seed, split=split))
            assert task.statement in str(rollout.trajectory.initial)
            assert json.dumps(task.hidden_tests[-1].args) not in str(rollout.trajectory.initial)
            assert "checker" not in str(rollout.trajectory.initial)

"""The scripts of examples/forge against the blocks of TorchForge's guide to RL workflows: what differs, and that they run.

The guide is read from where people have it (`guide.py`). Each statement of its blocks stands in its script with the same lines;
lines that are missing there, or that were added inside a statement, are listed here with the reason (`pytest -s` prints
them). Around the statements a script has its imports and its configuration.
"""

from __future__ import annotations

import ast
import difflib
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from tests.guides.guide import ROOT, THERE, TORCHFORGE
from tests.guides.guide import blocks as blocks_of
from tests.services.backends import BACKENDS

SCRIPTS = ROOT / "examples" / "forge"
SECONDS = 900.0

EPISODE = "the guide omits the episode's fields"
PUSHED = "the guide's loop never updates the policy's weights"
SHORT = "the guide trains on `None` until the buffer has enough episodes"
OTHERS_IMPORT = "taskapp-kit has its own class and decorator"
OWN_STATE = "an environment has state, so each session needs its own instance"
NEVER_AWAITED = "the guide's constructor does not await an asynchronous method"
LOGIC = "the guide omits the environment's logic"


@dataclass(frozen=True)
class Script:
    """A script of a block. missing, added: lines, stripped, with the reason for the difference."""

    name: str
    block: int
    missing: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    browser: bool = False


UPDATES = ("--updates", "2")
PUSHES = {
    "await trainer.push_weights.route(training_step)": PUSHED,
    "await policy.update_weights.fanout(training_step)": PUSHED,
}
SKIPS = {"if batch is None:": SHORT, "continue": SHORT}
ALL = [
    Script("episode_generation", 0),
    Script("asynchronous_rl", 1, arguments=UPDATES),
    Script("synchronous_rl", 2, arguments=UPDATES),
    Script(
        "code_execution",
        3,
        {"await replay_buffer.add.route(Episode(...))": EPISODE},
        {"await replay_buffer.add.route(Episode(code.prompt_ids, code.token_ids, reward))": EPISODE},
    ),
    Script(
        "web_browsing",
        4,
        {"await replay_buffer.add.route(Episode(...))": EPISODE},
        {"await replay_buffer.add.route(Episode([*task.encode()], [*str(action).encode()], reward))": EPISODE},
        browser=True,
    ),
    Script(
        "custom_environment",
        5,
        {
            "from monarch.actor import Actor, endpoint": OTHERS_IMPORT,
            "class CustomEnv(Actor):": OWN_STATE,
            "self.state = self.reset()": NEVER_AWAITED,
            "return initial_state": LOGIC,
        },
        {
            "class CustomEnv(Actor, stateful=True):": OWN_STATE,
            "self.state = initial_state": NEVER_AWAITED,
            "return self._shown()": LOGIC,
            "thing, _ = COMBINATIONS[self.state]": LOGIC,
            "self.state += 1": LOGIC,
            "observation, reward, done = self._shown(), float(action.strip() == KEYS[thing]), self.state == 8": LOGIC,
            "def _shown(self):": LOGIC,
            'return "The {} is {}.".format(*COMBINATIONS[self.state])': LOGIC,
        },
    ),
    Script("warm_up", 6, arguments=UPDATES),
    Script("evaluation_between", 7, {}, {**SKIPS, **PUSHES}, UPDATES),
    Script("curriculum", 8, arguments=UPDATES),
    Script(
        "several_tasks",
        9,
        {},
        {**SKIPS, "training_step = 0": PUSHED, "training_step += 1": PUSHED, **PUSHES},
        UPDATES,
    ),
    Script(
        "start_small",
        10,
        {
            "policy = PolicyActor.options(procs=1, with_gpus=True).as_service()": "the script selects its own model",
            "reward = RewardActor.options(procs=1, with_gpus=True).as_service()": "the script selects its own reward",
        },
    ),
    Script(
        "logging_added",
        11,
        {"await replay_buffer.add.route(Episode(...))": EPISODE},
        {
            "await replay_buffer.add.route(Episode(response.prompt_ids, response.token_ids, reward_value))": EPISODE,
        },
    ),
    Script(
        "metrics",
        12,
        {},
        {**PUSHES, "else:": SHORT, "await asyncio.sleep(0.1)": SHORT},
        UPDATES,
    ),
]
NAMED = pytest.mark.parametrize("script", [pytest.param(each, id=each.name) for each in ALL])
IN_CI = ("episode_generation", "synchronous_rl", "custom_environment")
RUN = pytest.mark.parametrize(
    "script",
    [pytest.param(each, id=each.name, marks=[] if each.name in IN_CI else [pytest.mark.exhaustive]) for each in ALL],
)


def blocks() -> list[str]:
    return [text for _, text in blocks_of(TORCHFORGE)]


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a block or script. name: of a function or class, else "". lines: stripped, none empty."""

    name: str
    lines: list[str]


def statements(text: str) -> list[Statement]:
    try:
        nodes, shift = ast.parse(text).body, 0
    except SyntaxError:  # an `await` at its top
        nested = "async def block():\n" + "".join(f"    {line}\n" for line in text.splitlines())
        nodes, shift = ast.parse(nested).body[0].body, 1  # type: ignore[attr-defined]
    lines = text.splitlines()
    found = []
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        own = [line.strip() for line in lines[first - 1 - shift : (node.end_lineno or first) - shift]]
        found.append(Statement(getattr(node, "name", ""), [line for line in own if line]))
    return found


MOST = 34
"""Differences of all scripts together. Lower it when they get fewer; never raise it."""


def test_the_differences_only_shrink() -> None:
    assert sum(len(script.missing) + len(script.added) for script in ALL) == MOST, "lower MOST; never raise it"


def differences(script: Script) -> list[tuple[str, str]]:
    """(`missing` or `added`, line): of the block's statements, as they stand in the script.

    A function or class is compared with the script's of the same name, as a whole; the lines of any other statement with
    those of the whole script, where lines between them are additions.
    """
    text = (SCRIPTS / f"{script.name}.py").read_text(encoding="utf-8")
    named = {each.name: each.lines for each in statements(text)}
    every = [line.strip() for line in text.splitlines() if line.strip()]
    found: list[tuple[str, str]] = []
    for statement in statements(blocks()[script.block]):
        there = named.get(statement.name) if statement.name else every
        assert there is not None, f"{script.name} has no {statement.name}"
        matches = difflib.SequenceMatcher(None, statement.lines, there, autojunk=False).get_matching_blocks()
        same = {match.a + offset for match in matches for offset in range(match.size)}
        taken = {match.b + offset for match in matches for offset in range(match.size)}
        found += [("missing", line) for place, line in enumerate(statement.lines) if place not in same]
        inside = range(len(there)) if statement.name else range(min(taken, default=0), max(taken, default=-1) + 1)
        found += [("added", there[place]) for place in inside if place not in taken]
    return found


@THERE
def test_each_block_of_the_guide_has_a_script() -> None:
    assert {language for language, _ in blocks_of(TORCHFORGE)} == {"python"}
    assert [script.block for script in ALL] == list(range(len(blocks())))


@THERE
@NAMED
def test_a_script_differs_from_its_block_in_what_is_listed_only(script: Script) -> None:
    found = differences(script)
    for kind, line in found:
        reason = (script.missing if kind == "missing" else script.added).get(line)
        print(f"{script.name}: {kind}: {line}\n    {reason}")
    listed = {("missing", line) for line in script.missing} | {("added", line) for line in script.added}
    assert set(found) == listed


@pytest.mark.train
@pytest.mark.server
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("backend", BACKENDS)
@RUN
def test_a_script_runs(script: Script, backend: str) -> None:
    for package in ("torch", "transformers", *(("playwright", "font_hanken_grotesk") if script.browser else ())):
        pytest.importorskip(package)
    written = ran(script.name, *script.arguments, TASKAPP_SERVICES_BACKEND=backend)
    print(written)
    assert "Traceback" not in written


@pytest.mark.train
@pytest.mark.server
@pytest.mark.exhaustive
def test_the_guide_pays_an_empty_program() -> None:
    """Its reward is 1.0 where nothing is written to standard error: the hack is shown, not hidden."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    assert "an empty program is paid 1.0" in ran("code_execution")


def ran(name: str, *arguments: str, **variables: str) -> str:
    """Run a script; return what it wrote."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments],
        env=environment,
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout + process.stderr

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, CAPITALS, ROOT, Run, Served


def test_info_tells_what_is_declared(run: Run) -> None:
    shown = run("info", ADDER, width=80).stdout
    for words in (
        "adder 1.0.0",
        "train 0 to 99 (100 seeds), test 100 to 119 (20 seeds)",
        "20 steps",
        "low: integer = 5",
        "reward = 1 · outcome_score",
        "the weighted mean of reached (weight 3), brief",
        "add(amount: 1 | 2 | 3)",
        "Add `amount` to the total.",
        "gold, random, constant, replay",
        "noop is unavailable: ",
        "@action(noop={…})",
        "curl -H",
    ):
        assert words in shown, words


def test_info_says_why_random_cannot_play(run: Run) -> None:
    shown = run("info", CAPITALS, width=300).stdout
    assert "random is unavailable: action 'answer' at " in shown
    assert "The action accepts the assistant's plain text." in shown
    assert "train 0 to 1 (2 rows)" in shown


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("app", [ADDER, CAPITALS, "crafter"])
def test_info_fits_the_terminal(run_at_terminal: Run, app: str, width: int) -> None:
    told = run_at_terminal("info", app, width=width, status=0)
    described = told.stdout.partition("example requests")[0]
    assert max(map(len, described.splitlines())) <= width


def test_info_never_shows_a_private_field(run: Run) -> None:
    for args in (["info", CAPITALS, "--json"], ["info", CAPITALS], ["info", CAPITALS, "--prompt"]):
        assert "Paris" not in run(*args).stdout


def test_info_as_json_has_the_schemas(run: Run) -> None:
    told = json.loads(run("info", ADDER, "--json").stdout)
    (tool,) = told["task_info"]["adder"]["action_space"]["tools"]
    assert tool["parameters"]["properties"]["amount"]["enum"] == [1, 2, 3]
    assert list(told["unavailable_policies"]["adder"]) == ["noop"]


def test_prompt_is_the_first_request_as_it_is_sent(run: Run) -> None:
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.records.protocols import View
    from taskapp_kit.rollout.policy.conversation import Conversation
    from taskapp_kit.rollout.policy.options import PolicyOptions

    told = json.loads(run("info", ADDER, "--prompt", "--seed", "3", "--json").stdout)
    spec = find_app(ADDER).freeze()
    environment = spec.environments["adder"]
    view = View(
        0, "target 8, total 0", (), [item.tool for item in environment.actions.values()], initial="target 8, total 0"
    )
    assert told["body"] == Conversation(spec, environment, PolicyOptions()).ask(view)
    assert (told["environment"], told["seed"], told["output_mode"]) == ("adder", 3, "tool_calls")
    shown = run("info", ADDER, "--prompt", "--seed", "3").stdout
    for words in ("Reach the target exactly", "\nuser\ntarget 8, total 0\n", "\ntool add\n", '"enum"', "required"):
        assert words in shown, words


def test_prompt_of_each_output_mode(run: Run) -> None:
    shown = run("info", ADDER, "--prompt", "--output-mode", "text").stdout
    assert '{"tool":"add","arguments":{"amount":1}}' in shown
    assert "\ntool add" not in shown
    assert "json_schema" in run("info", ADDER, "--prompt", "--output-mode", "structured").stdout
    run("info", ADDER, "--output-mode", "text", status=2)


def test_a_prompt_with_a_picture_names_it(run: Run) -> None:
    seen = ("info", "crafter", "--prompt", "--seed", "1", "--config", '{"image": true}')
    shown = run(*seen).stdout
    assert "[picture]" in shown
    assert "base64" not in shown
    parts = json.loads(run(*seen, "--json").stdout)["body"]["messages"][-1]["content"]
    assert any(part["type"] == "image_url" for part in parts)


def test_prompt_follows_config_and_split(run: Run) -> None:
    told = json.loads(run("info", ADDER, "--prompt", "--config", '{"low": 40, "high": 40}', "--json").stdout)
    assert told["body"]["messages"][-1] == {"role": "user", "content": "target 40, total 0"}
    assert json.loads(run("info", ADDER, "--prompt", "--split", "test", "--json").stdout)["seed"] == 100
    assert run("info", ADDER, "--prompt", "--config", '{"lou": 1}').exit_code == 2
    assert run("info", ADDER, "--prompt", "--split", "tset").exit_code == 2


def test_a_reset_that_raises_is_shown_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        Path(ADDER).read_text().replace("self.target, self.total =", "1 / 0; self.target, self.total =")
    )
    told = run("info", "bad.py", "--prompt", status=1)
    assert 'bad.py", line 18, in reset' in told.stderr
    assert "boundary environment" in told.stderr


@pytest.mark.process
def test_info_of_a_server_tells_the_same(run: Run, adder_server: Served) -> None:
    told = run("info", adder_server.url, "--json", ENVIRONMENT_API_KEY=str(adder_server.key), status=0)
    here = json.loads(run("info", ADDER, "--json").stdout)
    assert json.loads(told.stdout)["task_info"] == here["task_info"]
    assert json.loads(told.stdout)["info"] == here["info"]
    shown = run("info", adder_server.url, "--key", str(adder_server.key))
    assert "add(amount: 1 | 2 | 3)" in shown.stdout
    assert str(adder_server.key) not in shown.stdout + shown.stderr


@pytest.mark.process
def test_info_of_a_server_without_its_key(run: Run, adder_server: Served) -> None:
    run("info", adder_server.url, status=1)
    assert run("info", adder_server.url, "--prompt").exit_code == 2


@pytest.mark.process
def test_an_environment_that_is_not_there(run: Run, adder_server: Served) -> None:
    assert run("info", ADDER, "--env", "ader").exit_code == 2
    run("info", adder_server.url, "--env", "ader", "--key", str(adder_server.key), status=2)


ALL = '''"""An app
that shows all."""
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp
app = TaskApp("all")
class Row(BaseModel):
    question: str
    difficulty: str = "easy"
app.tasks("all", row=Row, prompt="{question}", tags=["short", "words"],
          train=[Row(question="a"), Row(question="b", difficulty="hard")])
@app.metric
def letters(answer_text):
    """Letters
    of the answer."""
    return len(answer_text)
'''


def test_info_tells_metrics_tags_and_what_selects_a_row(run: Run, tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(ALL)
    shown = run("info", "all.py", width=120).stdout
    for words in (
        "An app that shows all.",
        "letters: Letters of the answer.",
        "short, words",
        "easy, hard",
        "split and index",
    ):
        assert words in shown, words


def test_the_prompt_of_crafter_states_the_limit_that_holds(run: Run) -> None:
    shown = run("info", "crafter", "--prompt", "--config", '{"length": 50}').stdout
    assert "after 50 actions" in shown
    assert "10000" not in shown


def test_the_default_limit_is_said_and_is_in_no_prompt(run: Run, tmp_path: Path) -> None:
    (tmp_path / "free.py").write_text(
        """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("free", version="1.0.0")


@app.environment("free", splits={"train": range(10)})
class Free:
    '''Go on and on.'''

    def reset(self, seed: int) -> str:
        return "here"

    @action(noop={})
    def go(self) -> Step:
        '''Go.'''
        return Step("here")


app.tasks("asked", prompt="{q}", train=[{"q": "Why?"}])
"""
    )
    for name, wanted in (("free", (1000, True, 10)), ("asked", (1, False, None))):
        told = json.loads(run("info", "free.py", "--env", name, "--json").stdout)["task_info"][name]["limits"]
        assert (told["max_turns"], told["max_turns_by_default"], told["max_refusals"]) == wanted
        shown = run("info", "free.py", "--env", name, width=120).stdout
        assert ("1000 turns" in shown, "1 turn," in shown) == (name == "free", name == "asked")
        prompt = run("info", "free.py", "--env", name, "--prompt").stdout
        assert "ends at the latest" not in prompt


def test_the_roles_that_an_environment_declares_are_shown(run: Run, tmp_path: Path) -> None:
    judged = (ROOT / "tests" / "cli" / "judged.py").read_text()
    (tmp_path / "app.py").write_text(judged.replace("splits={", 'models=("user",), splits={'))
    told = json.loads(run("info", "app.py", "--json").stdout)
    assert told["task_info"]["talk"]["models"] == ["user"]
    assert any("TASKAPP_USER_URL" in warning for warning in told["warnings"])
    assert "models" not in told["task_info"]["judged"]

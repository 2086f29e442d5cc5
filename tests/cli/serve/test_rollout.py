from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from taskapp_kit.store import open_store
from taskapp_kit.testing import MockModel
from taskapp_kit.wire.rollout import RolloutResponse
from tests.cli.conftest import ADDER, CAPITALS, ROOT, Run, Served

HOSTILE = str(ROOT / "tests" / "hostile_app.py")


def test_steps_scorecard_reward_and_digest_are_shown(run: Run) -> None:
    told = run("rollout", ADDER, "--policy", "gold", "--seed", "3", status=0)
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["step", "action", "observation", "reward"]
    assert lines[1].split() == ["0", "reset", "target", "8,", "total", "0"]
    assert lines[2].split() == ["1", "add", "amount=3", "target", "8,", "total", "3", "0"]
    assert lines[4].split() == ["3", "add", "amount=2", "target", "8,", "total", "8", "1"]
    assert re.search(r"^reached +outcome +1 +3", told.stdout, re.MULTILINE)
    assert re.search(r"^reward +0\.9625 +reward = 1 · outcome_score", told.stdout, re.MULTILINE)
    assert re.search(r"^ended +terminated \(environment\) after 3 steps", told.stdout, re.MULTILINE)
    assert re.search(r"^digest +[0-9a-f]{64}\s*$", told.stdout, re.MULTILINE)


def test_without_a_policy_random_plays_and_it_says_so(run: Run) -> None:
    told = run("rollout", ADDER, "--seed", "3", status=0)
    assert re.search(r"^policy +random \(no --policy was given\)", told.stdout, re.MULTILINE)


WORDY = """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("wordy", version="1.0.0")


@app.environment("wordy", splits={"train": range(10)}, max_steps=100)
class Wordy:
    \"\"\"Says much.\"\"\"

    def reset(self) -> str:
        self.waited = 0
        return " ".join(f"word{number}" for number in range(60)) + "\\n. . @\\n# # #"

    @action
    def wait(self) -> Step:
        \"\"\"Wait.\"\"\"
        self.waited += 1
        if self.waited < 99:
            return Step("Nothing happens.", reward=0.0)
        return Step("\\n".join(f"line {number}" for number in range(50)), terminated=True)
"""
WAIT = ("--action", '{"wait": {}}')


@pytest.fixture
def wordy(tmp_path: Path) -> str:
    (tmp_path / "wordy.py").write_text(WORDY)
    return "wordy.py"


@pytest.mark.parametrize("width", ["80", "140"])
def test_observations_wrap_and_equal_steps_are_folded(run: Run, wordy: str, width: str) -> None:
    told = run("rollout", wordy, *WAIT, "--width", width, status=0)
    lines = told.stdout.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert all(f"word{number}" in told.stdout for number in range(60))
    assert [line.strip() for line in lines[1:20] if "@" in line or "#" in line] == [". . @", "# # #"]
    waited = [number for number, line in enumerate(lines) if line.split()[:2] == ["1", "wait"]]
    assert lines[waited[0] + 1].split() == ["…", "97", "more", "like", "this"]
    assert lines[waited[0] + 2].split()[:2] == ["99", "wait"]
    assert "line 0" in told.stdout
    assert "line 49" not in told.stdout  # one observation takes 20 lines at most


def test_full_cuts_and_folds_nothing(run: Run, wordy: str) -> None:
    told = run("rollout", wordy, *WAIT, "--full")
    assert all(f"line {number}" in told.stdout for number in range(50))
    assert told.stdout.count("Nothing happens.") == 98
    assert "the same" not in told.stdout


def test_a_run_of_equal_steps_at_the_end_is_counted(run: Run, wordy: str) -> None:
    told = run("rollout", wordy, *WAIT, "--ops", "10")
    assert "… 9 more like this" in told.stdout


def test_a_pipe_is_never_narrower_than_120(run: Run, wordy: str) -> None:
    narrow = run("rollout", wordy, *WAIT, width=40)
    assert max(map(len, narrow.stdout.splitlines())) > 100
    assert run("rollout", wordy, *WAIT, "--width", "39").exit_code == 2


@pytest.mark.server
def test_a_model_that_says_much_is_cut_unless_all_is_wanted(run: Run) -> None:
    asked = ("rollout", CAPITALS, "--seed", "0", "--model", "m", "--inference-url")
    with MockModel(["x" * 2500 + "END"]) as model:
        assert "END" not in run(*asked, model.url, "--width", "4000").stdout
        assert "END" in run(*asked, model.url, "--width", "4000", "--full").stdout


def test_where_every_action_was_refused_it_warns(run: Run, tmp_path: Path) -> None:
    refused = ("--action", '{"add": {"amount": 7}}')
    told = run("rollout", ADDER, "--seed", "1", *refused)
    assert "no action was accepted" in told.stderr
    assert "no action was accepted" not in run("rollout", ADDER, "--policy", "gold").stderr
    many = run("eval", ADDER, "--seeds", "0-3", *refused, "--out", "r1", status=0)
    assert "in 4 of 4 rollouts, no action was accepted" in many.stderr
    assert json.loads((tmp_path / "r1" / "summary.json").read_text())["rollouts"]["without_valid_action"] == 4
    good = run("eval", ADDER, "--seeds", "0-3", "--policy", "gold", "--out", "r2")
    assert "accepted" not in good.stderr


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(run: Run, width: int) -> None:
    told = run(
        "rollout", "crafter", "--policy", "scripted", "--seed", "7", "--ops", "6", "--width", str(width), status=0
    )
    assert max(map(len, told.stdout.splitlines())) <= width


def test_json_is_the_answer_of_the_wire_and_nothing_else(run: Run) -> None:
    told = run("rollout", ADDER, "--policy", "gold", "--seed", "3", "--json")
    answer = RolloutResponse.model_validate(json.loads(told.stdout))
    assert (answer.status, answer.reward) == ("terminated", 0.9625)
    assert told.stderr == ""


def test_out_writes_the_same_answer(run: Run, tmp_path: Path) -> None:
    told = run("rollout", ADDER, "--policy", "gold", "--seed", "3", "--json", "--out", "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text()) == json.loads(told.stdout)
    run("rollout", ADDER, "--out", "nowhere/answer.json", status=2)


@pytest.mark.parametrize("action", ["Paris", '"Paris"'])
def test_action_makes_the_constant_policy(run: Run, action: str) -> None:
    told = run("rollout", CAPITALS, "--seed", "0", "--action", action, "--json")
    assert json.loads(told.stdout)["reward"] == 1.0


def test_config_split_and_ops(run: Run) -> None:
    told = run(
        "rollout", ADDER, "--split", "test", "--config", '{"low": 90, "high": 90}',
        "--action", '{"add": {"amount": 1}}', "--ops", "4", "--json",
    )  # fmt: skip
    answer = json.loads(told.stdout)
    assert answer["stop_reason"] == "ops"
    assert answer["metrics"]["num_steps"] == 4
    assert answer["metrics"]["details"]["split"] == "test"
    assert answer["trajectories"][0]["final"]["observation"] == {"text": "target 90, total 4"}


def test_an_unavailable_policy_says_what_to_do(run: Run) -> None:
    run("rollout", CAPITALS, status=2)


def test_an_unknown_policy_is_told_with_the_list(run: Run) -> None:
    run("rollout", ADDER, "--policy", "goold", status=2)


def test_a_step_that_raises_shows_the_authors_lines(run: Run, tmp_path: Path) -> None:
    text = Path(ADDER).read_text()
    (tmp_path / "bad.py").write_text(text.replace("self.total += amount", 'self.total += amount\n        {}["total"]'))
    told = run("rollout", "bad.py", "--policy", "gold", "--seed", "3", status=1)
    assert 'bad.py", line 25, in add' in told.stderr
    assert "taskapp_kit/rollout" not in told.stderr
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: The rollout failed at boundary environment (environment_raised)")
    assert re.search(r"error id [0-9a-f]+", last)
    assert "target 8, total 0" in told.stdout


def test_a_missing_package_is_one_sentence_that_names_its_extra(run: Run, tmp_path: Path) -> None:
    text = Path(ADDER).read_text()
    lines = (
        "from taskapp_kit.errors import Unavailable\n"
        "        try:\n            import no_such_package\n        except ImportError as error:\n"
        "            raise Unavailable('it needs no_such_package: pip install x[y].') from error"
    )
    (tmp_path / "lacks.py").write_text(text.replace("self.total += amount", lines))
    told = run("rollout", "lacks.py", "--policy", "gold", "--seed", "3", status=1)
    assert len(told.stderr.strip().splitlines()) == 1
    assert "pip install x[y]. (rollout" in told.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return 1.0 if trajectory.total_reward == 1.0 else 0.0", "return 1 / 0", "boundary scoring"),
        ("    target, total = (", "    raise RuntimeError('lost')\n    target, total = (", "boundary policy"),
        ("self.total += amount", "import time; time.sleep(0.2)", "boundary timeout"),
    ],
)
def test_each_boundary_is_named(run: Run, tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(Path(ADDER).read_text().replace(old, new))
    seconds = "0.1" if "timeout" in words else "60"
    told = run("rollout", "bad.py", "--policy", "gold", "--seed", "3", "--max-time-seconds", seconds, status=1)
    assert words in told.stderr


def test_what_the_author_logs_goes_to_stderr(run: Run, tmp_path: Path) -> None:
    text = Path(ADDER).read_text()
    text = text.replace("def reset(self, seed: int) -> str:", "def reset(self, seed: int, context) -> str:")
    text = text.replace(
        "        self.target, self.total =",
        "        context.log.info('seed %d', seed)\n        self.target, self.total =",
    )
    (tmp_path / "talks.py").write_text(text)
    told = run("rollout", "talks.py", "--policy", "gold", "--seed", "3", "--json", status=0)
    assert told.stderr.strip() == "INFO taskapp_kit.environment.adder: seed 3"
    json.loads(told.stdout)


def test_a_stored_rollout_replays(run: Run, tmp_path: Path) -> None:
    first = json.loads(run("rollout", ADDER, "--seed", "3", "--store", "sqlite:///kept.db", "--json").stdout)

    async def stored() -> object:
        store = open_store(str(tmp_path / "kept.db"))
        found = await store.load(first["rollout_id"])
        await store.close()
        return found

    assert asyncio.run(stored()) is not None
    again = run(
        "rollout", ADDER, "--seed", "3", "--store", "sqlite:///kept.db", "--policy", "replay",
        "--policy-config", json.dumps({"rollout_id": first["rollout_id"]}), "--json",
    )  # fmt: skip
    assert json.loads(again.stdout)["digest"] == first["digest"]


def test_nothing_is_kept_unless_asked(run: Run, tmp_path: Path) -> None:
    assert run("rollout", ADDER, "--seed", "3").exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_server_plays_the_same_episode(run: Run, adder_server: Served) -> None:
    key = str(adder_server.key)
    here = run("rollout", ADDER, "--policy", "gold", "--seed", "3")
    there = run("rollout", adder_server.url, "--policy", "gold", "--seed", "3", ENVIRONMENT_API_KEY=key, status=0)

    def comparable(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith(("seconds", "rollout "))]

    assert comparable(there.stdout) == comparable(here.stdout)
    assert key not in there.stdout


@pytest.mark.process
def test_the_key_may_come_from_a_file_or_a_flag(run: Run, adder_server: Served, tmp_path: Path) -> None:
    key = str(adder_server.key)
    (tmp_path / "my.env").write_text(f"ENVIRONMENT_API_KEY={key}\n")
    asked = ("rollout", adder_server.url, "--seed", "3")
    assert run(*asked, "--env-file", "my.env").exit_code == 0
    assert run(*asked, "--key", key).exit_code == 0
    (tmp_path / ".env").write_text(f"ENVIRONMENT_API_KEY={key}\n")
    assert run(*asked).exit_code == 0


@pytest.mark.process
def test_a_server_that_refuses(run: Run, adder_server: Served) -> None:
    asked = ("rollout", adder_server.url, "--seed", "3")
    wrong = run(*asked, "--key", "not-the-key-at-all", status=1)
    assert "ENVIRONMENT_API_KEY" in wrong.stderr
    assert "not-the-key-at-all" not in wrong.stderr
    run("rollout", adder_server.url, "--seed", "5000", "--key", str(adder_server.key), status=2)


def test_nobody_answers(run: Run) -> None:
    told = run("rollout", "http://127.0.0.1:9", status=1)
    assert "Nothing is listening at http://127.0.0.1:9." in told.stderr


@pytest.mark.parametrize(
    "url", ["http://user:secret@127.0.0.1:9", "http://127.0.0.1:9/?key=secret", "http://[", "http://"]
)
def test_a_url_is_an_address_alone(run: Run, url: str) -> None:
    told = run("rollout", url, status=2)
    assert "secret" not in told.stderr


@pytest.mark.process
def test_store_belongs_to_local_rollouts(run: Run, adder_server: Served) -> None:
    assert run("rollout", adder_server.url, "--store", "sqlite:///x.db").exit_code == 2


@pytest.mark.server
def test_limits_are_flags(run: Run, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(
        WORDY.replace("@action\n", "@action(text=True)\n").replace("def wait(self)", "def wait(self, text: str)")
        + """
@app.policy
def silent(observation: str) -> str:
    return ""
"""
    )
    told = run("rollout", "silent.py", "--policy", "silent", "--max-refusals", "3", "--json")
    answer = json.loads(told.stdout)
    assert (answer["stop_reason"], answer["metrics"]["num_steps"]) == ("max_refusals", 3)
    assert run("rollout", "silent.py", "--policy", "silent", "--max-refusals", "0").exit_code == 2
    with MockModel(behaviour="empty") as model:
        asked = ("rollout", "silent.py", "--model", "m", "--inference-url", model.url, "--json")
        answer = json.loads(run(*asked, "--max-rollout-tokens", "1").stdout)
    assert (answer["stop_reason"], answer["metrics"]["num_steps"]) == ("max_rollout_tokens", 1)


def test_a_sentence_of_a_command_names_its_flags_and_not_a_requests_fields(run: Run) -> None:
    done = run("rollout", ADDER, "--policy", "constant", "--action", '{"nothing_of_this_name": {}}', status=2)
    assert "--action" in done.stderr and "policy.config" not in done.stderr
    asked = (HOSTILE, "--env", "shared", "--policy", "noop", "--config", '{"slow": 0.3}')
    slow = run("rollout", *asked, "--max-time-seconds", "0.5", status=1)
    assert "--max-time-seconds" in slow.stderr and "safety." not in slow.stderr

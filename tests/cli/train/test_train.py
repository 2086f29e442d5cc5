"""`taskapp train` and `taskapp doctor` against a real backend and a real task app: what they say, how they end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nacl", reason="needs taskapp-kit[jobs]")

from taskapp_kit.client import RLJob
from taskapp_kit.records.job_status import WEIGHTS_NOTE
from tests.cli.conftest import ROOT, Run, clean_environ
from tests.cli.terminals import Terminal
from tests.cli.train.conftest import BACKEND_KEY, FAST, TASK_APP_KEY, Both, safe
from tests.waiting import until

pytestmark = pytest.mark.server

CONFIG = (ROOT / "examples" / "rl_in_process_config.toml").read_text(encoding="utf-8")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "rl.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path / "rl.toml"


def nobody() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_job_that_succeeds_is_followed_in_plain_lines(run: Run, both: Both, config: Path) -> None:
    done = run("train", "--type", "rl", "--config", str(config), *FAST, width=200, status=0, **both.variables())
    safe(done.output + done.stderr)
    assert re.search(r"key +ok +The task app accepts the key", done.stderr)
    assert re.search(r"Submitted job rl_\w+\.", done.stderr)
    assert "\x1b" not in done.stderr, "no terminal, no colours"
    assert re.search(r"status +succeeded", done.stdout)
    assert re.search(r"final reward +(1|0\.\d+)\s+" + re.escape(WEIGHTS_NOTE), done.stdout)
    assert WEIGHTS_NOTE not in done.stderr, "it stands beside the reward"


def test_json_alone_stands_on_stdout(run: Run, both: Both, config: Path) -> None:
    done = run("train", "--config", str(config), "--json", *FAST, status=0, **both.variables())
    told = json.loads(done.stdout)
    assert told["status"] == "succeeded"
    assert told["updates_weights"] is False
    assert isinstance(told["final_reward"], float)


def test_without_polling_it_ends_when_the_job_was_taken(run: Run, both: Both, config: Path) -> None:
    done = run("train", "--config", str(config), "--no-poll", "--json", status=0, **both.variables())
    assert json.loads(done.stdout)["job_id"].startswith("rl_")


def test_the_same_idempotency_key_gives_the_same_job(run: Run, both: Both, config: Path) -> None:
    ids = set()
    for _ in range(2):
        args = ("train", "--config", str(config), "--no-poll", "--json", "--idempotency", "once")
        done = run(*args, **both.variables())
        ids.add(json.loads(done.stdout)["job_id"])
    assert len(ids) == 1


def test_flags_come_before_the_environment_and_files_after_it(run: Run, both: Both, config: Path) -> None:
    (config.parent / "a.env").write_text(f"SYNTH_API_KEY=wrong-and-overridden\nTASK_APP_URL={nobody()}\n")
    (config.parent / "b.env").write_text(f"SYNTH_API_KEY={BACKEND_KEY}\nENVIRONMENT_API_KEY={TASK_APP_KEY}\n")
    nothing = dict.fromkeys(both.variables(), "")
    args = ("--env-file", "a.env", "--env-file", "b.env", "--backend-url", both.backend, "--task-url", both.task_app)
    run("train", "--config", str(config), *args, *FAST, status=0, **nothing)


FAILS: dict[str, tuple[dict[str, str], int, str]] = {
    "backend key": ({"SYNTH_API_KEY": "sk_another_0123456789"}, 1, r"key +WRONG .*backend"),
    "task app key": ({"ENVIRONMENT_API_KEY": "ek_another_0123456789"}, 1, r"key +WRONG .*(key|refuse)"),
    "no backend key": ({"SYNTH_API_KEY": ""}, 2, r"SYNTH_API_KEY .* is not set"),
    "no task app key": ({"ENVIRONMENT_API_KEY": ""}, 2, r"ENVIRONMENT_API_KEY .* is not set"),
    "no backend": ({"BACKEND_BASE_URL": ""}, 2, r"The backend's address is not set.*taskapp backend serve"),
    "no task app": ({"TASK_APP_URL": ""}, 2, r"The task app's address is not set"),
    "backend away": ({"BACKEND_BASE_URL": "NOBODY"}, 1, r"backend +WRONG"),
    "task app away": ({"TASK_APP_URL": "NOBODY"}, 1, r"task app +WRONG"),
    "task app is a backend": ({"TASK_APP_URL": "BACKEND"}, 1, r"key +WRONG .*not a backend's"),
    "address unreadable": ({"TASK_APP_URL": "not an address"}, 2, r"not an address|address"),
}


@pytest.mark.parametrize("name", FAILS)
def test_what_fails_is_named(name: str, run: Run, both: Both, config: Path) -> None:
    changed, status, words = FAILS[name]
    changed = {
        key: value.replace("NOBODY", nobody()).replace("BACKEND", both.backend) for key, value in changed.items()
    }
    done = run("train", "--config", str(config), *FAST, width=200, **both.variables(**changed))
    assert re.search(words, done.stderr, re.DOTALL), done.stderr
    assert done.exit_code == status, done.stderr
    assert done.stdout == ""
    safe(done.stderr)


TOML = {
    "not there": (None, r"RL config .*none\.toml"),
    "no toml": ("algorithm = [", r"line 1|TOML"),
    "two models": (CONFIG.replace('base = "', 'source = "ft:x"\nbase = "'), r"(?s)line \d+: .*exactly one"),
    "many problems": (
        CONFIG.replace("group_size = 2", "group_size = 0").replace("gpu_count = 2", 'gpu_count = "two"'),
        r"(?s)line \d+: .*gpu_count.*line \d+: .*group_size",
    ),
}


@pytest.mark.parametrize("name", TOML)
def test_a_bad_config_is_told_before_anybody_is_asked(name: str, run: Run, both: Both, tmp_path: Path) -> None:
    text, words = TOML[name]
    path = tmp_path / "none.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    done = run("train", "--config", str(path), width=200, status=2, **both.variables(BACKEND_BASE_URL=nobody()))
    assert re.search(words, done.stderr), done.stderr
    assert "WRONG" not in done.stderr
    safe(done.stderr)


def test_a_slip_is_a_warning(run: Run, both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace("log_interval", "log_intreval"), encoding="utf-8")
    done = run("train", "--config", str(config), *FAST, status=0, **both.variables())
    assert re.search(r"Warning: .*line \d+.*log_intreval.*log_interval", done.stderr)


def test_a_job_that_its_task_app_cannot_play_is_refused(run: Run, both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace('policy_name = "gold"', 'policy_name = "gld"'), encoding="utf-8")
    done = run("train", "--config", str(config), *FAST, width=200, status=1, **both.variables())
    assert re.search(r"rollout.policy_name .*Did you mean 'gold'", done.stderr), done.stderr
    safe(done.stderr + done.stdout)


def test_a_job_that_fails_ends_with_its_cause(run: Run, both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace("[rollout]", '[rollout]\nenv_config = { low = "low" }'), encoding="utf-8")
    done = run("train", "--config", str(config), *FAST, width=200, status=1, **both.variables())
    assert re.search(r"Error: The job ended with status failed: .*bad_config", done.stderr, re.DOTALL), done.stderr
    assert re.search(r"final reward +-", done.stdout), "no reward is not 0"
    safe(done.stderr + done.stdout)


def test_a_job_that_goes_on_for_too_long_is_left_alone(run: Run, both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace("iterations_per_epoch = 2", "iterations_per_epoch = 5000"), encoding="utf-8")
    done = run("train", "--config", str(config), "--poll-timeout", "1", *FAST, status=1, **both.variables())
    job_id = re.search(r"Submitted job (rl_\w+)", done.stderr)
    assert job_id is not None
    RLJob.from_job_id(job_id[1], both.backend, BACKEND_KEY).cancel()


@pytest.mark.process
def test_ctrl_c_leaves_the_job_and_says_so(both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace("iterations_per_epoch = 2", "iterations_per_epoch = 5000"), encoding="utf-8")
    log = config.parent / "err.txt"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskapp_kit", "train", "--config", str(config), *FAST],
            cwd=config.parent,
            env=clean_environ(**both.variables()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as test_mock_model
        )
    until(lambda: "Submitted job" in log.read_text() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    job_id = re.search(r"Submitted job (rl_\w+)", log.read_text())
    assert job_id is not None
    job = RLJob.from_job_id(job_id[1], both.backend, BACKEND_KEY)
    until(lambda: job.get_status()["status"] == "running")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 1
    text = log.read_text()
    assert "Stopped following. Job rl_" in text
    assert "Traceback" not in text
    assert job.get_status()["status"] == "running"
    job.cancel()


@pytest.mark.process
def test_at_a_terminal_the_job_is_shown_live_until_ctrl_c(both: Both, config: Path) -> None:
    config.write_text(CONFIG.replace("iterations_per_epoch = 2", "iterations_per_epoch = 5000"), encoding="utf-8")
    with Terminal(config.parent, "train", "--config", str(config), *FAST, **both.variables()) as terminal:
        terminal.wait("reward, by iteration")
        terminal.interrupt()
        assert terminal.end() == 1
    job_id = re.search(r"Stopped following\. Job (rl_\w+) continues at", terminal.text)
    assert job_id is not None, terminal.text
    assert "/30000 rollouts" in terminal.text
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l"), "the cursor is there again"
    safe(terminal.text)
    RLJob.from_job_id(job_id[1], both.backend, BACKEND_KEY).cancel()


def test_check_tells_each_part(run: Run, both: Both) -> None:
    done = run("doctor", both.task_app, "--backend", both.backend, status=0, **both.variables())
    for part in ("task app", "key", "contract", "backend"):
        assert re.search(rf"^{part} +ok ", done.stdout, re.MULTILINE), done.stdout
    safe(done.stdout)


def test_check_plays_one_rollout_of_a_cheap_policy(run: Run, both: Both) -> None:
    done = run("doctor", both.task_app, "--json", **both.variables())
    last = json.loads(done.stdout)["findings"][-1]
    assert (last["part"], last["ok"]) == ("rollout", True)
    assert "policy " in last["found"] and "reward" in last["found"]


@pytest.mark.parametrize("command", ["doctor", "rollout", "info", "eval"])
def test_an_address_without_its_scheme_is_completed(run: Run, command: str) -> None:
    done = run(command, "127.0.0.1:8001")
    assert done.exit_code in (1, 2)
    assert "http://127.0.0.1:8001" in done.stderr


def test_check_says_which_part_is_wrong_and_what_to_do(run: Run, both: Both) -> None:
    done = run("doctor", both.task_app, width=200, status=1, **both.variables(ENVIRONMENT_API_KEY="another-0123456789"))
    assert re.search(r"^task app +ok", done.stdout, re.MULTILINE)
    assert re.search(r"^key +WRONG", done.stdout, re.MULTILINE)


def test_check_as_json(run: Run, both: Both) -> None:
    done = run("doctor", nobody(), "--json", status=1, **both.variables())
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert [(finding["part"], finding["ok"]) for finding in told["findings"]][-1] == ("task app", False)

"""`taskapp train --local`: one command trains, is stopped, goes on, and shows what was learned."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from taskapp_kit.cli.train.train_local import LocalTraining, left_job
from taskapp_kit.config import Settings
from taskapp_kit.jobs.client.config.rl_config import load_rl_config
from taskapp_kit.jobs.server.auth import LOCAL
from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.engine import Engine
from taskapp_kit.jobs.server.jobs import Jobs, stored_key
from taskapp_kit.jobs.server.rollouts_engine import RolloutsEngine
from taskapp_kit.jobs.server.store import JobStore
from tests.cli.conftest import Run, clean_environ
from tests.jobs.server.exchange import job_row
from tests.waiting import until

TRAIN_EXTRA = all(find_spec(name) is not None for name in ("torch", "matplotlib", "tensorboardX"))
APP = '''
import itertools, pathlib, time
from taskapp_kit import Step, TaskApp, action

app = TaskApp("letters", version="1")
played = itertools.count(1)

@app.environment("one", splits={"train": range(100), "test": range(100, 200)}, max_steps=1)
class One:
    def reset(self, seed: int) -> str:
        number = next(played)
        while number > LIMIT and not pathlib.Path("go").exists():
            time.sleep(0.02)
        return f"The lamp is {seed % 4}."

    @action(text=True, noop={"text": "a"})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("Heard.", reward=float(text[:1] in "abcd"), terminated=True)
'''
CONFIG = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "grpo"
[services]
task_app = "letters.py"
[model]
base = "tiny"
trainer_mode = "full"
label = "letters"
[rollout]
env_name = "one"
policy_name = "tiny"
max_turns = 1
episodes_per_batch = 4
max_concurrent_rollouts = 4
[policy]
max_tokens = 4
[training]
num_epochs = 1
max_turns = 1
iterations_per_epoch = 3
batch_size = 2
group_size = 2
learning_rate = 1e-3
[evaluation]
instances = 4
every_n_iters = 3
seeds = [100, 101, 102, 103]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "letters.py").write_text(APP.replace("LIMIT", "9"))
    (tmp_path / "rl.toml").write_text(CONFIG)
    return tmp_path


SEVERAL = """env_name = "one"
environments = [{ env_name = "one", weight = 1 }, { env_name = "other", weight = 1, task_app = "others.py" }]"""
Command = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def command(folder: Path) -> Iterator[Command]:
    """Starts the command in a process of its own, with all that it prints in a file of this name; killed at the test's end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(output: str) -> subprocess.Popen[bytes]:
        with (folder / output).open("wb") as target:
            process = subprocess.Popen(
                [sys.executable, "-m", "taskapp_kit", "train", "--local", "--config", "rl.toml"],
                cwd=folder,
                env=clean_environ(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as test_mock_model
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()  # its trainer ends with it
        process.wait()


def recorded(folder: Path) -> dict[str, set[int]]:
    """The steps of every tag in TensorBoard's files."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, set[int]] = {}
    (file,) = folder.iterdir()
    data = file.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        event: Any = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, set()).add(event.step)
    return found


@pytest.mark.train
@pytest.mark.server
@pytest.mark.process
@pytest.mark.skipif(not TRAIN_EXTRA, reason="needs the train extra: make test-train")
@pytest.mark.parametrize("several", [False, True])
def test_a_job_that_was_stopped_goes_on_and_ends_with_pictures_and_episodes(
    folder: Path, command: Command, several: bool
) -> None:
    if several:  # each plays half of what one plays
        app = APP.replace("LIMIT", "5")
        (folder / "letters.py").write_text(app)
        (folder / "others.py").write_text(app.replace('"letters"', '"others"').replace('"one"', '"other"'))
        (folder / "rl.toml").write_text(CONFIG.replace('env_name = "one"', SEVERAL))
    process = command("first.txt")
    output = folder / "first.txt"
    until(lambda: "was saved as rl:tiny" in output.read_text() or process.poll() is not None, 120)
    assert process.poll() is None, output.read_text()
    page = re.search(r"Job (rl_\w+) starts\. Watch it at (\S+)", output.read_text())
    assert page is not None, output.read_text()
    assert f"/ui/jobs/{page[1]}" in httpx.get(page[2]).text
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "the trainer"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 1
    text = output.read_text()
    assert not psutil.wait_procs(children, 10)[1]
    left = re.search(r"Stopped\. To continue job (rl_\w+), run the same command again\.", text)
    assert left is not None and "Traceback" not in text, text

    (folder / "go").touch()
    process = command("second.txt")
    assert process.wait(180) == 0, (folder / "second.txt").read_text()
    text = (folder / "second.txt").read_text()
    assert "Traceback" not in text
    assert f"Job {left[1]} continues where it stopped." in text
    assert re.search(r"status +succeeded", text) and re.search(r"evaluations: \S+ after step 0, \S+ after step 3", text)
    assert re.search(r"reward, by iteration\n.*│", text)
    assert len(re.findall(r"^seed 10[012]: reward \S+ before, \S+ after$", text, re.MULTILINE)) == 3
    assert text.count("The lamp is") == 3 and re.search(r"^Heard\. +Heard\.", text, re.MULTILINE)
    if several:
        assert re.search(rf"taskapp eval letters.py --model rl:tiny:{left[1]}:checkpoint-\d$", text, re.MULTILINE)
    else:
        following = re.search(rf"taskapp eval letters.py --env one --model rl:tiny:{left[1]}:checkpoint-\d (.+)", text)
        assert following is not None and following[1] == """--seeds 100-103 --policy-config '{"max_tokens": 4}'""", text
    files = folder / ".taskapp" / "train" / left[1]
    assert (files / "curves.png").read_bytes().startswith(b"\x89PNG")
    steps = recorded(files / "tensorboard")
    assert steps["train/reward"] == steps["train/loss"] == {1, 2, 3} and steps["eval/reward"] == {0, 3}
    assert ("train/reward_other" in steps) == several


def usage(run: Run, folder: Path, *args: str) -> str:
    done = run("train", "--config", "rl.toml", *args, folder=folder, status=2)
    assert not (folder / ".taskapp").exists()
    return done.stderr


@pytest.mark.parametrize(
    "flag", ["--backend-url=x", "--task-url=x", "--trainer-id=x", "--no-poll", "--poll-interval=1"]
)
def test_flags_of_another_backend_are_refused(run: Run, folder: Path, flag: str) -> None:
    assert "cannot be used with --local" in usage(run, folder, "--local", flag)


@pytest.mark.parametrize("flag", ["--fresh", "--task-app=letters.py"])
def test_flags_of_a_local_job_are_refused_without_local(run: Run, folder: Path, flag: str) -> None:
    assert f"{flag.partition('=')[0]} needs --local" in usage(run, folder, flag)


def test_a_local_job_needs_a_task_app(run: Run, folder: Path) -> None:
    more = "[compute]\ngpu_type = 'x'\ngpu_count = 2\n[topology]\ntype = 'single_node_split'\ngpus_for_vllm = 1\n"
    more += "gpus_for_training = 1\ngpus_for_ref = 0\ntensor_parallel = 1\n"
    (folder / "rl.toml").write_text(CONFIG.replace('task_app = "letters.py"', 'task_url = ""') + more)
    assert "Pass --task-app FILE" in usage(run, folder, "--local")


@pytest.mark.skipif(TRAIN_EXTRA, reason="the train extra is installed")
def test_without_the_extra_one_sentence_names_it(run: Run, folder: Path) -> None:
    done = run("train", "--local", "--config", "rl.toml", folder=folder, status=1)
    assert "pip install 'taskapp-kit[train]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (folder / ".taskapp").exists()


def test_which_job_goes_on(folder: Path) -> None:
    engine: Engine = RolloutsEngine()

    async def use() -> None:
        records = JobStore(JobDatabase(None))
        jobs = Jobs(records, None, engine)  # type: ignore[arg-type]  # no task app is called
        wanted = LocalTraining(load_rl_config(folder / "rl.toml"), "letters.py", Settings())
        try:
            first, found = await left_job(wanted, jobs, "http://127.0.0.1:1")
            assert found is None

            async def stored(job_id: str, key: str, status: str, config: dict[str, Any] | None = None) -> None:
                row = job_row(job_id, LOCAL, status=status, idempotency_key=stored_key(LOCAL, key))
                await records.add(row, {"task_app_url": "http://127.0.0.1:9", "config": config or {}})

            environments = [{"weight": 1}, {"weight": 1, "task_app": "others.py", "task_url": "http://127.0.0.1:8"}]
            await stored("rl_1", first, "failed", {"rollout": {"environments": environments}})
            urls = {"letters.py": "http://127.0.0.1:2", "others.py": "http://127.0.0.1:22"}
            second, found = await left_job(wanted, jobs, urls["letters.py"], urls)
            assert (second != first, found) == (True, "rl_1")
            environments[1]["task_url"] = urls["others.py"]
            assert (await records.work("rl_1"))[0] == {
                "task_app_url": urls["letters.py"],
                "config": {"rollout": {"environments": environments}},
            }
            await stored("rl_2", second, "running")
            third, found = await left_job(wanted, jobs, "http://127.0.0.1:3")
            assert found == "rl_2"
            fresh = LocalTraining(wanted.config, "letters.py", Settings(), fresh=True)
            assert await left_job(fresh, jobs, "http://127.0.0.1:4") == (third, None)
            cancelled = await records.job("rl_2")
            assert cancelled is not None and cancelled.cancelling
            assert json.dumps((await records.work("rl_2"))[0]).count("127.0.0.1:3") == 1
            await stored("rl_3", third, "succeeded")
            fourth, found = await left_job(wanted, jobs, "http://127.0.0.1:5")
            assert found is None and len({first, second, third, fourth}) == 4
            for other in (
                LocalTraining(wanted.config, "another.py", Settings()),
                LocalTraining(wanted.config, "letters.py", Settings(), model="another"),
            ):
                key, found = await left_job(other, jobs, "http://127.0.0.1:6")
                assert found is None and key not in (first, second, third, fourth)
        finally:
            await records.close()

    asyncio.run(use())

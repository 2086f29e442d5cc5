"""Every block and command of the guides on RL jobs, run against a backend and a task app on this machine, once with the
engine `rollouts` and once with `local`, where the model `tiny` replaces the models that the guides name.

The guides are read from where people have them (`guide.py`). What a run changes is in `substitutions.py` and nowhere else,
but for this: a block with `async with` at its top is indented into a function. `pytest -s` prints each difference.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.client import RLJob
from taskapp_kit.jobs.client.config.schema import SECTIONS
from taskapp_kit.serve.uvicorn_server import bind
from taskapp_kit.train.checkpoints.facts import ModelOrigin
from taskapp_kit.train.checkpoints.library import export_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from tests.guides.guide import (
    AGNOSTIC,
    FFT,
    IN_PROCESS,
    OVERVIEW,
    RL_GUIDES,
    ROOT,
    THERE,
    blocks,
    prose,
    text_of,
)
from tests.guides.substitutions import SUBSTITUTIONS, SYNTH_KEY, TASK_APP_KEY, of_block
from tests.train.checkpoints.facts import facts, parts
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server, THERE]

SECONDS = 300.0
WORKS, JOB_RUNS, HOSTED = "works", "runs a job", "needs hosted"
ROLLOUTS, LOCAL = "rollouts", "local"
ARCHIVE = "models/Qwen-Qwen3-0.6B/rl-job_1993769d63c7506d485/checkpoint-epoch-1.tar.gz"
STANDS_FOR = "Qwen/Qwen3-0.6B=tiny,Qwen/Qwen3-4B=tiny,ft:Qwen/Qwen3-4B:adder-sft=tiny"
"""The models of the guides' configs are not on this machine."""


@dataclass
class Workspace:
    """The folder in which the blocks run, and what runs beside it."""

    folder: Path
    engine: str
    backend: str
    task_app: str
    model: str
    finished_job: str = ""
    trained_model: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        path = [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return {
            **kept,
            "PATH": os.pathsep.join(path),
            "HOME": str(self.folder),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "SYNTH_API_KEY": SYNTH_KEY,
            "ENVIRONMENT_API_KEY": TASK_APP_KEY,
            "BACKEND_BASE_URL": self.backend,
            "PROD_BACKEND_URL": self.backend,
            "TASK_APP_URL": self.task_app,
            "TASK_APP_BASE_URL": self.task_app,
            "TRAINER_ID": self.engine,
            "OPENAI_BASE_URL": f"{self.model}/v1",
            "OPENAI_API_KEY": "sk-nobody",
            **({"INFERENCE_BASE_URL": f"{self.model}/v1"} if self.engine == ROLLOUTS else {}),
            "TASKAPP_MODELS": str(self.folder.parent / "models"),
            **self.extra,
        }


@dataclass(frozen=True)
class Line:
    """One block, what it shows when it worked, and what that is worth.

    shows: a pattern in what it prints; hosted_with: engines with which a HOSTED one needs a substitute. bare: it runs
    without keys and addresses in the environment, but those that it sets itself.
    """

    guide: str
    number: int
    verdict: str
    shows: str
    serves: bool = False
    bare: bool = False
    hosted_with: tuple[str, ...] = (ROLLOUTS, LOCAL)

    def verdict_with(self, engine: str) -> str:
        """What this block is worth with this engine."""
        if self.verdict == JOB_RUNS:
            return "trains" if engine == LOCAL else "runs, trains nothing"
        return WORKS if self.verdict == HOSTED and engine not in self.hosted_with else self.verdict

    def __str__(self) -> str:
        return f"{self.guide}-{self.number}"

    def text(self) -> tuple[str, str]:
        """(python or bash, the block as the guide has it)."""
        return blocks(self.guide)[self.number - 1]


ENDED = r"RESULT succeeded [01]\.\d+"

LINES = [
    Line(IN_PROCESS, 1, JOB_RUNS, r"Final reward: [01]\.\d+"),
    Line(IN_PROCESS, 2, WORKS, r"RESULT 5$"),
    Line(IN_PROCESS, 3, WORKS, "RESULT succeeded"),
    Line(IN_PROCESS, 4, JOB_RUNS, r"RESULT rl_\w+"),
    Line(IN_PROCESS, 5, JOB_RUNS, rf"Status: succeeded\n{ENDED}"),
    Line(IN_PROCESS, 6, WORKS, r"Status: succeeded\nProgress: \{.*'total'"),
    Line(IN_PROCESS, 7, JOB_RUNS, r"Final metrics: \{.*'reward'"),
    Line(IN_PROCESS, 8, JOB_RUNS, ENDED),
    Line(IN_PROCESS, 9, JOB_RUNS, ENDED),
    Line(IN_PROCESS, 10, JOB_RUNS, rf"(?s)Progress: (\d+)/\1\n.*Reward: [01]\.\d+.*{ENDED}"),
    Line(IN_PROCESS, 11, JOB_RUNS, ENDED),
    Line(AGNOSTIC, 1, JOB_RUNS, r"final reward [01]\.\d+"),
    Line(AGNOSTIC, 2, WORKS, r"ENVIRONMENT_API_KEY: " + TASK_APP_KEY),
    Line(AGNOSTIC, 3, WORKS, r"(?s)ok +backend.*ok +key.*ok +contract"),
    Line(AGNOSTIC, 4, WORKS, r"(?s)seed 0: reward .*seed 1: reward "),
    Line(AGNOSTIC, 5, JOB_RUNS, r'"final_reward": [01]\.\d+'),
    Line(AGNOSTIC, 6, HOSTED, r"\S", hosted_with=(ROLLOUTS,)),
    Line(OVERVIEW, 1, WORKS, r'"healthy": ?true', serves=True),
    Line(OVERVIEW, 2, HOSTED, r"my-task-app"),
    Line(OVERVIEW, 3, JOB_RUNS, r"(?s)succeeded.*final reward"),
    Line(OVERVIEW, 4, HOSTED, r"(?s)mean"),
    Line(OVERVIEW, 5, WORKS, r'"status": ?"succeeded"'),
    Line(FFT, 1, JOB_RUNS, r"(?s)status succeeded.*saved rl_job.json", bare=True),
    Line(FFT, 2, JOB_RUNS, r"(?s)succeeded.*final reward"),
]


QUICK = {(IN_PROCESS, 1), (AGNOSTIC, 3), (AGNOSTIC, 6), (FFT, 1)}
"""A job with a task app in its process, a command, a trained model, and a job over HTTP. The others show the same classes and commands again; `make test-all` runs them."""


def start(folder: Path, log: Path, *args: str, **variables: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "taskapp_kit", *args],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ENVIRONMENT_API_KEY": TASK_APP_KEY, "SYNTH_API_KEY": SYNTH_KEY, **variables},
        )


def free_port() -> int:
    with bind("127.0.0.1", 0) as probe:
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with suppress(httpx.HTTPError):
            return httpx.get(url, timeout=5).status_code < 500
        return False

    until(answers, what=f"{url} answers")


def write_files(folder: Path) -> None:
    """The files that the guides take for granted."""
    examples = ROOT / "examples"
    task_app = examples / "rl" / "task_app.py"
    config = (examples / "rl_in_process_config.toml").read_text(encoding="utf-8")
    shutil.copytree(examples / "rl", folder / "examples" / "rl", ignore=shutil.ignore_patterns("__pycache__"))
    warming = folder / "examples" / "warming_up_to_rl"
    shutil.copytree(examples / "rl", warming, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (
        folder / "my_task_app.py",
        folder / "your-task-id" / "app.py",
        folder.parent / "synth-research" / "environments" / "examples" / "crafter" / "crafter_task_app.py",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(task_app, path)
    own = folder / "your-task-id" / "app.py"  # it declares no store, so a deploy has none
    own.write_text(own.read_text(encoding="utf-8").replace('# store = "none"\n', ""), encoding="utf-8")
    for path in (folder / "rl_config.toml", folder / "configs" / "rl.toml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(config, encoding="utf-8")
    archive = folder / ARCHIVE
    archive.parent.mkdir(parents=True)
    with CheckpointWriter(folder.parent / "saved") as writer:
        origin = ModelOrigin("Qwen/Qwen3-0.6B", "Apache-2.0", "Trained further.")
        export_checkpoint(writer.save(facts(origin=origin, job="job_1993769d63c7506d485"), parts()), archive)
    (folder / "bin").mkdir()
    for name, does in (("uv", 'shift; exec "$@"'), ("python", f'exec {shlex.quote(sys.executable)} "$@"')):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / "bin" / name).chmod(0o755)


def shorten(folder: Path) -> None:
    """Give every config episodes of two short answers: what a small model says in twenty turns shows nothing more."""
    for path in folder.rglob("*.toml"):
        text = re.sub(r"max_turns = \d+", "max_turns = 2", path.read_text(encoding="utf-8"))
        text = re.sub(r"^policy_name = .*$", r"\g<0>\npolicy_config = { max_tokens = 16 }", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module", params=[ROLLOUTS, pytest.param(LOCAL, marks=pytest.mark.train)])
def workspace(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    pytest.importorskip("nacl", reason="needs taskapp-kit[jobs]")
    engine: str = request.param
    if engine == LOCAL:
        for package in ("torch", "transformers"):
            pytest.importorskip(package, reason="needs the train extra (make test-train)")
    top = tmp_path_factory.mktemp("guides")
    folder = top / "work"
    folder.mkdir()
    write_files(folder)
    if engine == LOCAL:
        shorten(folder)
    ports = [free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    logs = [top / f"{name}.log" for name in ("backend", "task_app", "model")]
    variables = {"TASKAPP_MODEL_ALIASES": STANDS_FOR, "TASKAPP_MODELS": str(top / "models"), "OMP_NUM_THREADS": "1"}
    backend = ("backend", "serve", "--engine", engine, "--port", str(ports[0]), "--store", "sqlite:///backend.db")
    processes = [
        start(top, logs[0], *backend, **variables),
        start(top, logs[1], "serve", str(folder / "my_task_app.py"), "--port", str(ports[1]), "--store", "none"),
        start(top, logs[2], "mock-model", "--port", str(ports[2])),
    ]
    try:
        for url, process, log in zip(urls, processes, logs, strict=True):
            wait_for(url, process, log)
        made = Workspace(folder, engine, urls[0], urls[1], urls[2])
        (folder / "models.toml").write_text(f'["ft:..."]\nurl = "{urls[2]}/v1"\nmodel = "m"\n')
        finished = finished_job(made)
        made.finished_job = finished["job_id"]
        if engine == LOCAL:
            made.trained_model = exported(made, finished["results"]["model"])
        yield made
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def finished_job(workspace: Workspace) -> dict[str, Any]:
    job = RLJob.from_config(
        workspace.folder / "rl_config.toml",
        backend_url=workspace.backend,
        api_key=SYNTH_KEY,
        task_app_url=workspace.task_app,
        task_app_api_key=TASK_APP_KEY,
    )
    job.submit()
    last = job.poll_until_complete(timeout=SECONDS, interval=0.5)
    assert last["status"] == "succeeded", last
    assert last["updates_weights"] is (workspace.engine == LOCAL)
    return last


def exported(workspace: Workspace, model: str) -> str:
    """Move a trained model from the models of this machine into the archive that the guide names; return its name."""
    archive = workspace.folder / ARCHIVE
    archive.unlink()
    for command in (("export", model, str(archive)), ("rm", model)):
        taskapp = [sys.executable, "-m", "taskapp_kit", "models", *command]
        subprocess.run(taskapp, check=True, cwd=workspace.folder, env=workspace.environ(), stdin=subprocess.DEVNULL)
    return model


@dataclass
class Ran:
    """What became of a block."""

    status: int
    shown: str
    difference: str


def script_of(line: Line, workspace: Workspace) -> tuple[str, str]:
    """(python or bash, the block as it is run)."""
    kind, text = line.text()
    changes = of_block(line.guide, line.number)
    for each in changes:
        if each.old:
            text = text.replace(each.old, each.new.format(**facts_of(workspace)))
    if re.search(r"^async with", text, re.MULTILINE):
        inner = textwrap.indent(text, "    ")
        text = f"import asyncio\nasync def block():\n{inner}\n    return result\n\nresult = asyncio.run(block())\n"
    before = [each.new.replace("{job}", workspace.finished_job) for each in changes if not each.old and not each.after]
    after = [each.new for each in changes if each.after]
    return kind, "\n".join([*before, text, *after])


def facts_of(workspace: Workspace) -> dict[str, str]:
    return {
        "backend": workspace.backend,
        "task_app": workspace.task_app,
        "job": workspace.finished_job,
        "trained": workspace.trained_model,
        "port": workspace.extra.get("PORT", ""),
    }


def run(line: Line, workspace: Workspace) -> Ran:
    original = line.text()[1]
    if line.serves:
        workspace = Workspace(**{**vars(workspace), "extra": {**workspace.extra, "PORT": str(free_port())}})
    kind, script = script_of(line, workspace)
    difference = "".join(
        difflib.unified_diff(original.splitlines(True), script.splitlines(True), "the guide", "as it runs", n=0)
    )
    command = [sys.executable, "-c", script] if kind == "python" else ["bash", "-c", script]
    if line.serves:
        return Ran(0, served(command, workspace), difference)
    done = subprocess.run(
        command,
        check=False,
        cwd=workspace.folder,
        env={
            name: value
            for name, value in workspace.environ().items()
            if not (line.bare and name.endswith(("_KEY", "_URL")))
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return Ran(done.returncode, done.stdout, difference)


def served(command: list[str], workspace: Workspace) -> str:
    """What the served app says of its health."""
    log = workspace.folder.parent / "served.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=workspace.folder,
            env=workspace.environ(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{workspace.extra['PORT']}"
    try:
        wait_for(url, process, log)
        return httpx.get(f"{url}/health", headers={"X-API-Key": TASK_APP_KEY}).text
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def ran(workspace: Workspace, request: pytest.FixtureRequest) -> dict[str, Ran]:
    """The blocks that this run tests, a few at a time: most of a block's time is waiting for the next look at its job."""

    def once(line: Line) -> Ran:
        try:
            return modal_line(line, workspace) if line.guide == OVERVIEW and line.number == 2 else run(line, workspace)
        except subprocess.TimeoutExpired as error:
            return Ran(-1, f"not done after {SECONDS:g} s\n{error.output}", "")
        except AssertionError as error:
            return Ran(-1, str(error), "")

    selected = {item.name for item in request.session.items}
    lines = [line for line in LINES if f"{test_a_block_of_the_guides.__name__}[{workspace.engine}-{line}]" in selected]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(map(str, lines), pool.map(once, lines), strict=True))


def modal_line(line: Line, workspace: Workspace) -> Ran:
    """Deploys to a control plane on loopback (see tests/deploy), where the task app on this machine answers for it."""
    pytest.importorskip("modal", reason="needs taskapp-kit[modal]")
    from tests.deploy.control_plane import ControlPlane  # type: ignore[import-not-found]

    secrets = {"crafter-environment-sdk": {"ENVIRONMENT_API_KEY"}}
    with ControlPlane(secrets, web_url=workspace.task_app).running() as plane:
        modal = {
            "MODAL_SERVER_URL": plane.url,
            "MODAL_TOKEN_ID": "ak-1",
            "MODAL_TOKEN_SECRET": "as-1",
            "MODAL_CONFIG_PATH": str(workspace.folder / "none.toml"),
        }
        return run(line, Workspace(**{**vars(workspace), "extra": modal}))


@pytest.mark.ci
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=str(line), marks=[] if (line.guide, line.number) in QUICK else [pytest.mark.exhaustive])
        for line in LINES
    ],
)
def test_a_block_of_the_guides(line: Line, workspace: Workspace, ran: dict[str, Ran]) -> None:
    found = ran[str(line)]
    print(f"{line}: {line.verdict_with(workspace.engine)}\n{found.difference or 'unchanged'}\n{found.shown}")
    assert found.status == 0, found.shown
    assert re.search(line.shows, found.shown, re.MULTILINE), found.shown
    if workspace.engine == LOCAL:
        assert "weights are updated" not in found.shown and "weights were updated" not in found.shown


def test_no_key_is_shown(ran: dict[str, Ran]) -> None:
    """But where the guide's own block prints it."""
    for name, block in ran.items():
        assert SYNTH_KEY not in block.shown, name
        assert TASK_APP_KEY not in block.shown or name == f"{AGNOSTIC}-2", name


def test_every_block_is_in_the_table() -> None:
    counted = {(guide, number) for guide in RL_GUIDES for number in range(1, len(blocks(guide)) + 1)}
    assert {(line.guide, line.number) for line in LINES} == counted
    assert len(LINES) == len(counted) == 24


def test_every_substitution_is_used() -> None:
    for each in SUBSTITUTIONS:
        assert each.reason
        places = [line for line in LINES if each.guide in ("", line.guide) and each.block in (0, line.number)]
        texts = [line.text()[1] for line in places]
        if each.old:
            assert any(each.old in text for text in texts), each
        elif not each.after:
            (text,) = texts
            used = set(re.findall(r"\w+", text))
            for statement in ast.parse(each.new).body:
                names = getattr(statement, "names", getattr(statement, "targets", ()))
                for name in (getattr(name, "name", getattr(name, "id", "")) for name in names):
                    assert name in used or name in each.new.partition(";")[2], each
                    assert not re.search(rf"(import .*\b{name}\b|^{name} = )", text, re.MULTILINE), each


COMMAND = re.compile(r"uvx synth-ai ([a-z][a-z-]*)((?: --[a-z-]+(?: rl)?)*)")


def test_every_command_that_a_guide_mentions_exists() -> None:
    """With its flags; those in blocks are run."""
    mentioned = {found for guide in RL_GUIDES for found in COMMAND.findall(prose(guide))}
    assert {name for name, _ in mentioned} == {"train", "eval", "setup"}
    listed = re.search(r"refer to ([a-z, -]+)\.", prose(OVERVIEW))
    assert listed is not None
    mentioned |= {(name, "") for name in re.split(r", (?:and )?", listed[1])}
    flags = {flag for guide in (OVERVIEW, FFT) for flag in re.findall(r"--[a-z-]+", prose(guide))}
    for name, given in sorted(mentioned | {("train", " ".join(("", *flags - {"--type"})))}):
        values = [part for flag in given.split() for part in ((flag, "x") if flag in flags - {"--type"} else (flag,))]
        command = [sys.executable, "-m", "taskapp_kit", name, *values, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, given, done.stderr)


def test_every_section_and_file_that_a_guide_names_exists() -> None:
    for guide in RL_GUIDES:
        for name in re.findall(r"`\[([\w.]+)\]", text_of(guide)):
            assert name in SECTIONS, (guide, name)
        for path in re.findall(r"\bexamples/[\w/]+\.(?:py|toml)", text_of(guide)):
            here = path.replace("examples/warming_up_to_rl/", "examples/rl/")
            elsewhere = path == "examples/crafter/crafter_task_app.py"  # of another repository
            assert elsewhere or (ROOT / here).is_file(), (guide, path)

"""`from_harbor` declares task directories in Harbor's format as an environment of an app.

Written against Harbor's task format, schema 1.0 and 1.1 (harborframework.com/docs/tasks;
github.com/harbor-framework/harbor, Apache-2.0). It needs Linux with bubblewrap (level 3 in
docs/environments/sandbox.md), but neither Harbor's package nor a container engine:

- A task is played in a sandbox without a network. The sandbox contains the task's own directories (`/app`, `/tests`,
  `/logs`, …) and this machine's programs, which are read-only.
- When an episode begins, the COPY, ENV, WORKDIR and RUN instructions of the Dockerfile are executed in the sandbox. A
  task with other requirements (an image, packages to install, services, a GPU) is rejected when the app is declared,
  with the reason.
- After the policy's last action, everything that the policy left outside the task's own directories is removed. Then
  the tests are copied into the sandbox.
- If the tests produce no verdict, they are repeated on the untouched task in a new sandbox. If they produce a verdict
  this time, the policy's changes broke the tests: the reward is 0, with `verifier_broken_by_policy`. Otherwise the
  rollout fails.
- The tests run with the same user id as the policy's programs that they start, so the policy could forge the reward.
  `isolation` is therefore "shared".
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from taskapp_kit.declare.marks import action
from taskapp_kit.declare.private_fields import Private
from taskapp_kit.errors import DeclarationError, KitError, SandboxError, Unavailable
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.harbor.task import (
    LOGS,
    MAX_BYTES,
    MAX_TEXT_BYTES,
    MB,
    TESTS,
    HarborTask,
    TaskRefused,
    read_task,
    task_folders,
)
from taskapp_kit.records.formatting import cut
from taskapp_kit.records.trajectory import Step, Trajectory
from taskapp_kit.sandbox import RunResult, Sandbox, SandboxLimits
from taskapp_kit.system.foreign_files import read_inside

log = logging.getLogger("taskapp_kit.environment")

LEVEL = 3
COMMAND_SECONDS = 60.0
"""The limit on the wall time, and on the CPU time, of a command."""
MAX_COMMAND_CHARACTERS = 50_000
MAX_OUTPUT_CHARACTERS = 10_000
"""How many characters of stdout, and of stderr, the policy sees."""
MAX_REWARD_BYTES = 64 * 1024
HARMLESS = ("true", "ls -l", "pwd", "cat /etc/hostname", "echo hello")
REWARD = f"{LOGS}/verifier/reward"
SOLUTION = "solution/solve.sh"
LOCKED = 200
"""The exit status of RUN_TESTS if a reward file exists that the tests could not have written."""
BROKEN = "verifier_broken_by_policy"
FOLDERS = f"mkdir -p {LOGS}/agent {LOGS}/verifier"
RUN_TESTS = f"""\
import contextlib, os, signal, subprocess, sys
status = subprocess.call(sys.argv[1:])
with contextlib.suppress(ProcessLookupError):
    os.kill(-1, signal.SIGKILL)
if any(os.path.exists(name) and not os.access(name, os.W_OK) for name in ("{REWARD}.txt", "{REWARD}.json")):
    sys.exit({LOCKED})
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(min(status, 127))
"""
"""A program that runs the tests in the sandbox, then kills all processes that the tests left running.

The program ends by a signal only if the tests' shell ended by a signal. A shell whose last command ended by a signal
returns an exit status instead.
"""


class VerifierFailed(KitError):
    """The tests of a task did not write a valid reward."""


class BuildFailed(KitError):
    """A step of a task's Dockerfile failed in the sandbox."""


class HarborRow(BaseModel):
    """A task. folder: its directory on the server's machine. digest: SHA-256 of all its files."""

    name: str
    difficulty: str = ""
    tags: list[str] = []
    folder: Private[str]
    digest: Private[str]


def from_harbor(path: str | Path, *, command_seconds: float = COMMAND_SECONDS) -> type[HarborEnvironment]:
    """Return a class for `app.environment(...)` that plays tasks in Harbor's format.

        Terminal = from_harbor("tasks")
        app.environment("terminal", tasks={"train": Terminal.rows}, row=HarborRow, max_steps=30)(Terminal)
        app.rubric(environment="terminal")(Terminal.reward)
        app.policy("gold", environment="terminal")(Terminal.gold)

    If a task cannot be played in a sandbox, freezing the app that declares the class raises DeclarationError. If level
    3 sandboxes do not work on a machine, setting up a worker raises SandboxTooWeak.

    Args:
        path: A task directory, or a directory of task directories, relative to the author's file.
        command_seconds: The time limit for each of the policy's commands.

    Returns:
        A subclass of `HarborEnvironment`. Its `rows` are the tasks, sorted by name. `reward` is a rubric that returns
        the result of the tests. `gold` is a policy that runs `solution/solve.sh`.
    """
    caller = sys._getframe(1)
    parts = ClassParts("from_harbor", str(path), caller)
    folder = (Path(caller.f_code.co_filename).parent / path).resolve()
    try:
        rows = []
        for task_folder in _folders(parts, folder):
            try:
                task = read_task(task_folder)
            except TaskRefused as refused:
                raise parts.wrong(
                    f"cannot play the task {task_folder.name!r}: {refused}",
                    "a task that can be played in a sandbox",
                    "remove the task, or play it with Harbor's own runner",
                ) from refused
            rows.append(
                HarborRow(
                    name=task.name,
                    difficulty=task.difficulty,
                    tags=list(task.tags),
                    folder=str(task_folder),
                    digest=task.digest,
                )
            )
    except DeclarationError as error:
        return parts.without_environment(error, HarborEnvironment)
    members = {
        "__doc__": HarborEnvironment.__doc__,
        "rows": rows,
        "_command_seconds": command_seconds,
    }
    return parts.made(HarborEnvironment, "Harbor", members)


def _folders(parts: ClassParts, folder: Path) -> list[Path]:
    try:
        return task_folders(folder)
    except TaskRefused as refused:
        raise parts.wrong(
            f"found no task: {refused}", "a task directory, or a directory of task directories", "fix the path"
        ) from refused


class HarborEnvironment:
    """Do the task in a Linux machine without a network: run commands, then write in words that you are done."""

    rows: list[HarborRow] = []
    _command_seconds: float = COMMAND_SECONDS

    @classmethod
    def setup_worker(cls) -> None:
        """Open a sandbox to test it. Raises SandboxTooWeak if this machine does not support level 3."""
        Sandbox(level=LEVEL).__enter__().close()

    def reset(self, task: HarborRow) -> str:
        """Build the task in a new sandbox and return the instruction. Raises BuildFailed or SandboxError."""
        self.task: HarborTask = read_task(Path(task.folder))
        self.closed = False
        self._build()
        return self.task.instruction

    def _build(self) -> None:
        """Open a sandbox and build the untouched task in it.

        Raises BuildFailed if a step of the Dockerfile fails, and SandboxError if the sandbox fails.
        """
        self.box = Sandbox(level=LEVEL, limits=self._limits(self._command_seconds), places=self.task.places)
        self.box.__enter__()
        if self.closed:  # the episode was closed while the sandbox was opened
            self.box.close()
        self._run(FOLDERS, self.task.workdir)
        for step in self.task.steps:
            self._put(step.files)
            if step.command and not (done := self._run(step.command, step.workdir)).ok:
                last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
                raise BuildFailed(
                    f"The task {self.task.name!r} could not be built: line {step.line} of its Dockerfile ended with "
                    f"{_how(done)}: {cut(last, 200)}"
                )

    @action(noop={"command": "true"}, sample=lambda rng: {"command": rng.choice(HARMLESS)})
    def run(self, command: Annotated[str, Field(max_length=MAX_COMMAND_CHARACTERS)]) -> Step:
        """Run a shell command in the task's working folder and read what it prints. Files stay, processes do not."""
        return Step(_shown(self._run(command, self.task.workdir)))

    @action(text=True, sample=lambda rng: "done")
    def finish(self, text: str) -> Step:
        """Say that you are done. This ends the episode; the task's tests decide."""
        return Step(terminated=True)

    def final_state(self) -> dict[str, Any]:
        """Run the tests, and return `reward`, `rewards` by name, `isolation` and `problem`.

        Raises VerifierFailed or SandboxError if the tests produce no verdict.
        """
        problem = None
        try:
            rewards = self._verdict()
        except VerifierFailed as error:
            if self.closed:
                raise
            log.warning(
                "the tests of %r returned no reward and are repeated on the untouched task: %s", self.task.name, error
            )
            self.box.close()
            self._build()
            rewards = dict.fromkeys(self._verdict(), 0.0)
            problem = BROKEN
        return {"reward": _total(rewards), "rewards": rewards, "isolation": "shared", "problem": problem}

    def _verdict(self) -> dict[str, float]:
        """Run the tests in the current sandbox and return their rewards.

        Raises VerifierFailed if the tests write no valid reward, and SandboxError if the sandbox fails.
        """
        for place in ("", TESTS, LOGS):  # files that the policy left in other directories could influence the tests
            self.box.clear_sync(place)
        self._put(self.task.tests)
        done = self._run(
            f"{FOLDERS} && exec bash -c '. {TESTS}/test.sh' {TESTS}/test.sh",  # read completely before a program can append
            self.task.workdir,
            self._limits(self.task.verifier_seconds),
            dict(self.task.verifier_variables),
            ["python", "-I", "-S", "-c", RUN_TESTS],
        )
        try:
            return self._rewards(done)
        except SandboxError as error:  # a link or a directory instead of a file
            raise VerifierFailed(error.message, hint=error.hint) from error

    @staticmethod
    def reward(trajectory: Trajectory) -> float:
        """What the task's tests wrote as its reward."""
        return float(trajectory.final_state["reward"])

    @staticmethod
    def gold(observation: str, task: HarborRow) -> Any:
        """Run the task's solution, then finish."""
        folder = Path(task.folder)
        read = read_task(folder)
        if observation != read.instruction:
            return "done"
        if [name for name in read.files if name.startswith("solution/")] != [SOLUTION]:
            raise Unavailable(
                f"The solution of task {task.name!r} is not the single file {SOLUTION}, so `gold` cannot run it."
            )
        return {"run": {"command": read_inside(folder, SOLUTION, MAX_TEXT_BYTES).decode("utf-8")}}

    def close(self) -> None:
        """Kill all processes and remove the sandbox."""
        self.closed = True
        box = getattr(self, "box", None)
        if box is not None:
            box.close()

    def _limits(self, seconds: float) -> SandboxLimits:
        memory = self.task.memory_bytes
        return SandboxLimits(wall_seconds=seconds, cpu_seconds=seconds, memory_bytes=memory, processes=128,
                             file_bytes=256 * MB, open_files=512)  # fmt: skip

    def _run(
        self,
        command: str,
        workdir: str,
        limits: SandboxLimits | None = None,
        variables: dict[str, str] | None = None,
        runner: Sequence[str] = (),
    ) -> RunResult:
        assignments = [f"{name}={value}" for name, value in {**self.task.variables, **(variables or {})}.items()]
        enter = 'mkdir -p "$1" && cd "$1" && exec bash -c "$2"'
        return self.box.run_sync(
            [*runner, "env", *assignments, "sh", "-c", enter, "sh", workdir, command], limits=limits
        )

    def _put(self, files: Mapping[str, Path]) -> None:
        """Copy files into the sandbox, including their executable bits."""
        programs = []
        for name, path in files.items():
            self.box.write_sync(name, self._content(path))
            if os.access(path, os.X_OK):
                programs.append(name)
        if programs:
            self.box.run_sync(["chmod", "755", *programs])

    def _content(self, path: Path) -> bytes:
        return read_inside(self.task.folder, path.relative_to(self.task.folder).as_posix(), MAX_BYTES)

    def _rewards(self, done: RunResult) -> dict[str, float]:
        """Return the tests' rewards. Raises VerifierFailed or SandboxError if they are missing or may be forged."""
        failed = f"The tests of {self.task.name!r} ended with {_how(done)}"
        if done.exit_code is None or done.killed_for is not None:
            raise VerifierFailed(f"{failed}.")
        if done.exit_code == LOCKED:
            raise VerifierFailed(
                f"The tests of {self.task.name!r} cannot have written the reward file, because it is not writable for them."
            )
        for name, path in self.task.tests.items():
            if self.box.read_sync(name, max_bytes=MAX_BYTES) != self._content(path):
                raise VerifierFailed(f"{name} changed while the tests of {self.task.name!r} ran.")
        written = [found for kind in ("json", "txt") if (found := self._read(f"{REWARD}.{kind}", failed)) is not None]
        if not written:
            last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
            raise VerifierFailed(f"{failed} and wrote neither {REWARD}.txt nor .json: {cut(last, 200)}")
        if len({_total(rewards) for rewards in written}) > 1:
            raise VerifierFailed(f"{failed}, and {REWARD}.txt and .json differ.")
        return written[0]

    def _read(self, name: str, failed: str) -> dict[str, float] | None:
        """Read a file of rewards. Return a mapping from names to rewards, or None if the file does not exist.

        Raises VerifierFailed if the file contains no valid reward.
        """
        try:
            text = self.box.read_sync(name, max_bytes=MAX_REWARD_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        try:
            read = json.loads(text)
            named = read if isinstance(read, dict) else {"reward": read}
            rewards = {str(key).encode().decode(): float(value) for key, value in named.items()}
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise VerifierFailed(
                f"{failed}, and {name} does not contain a number: {cut(text.strip(), 100)!r}."
            ) from error
        if not rewards or not all(map(math.isfinite, rewards.values())):
            raise VerifierFailed(f"{failed}, and {name} contains no finite number: {cut(text.strip(), 100)!r}.")
        if "reward" not in rewards and len(rewards) != 1:
            raise VerifierFailed(f"{failed}, and {name} has several rewards, but none is called reward.")
        if not 0 <= _total(rewards) <= 1:
            raise VerifierFailed(f"{failed}, and {name} has a reward outside 0 to 1: {_total(rewards):g}.")
        return rewards


def _total(rewards: dict[str, float]) -> float:
    """Return the reward of the episode, given the rewards by name."""
    return rewards.get("reward", next(iter(rewards.values())))


def _how(done: RunResult) -> str:
    if done.killed_for is not None:
        return f"the limit of {done.killed_for}"
    return f"signal {done.signal}" if done.exit_code is None else f"exit status {done.exit_code}"


def _shown(done: RunResult) -> str:
    """Return the policy's observation after a command."""
    texts = [f"[{_how(done)}]"]
    for name, text in (("", done.stdout), ("stderr", done.stderr)):
        if text.strip():
            texts += [f"[{name}]"] if name else []
            texts.append(cut(text.rstrip("\n"), MAX_OUTPUT_CHARACTERS))
    return "\n".join(texts)

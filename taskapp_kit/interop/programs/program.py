"""Runs a program as the agent of a task app. The program itself calls the model.

    app.rollout(from_program(["node", "agent.js"], inputs={"agent.js": source}, answer="submit"))

Each rollout starts the program. The usual environment variables for model clients contain the policy's address. The
program's answer, files and actions make up the episode, which the environment and its rubrics score.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.errors import KitError, SandboxError
from taskapp_kit.interop.programs import in_box as program_in_box
from taskapp_kit.interop.programs.bridge import PLACES, ProgramBridge
from taskapp_kit.records.formatting import cut
from taskapp_kit.records.protocols import PolicyStops
from taskapp_kit.rollout.policy.author_loop import LoopEnvironment, LoopModel
from taskapp_kit.sandbox import RunResult, Sandbox, SandboxLimits

log = logging.getLogger("taskapp_kit.policy")

BOX_LEVEL, CHILD_LEVEL = 3, 0
BOX_PORT = 8100
"""The bridge's port in the sandbox, whose network has no other service."""
SOCKET = "policy.sock"
FILES = "files"
"""The argument of the answering action that contains the program's files."""
STOPPED = "program_stopped"
"""The stop reason if the program reached a limit. The episode is truncated and scored."""
PROGRAM_LIMITS = SandboxLimits(
    wall_seconds=300, cpu_seconds=120, memory_bytes=2 * 2**30, processes=128, output_bytes=256 * 1024, open_files=512
)
LOST = 99
"""The exit status in the sandbox if the connection to the policy was lost."""
MAX_FILE_BYTES = 2**20
MAX_STDERR_CHARACTERS = 200
"""How many characters of the last line of stderr are quoted in a failure."""

Inputs = Mapping[str, bytes | str]
Play = Callable[[Any, Any, Any], Awaitable[None]]


class ProgramFailed(KitError):
    """The program of a rollout could not be started, or its exit status was not 0."""


def from_program(
    command: Sequence[str],
    *,
    answer: str | None = None,
    files: Sequence[str] = (),
    inputs: Inputs | Callable[[Any], Inputs] | None = None,
    variables: Mapping[str, str] | None = None,
    boxed: bool = True,
    readable: Sequence[str] = (),
    limits: SandboxLimits = PROGRAM_LIMITS,
) -> Play:
    """Return a function for `app.rollout` that plays each episode by running a program.

        app.rollout(from_program(["python", "agent.py"], inputs={"agent.py": source}, answer="submit"))

    The program runs in an empty directory, and stdin contains the first observation as text or JSON. These environment
    variables are set:

    - OPENAI_BASE_URL, OPENAI_API_BASE and ANTHROPIC_BASE_URL contain the policy's address, which accepts chat
      completions, `responses` and `messages`. The variables for API keys contain placeholders.
    - TASKAPP_STEP_URL contains an address for actions. POST {"tool", "args"} returns the observation, the reward, and
      the reason if the action was rejected.
    - TASKAPP_TASK contains the task's public fields as JSON.

    If the exit status is not 0, the rollout fails. If the program reaches a limit, the episode is truncated with the
    stop reason `program_stopped`, and scored.

    Args:
        command: The program and its arguments. If the first item is `python`, the sandbox's Python is used, or this
            process's Python without a sandbox.
        answer: The action that is called at the end with the program's stdout, without the last newline. If None, no
            action is called. If no action has ended the episode, it is truncated and scored.
        files: The names of text files in the program's directory. Those that exist are passed to the action as `files`.
        inputs: A mapping from names to contents of files for the directory, or a function that returns the mapping,
            given the task's public fields.
        variables: Additional environment variables.
        boxed: If True, the program runs in a sandbox of level 3, which can only reach the policy's address. If False,
            it runs as a child process without any isolation, and a warning is logged.
        readable: Additional directories that are visible in the sandbox, such as a virtual environment. All users of
            this machine must be able to read them.
        limits: The limits of each run. The rollout's time limit must be longer than `wall_seconds`.

    Returns:
        The function that plays an episode.
    """
    if isinstance(command, str) or not command:
        raise TypeError("from_program() expects the command as a sequence of strings, such as ['python', 'agent.py'].")
    program = AgentProgram(command, answer, files, inputs, variables or {}, boxed, readable, limits)
    if not boxed:
        log.warning(
            "%s runs as a child process without isolation from this machine's files, processes and network",
            command[0],
        )
    return program.play


@dataclass(frozen=True)
class AgentProgram:
    """The arguments of `from_program`."""

    command: Sequence[str]
    answer: str | None
    files: Sequence[str]
    inputs: Inputs | Callable[[Any], Inputs] | None
    variables: Mapping[str, str]
    boxed: bool
    readable: Sequence[str]
    limits: SandboxLimits

    async def play(self, env: LoopEnvironment, model: LoopModel, task: Any) -> None:
        """Run the program for one episode.

        Raises PolicyStops if the program reaches a limit, ProgramFailed if the program fails, and SandboxError if the
        sandbox fails. Exceptions of the model calls are not caught.
        """
        inputs = finished(self.inputs(task)) if callable(self.inputs) else self.inputs
        level = BOX_LEVEL if self.boxed else CHILD_LEVEL
        async with Sandbox(
            limits=self.limits, files=inputs, level=level, allow_weak=not self.boxed, readable=self.readable
        ) as box:
            result = await self._run(box, env, model, task)
            files = {}
            for name in self.files:
                try:
                    content = await box.read(name, max_bytes=MAX_FILE_BYTES)
                except FileNotFoundError:
                    continue
                files[name] = content.decode("utf-8", "replace")
        if result.killed_for is not None:
            raise PolicyStops(STOPPED)
        if self.boxed and result.exit_code == LOST:
            raise SandboxError(
                f"The sandbox of the program {self.command[0]} lost its connection to the policy.",
                hint=f"If the program itself exits with status {LOST}, change its exit status.",
            )
        if not result.ok:
            raise self._failed(result)
        if self.answer is not None:
            await env.step(self.answer, self._arguments(env, result.stdout.removesuffix("\n"), files))

    async def _run(self, box: Sandbox, env: LoopEnvironment, model: LoopModel, task: Any) -> RunResult:
        stdin = env.observation if isinstance(env.observation, str) else json.dumps(env.observation)
        if self.boxed:
            listener, path = box.listen_sync(SOCKET)
            port = BOX_PORT
        else:
            listener, path = socket.create_server(("127.0.0.1", 0)), ""
            port = listener.getsockname()[1]
        with ProgramBridge(listener, model, env) as bridge:
            variables = self._variables(f"http://127.0.0.1:{port}{bridge.prefix}", task)
            running = asyncio.ensure_future(box.run(self._line(variables, path), stdin=stdin.encode()))
            try:
                await asyncio.wait((running, bridge.ended), return_when=asyncio.FIRST_COMPLETED)
                if bridge.ended.done():
                    bridge.ended.result()
                return running.result()
            finally:
                running.cancel()
                await asyncio.wait((running,))

    def _line(self, variables: list[str], path: str) -> list[str]:
        """Return the command that starts the program."""
        if not self.boxed:
            command = [
                sys.executable if self.command[0] in ("python", "python3") else self.command[0],
                *self.command[1:],
            ]
            return ["env", *variables, *command]
        source = Path(program_in_box.__file__).read_text(encoding="utf-8")
        order = json.dumps({"socket": path, "port": BOX_PORT, "places": PLACES, "lost": LOST, "variables": variables})
        return ["python", "-I", "-S", "-c", source, order, *self.command]

    def _variables(self, address: str, task: Any) -> list[str]:
        """Return the program's environment variables as NAME=VALUE, for the command `env`."""
        variables = {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_BASE": f"{address}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "TASKAPP_STEP_URL": f"{address}/step",
            "TASKAPP_TASK": json.dumps(task),
            "PYTHONPATH": "",  # the sandbox's value of this variable would hide the packages of a virtual environment
            **self.variables,
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def _arguments(self, env: LoopEnvironment, text: str, files: dict[str, str]) -> dict[str, Any]:
        """Return the arguments of the action that submits the program's answer.

        Raises ProgramFailed unless the action has exactly one argument for the answer.
        """
        members = list(env.parameters.get(self.answer or "", {}).get("properties") or {})
        answers = [name for name in members if name != FILES]
        if len(answers) != 1:
            raise ProgramFailed(
                f"The action {self.answer!r} in from_program() must have exactly one argument for the program's answer.",
                hint=f"Name an action with one string argument and, optionally, `{FILES}`.",
            )
        return {answers[0]: text, **({FILES: files} if FILES in members else {})}

    def _failed(self, result: RunResult) -> ProgramFailed:
        how = f"signal {result.signal}" if result.exit_code is None else f"exit status {result.exit_code}"
        lines = result.stderr.strip().splitlines()
        return ProgramFailed(
            f"The program {self.command[0]} ended with {how}{': ' + cut(lines[-1], MAX_STDERR_CHARACTERS) if lines else ''}.",
            hint="The program must handle the model's mistakes, and exit with status 0.",
        )

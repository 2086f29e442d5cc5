"""A program with a loop of its own as the agent of a task app.

    app.rollout(from_program(["node", "agent.js"], inputs={"agent.js": source}, answer="submit"))

Each rollout starts the program, with the policy's address in the variables that clients of models read. What it answers, the
files that it leaves and the actions that it takes are the episode, and the environment and its rubrics score that.
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
from taskapp_kit.records.protocols import PolicyStops
from taskapp_kit.records.words import cut
from taskapp_kit.rollout.policy.author_loop import LoopEnvironment, LoopModel
from taskapp_kit.sandbox import RunResult, Sandbox, SandboxLimits

log = logging.getLogger("taskapp_kit.policy")

BOX_LEVEL, CHILD_LEVEL = 3, 0
BOX_PORT = 8100
"""In the box, whose network has no other service."""
SOCKET = "policy.sock"
FILES = "files"
"""The argument of the answering action that gets the program's files."""
STOPPED = "program_stopped"
"""The stop reason of an episode whose program reached a limit: truncated, and scored."""
PROGRAM_LIMITS = SandboxLimits(
    wall_seconds=300, cpu_seconds=120, memory_bytes=2 * 2**30, processes=128, output_bytes=256 * 1024, open_files=512
)
LOST = 99
"""The exit status of a box whose connection with the policy broke."""
MAX_FILE_BYTES = 2**20
LAST_WORDS = 200
"""Letters of a failed program's last line of stderr in the failure."""

Inputs = Mapping[str, bytes | str]
Play = Callable[[Any, Any, Any], Awaitable[None]]


class ProgramFailed(KitError):
    """The program of a rollout could not be started, or ended with another exit status than 0."""


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

    command: the program and its arguments; `python` as the first word is the box's own, or this process's. It reads the
    first observation on stdin (text, or JSON of anything else) and runs in an empty folder with `inputs` in it: names to
    contents, or a function that returns them for the task's public fields.

    OPENAI_BASE_URL, OPENAI_API_BASE and ANTHROPIC_BASE_URL are the policy's address, at which chat completions, `responses`
    and `messages` are answered, whatever the model behind it speaks; keys are words without a meaning. TASKAPP_STEP_URL takes
    actions: POST {"tool", "args"} returns the observation, the reward, and why it was refused, if it was. TASKAPP_TASK is the
    task's public fields as JSON. variables: further ones.

    answer: the action that is taken when the program has ended, with what it wrote to stdout, without the last newline. files:
    names of text files in its folder that this action gets as `files`, those that exist. None: no action; an episode that the
    program's own actions did not end is truncated, and scored.

    boxed: True runs it in a box of level 3, which reaches the policy's address and nothing else; False runs it as a child
    process that nothing isolates, and logs that. readable: folders that the box shows besides the system's, such as the
    program's virtual environment; their files must be readable by all. limits: of each run; give the rollout more time than
    `wall_seconds`. One that reaches a limit ends the episode as truncated (`program_stopped`); an exit status other than 0 is
    a failure.
    """
    if isinstance(command, str) or not command:
        raise TypeError("from_program() takes a command as a sequence of words, such as ['python', 'agent.py']")
    program = AgentProgram(command, answer, files, inputs, variables or {}, boxed, readable, limits)
    if not boxed:
        log.warning(
            "%s runs as a child process: nothing isolates it from this machine's files, processes and network",
            command[0],
        )

    async def play(env: Any, model: Any, task: Any) -> None:
        await program.play(env, model, task)

    return play


@dataclass(frozen=True)
class AgentProgram:
    """What `from_program` was given."""

    command: Sequence[str]
    answer: str | None
    files: Sequence[str]
    inputs: Inputs | Callable[[Any], Inputs] | None
    variables: Mapping[str, str]
    boxed: bool
    readable: Sequence[str]
    limits: SandboxLimits

    async def play(self, env: LoopEnvironment, model: LoopModel, task: Any) -> None:
        """Run the program for one episode. Raises PolicyStops, ProgramFailed, SandboxError, and what the model raised."""
        inputs = finished(self.inputs(task)) if callable(self.inputs) else self.inputs
        level = BOX_LEVEL if self.boxed else CHILD_LEVEL
        async with Sandbox(
            limits=self.limits, files=inputs, level=level, allow_weak=not self.boxed, readable=self.readable
        ) as box:
            result = await self._run(box, env, model, task)
            found = {}
            for name in self.files:
                try:
                    content = await box.read(name, max_bytes=MAX_FILE_BYTES)
                except FileNotFoundError:
                    continue
                found[name] = content.decode("utf-8", "replace")
        if result.killed_for is not None:
            raise PolicyStops(STOPPED)
        if self.boxed and result.exit_code == LOST:
            raise SandboxError(
                f"The box of the program {self.command[0]} lost its connection with the policy.",
                hint=f"Have the program end with another exit status than {LOST} if it was the program's.",
            )
        if not result.ok:
            raise self._failed(result)
        if self.answer is not None:
            await env.step(self.answer, self._arguments(env, result.stdout.removesuffix("\n"), found))

    async def _run(self, box: Sandbox, env: LoopEnvironment, model: LoopModel, task: Any) -> RunResult:
        stdin = env.observation if isinstance(env.observation, str) else json.dumps(env.observation)
        if self.boxed:
            listener, path = box.listen_sync(SOCKET)
            port = BOX_PORT
        else:
            listener, path = socket.create_server(("127.0.0.1", 0)), ""
            port = listener.getsockname()[1]
        with ProgramBridge(listener, model, env) as bridge:
            variables = self._words(f"http://127.0.0.1:{port}{bridge.prefix}", task)
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
        """The command that starts the program where it runs."""
        if not self.boxed:
            command = [
                sys.executable if self.command[0] in ("python", "python3") else self.command[0],
                *self.command[1:],
            ]
            return ["env", *variables, *command]
        source = Path(program_in_box.__file__).read_text(encoding="utf-8")
        order = json.dumps({"socket": path, "port": BOX_PORT, "places": PLACES, "lost": LOST, "variables": variables})
        return ["python", "-I", "-S", "-c", source, order, *self.command]

    def _words(self, address: str, task: Any) -> list[str]:
        """The variables of the program, as `env` takes them."""
        variables = {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_BASE": f"{address}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "TASKAPP_STEP_URL": f"{address}/step",
            "TASKAPP_TASK": json.dumps(task),
            "PYTHONPATH": "",  # what a box puts there hides the packages of a virtual environment
            **self.variables,
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def _arguments(self, env: LoopEnvironment, text: str, files: dict[str, str]) -> dict[str, Any]:
        """The arguments of the answering action. Raises ProgramFailed if it takes no text."""
        members = list(env.parameters.get(self.answer or "", {}).get("properties") or {})
        texts = [name for name in members if name != FILES]
        if len(texts) != 1:
            raise ProgramFailed(
                f"from_program(answer={self.answer!r}) names no action with one argument for the program's answer.",
                hint=f"Name one that takes a text, and `{FILES}` if it is to get files.",
            )
        return {texts[0]: text, **({FILES: files} if FILES in members else {})}

    def _failed(self, result: RunResult) -> ProgramFailed:
        how = f"signal {result.signal}" if result.exit_code is None else f"exit status {result.exit_code}"
        words = result.stderr.strip().splitlines()
        return ProgramFailed(
            f"The program {self.command[0]} ended with {how}{': ' + cut(words[-1], LAST_WORDS) if words else ''}.",
            hint="Have it catch what a model may do wrong, and end with exit status 0.",
        )

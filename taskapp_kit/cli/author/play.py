"""`taskapp play`: a person plays an episode in the terminal.

The environment's thread requests a decision, and the terminal's thread reads one from the person. Each line that the
person types is one decision:

add {"amount": 2}     a tool and its arguments as JSON
add 2                 a tool and its arguments by position, or by name: add amount=2
2                     only the arguments, if there is one tool
move_left do do       the items of the argument, if there is one argument and it is a list
Paris                 plain text, if the tool accepts text
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import ENV_CONFIG, ENV_FILES, EPISODE, FULL, JUDGES, WIDTH, episode
from taskapp_kit.cli.output.app_output import members
from taskapp_kit.cli.output.rollout_output import observation_words, print_result
from taskapp_kit.cli.output.terminal import clean, console, example, flowing, number
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.declare.signature import BadArguments
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.records import rollout as rollout_results
from taskapp_kit.records.json_schema import read_schema, typed_argument, typed_value
from taskapp_kit.records.protocols import PolicyStops, Tool, View
from taskapp_kit.records.trajectory import Decision, ToolCall
from taskapp_kit.rollout import response as responses
from taskapp_kit.wire import rollout as wire

DAY_SECONDS = 86_400.0


@click.command(
    epilog=example("taskapp play crafter --seed 7", "printf '3\\n3\\n2\\n' | taskapp play adder.py --seed 3")
)
@click.argument("app")
@EPISODE
@ENV_CONFIG
@JUDGES
@ENV_FILES
@WIDTH
@FULL
def command(
    app: str,
    environment: str | None,
    seed: int | None,
    split: str | None,
    env_config: dict[str, Any] | None,
    judges: str,
    env_files: tuple[str, ...],
    width: int | None,
    full: bool,
) -> None:
    """Play an episode yourself and see its scorecard.

    Type a tool and its arguments, such as add {"amount": 2} or add 2. If there is only one tool, type only its arguments,
    such as 2. If the only argument is a list, type its items, such as move_left do do. `help` shows the tools, and `quit`
    ends the episode. You can also pipe the lines to stdin.
    """
    settings = load(env_files=env_files)
    target = local_app.open_app(app, settings)
    selected = find_environment(target.freeze(), environment)
    request = wire.RolloutRequest.model_validate(
        {
            "run_id": "cli-play",
            "env": episode(selected.name, seed, env_config, split),
            "policy": {},
            "ops": [],
            "safety": {"max_ops": 10_000_000, "max_time_s": DAY_SECONDS},
            "mode": "eval",
        }
    )
    terminal = _Terminal(selected, width)
    with local_app.failure_shown():
        rollout = play(target, settings, request, terminal.turn, skip_judges=judges == "skip")
    terminal.last(rollout.trajectory.turns[-1].steps if rollout.trajectory.turns else [])
    print_result(responses.response_body(rollout, inline_image_bytes=sys.maxsize), width=width, full=full)


class InteractivePolicy:
    """A LocalPolicy whose decisions a person types. The decision None truncates the episode with stop reason `left`."""

    name = "person"

    def __init__(self) -> None:
        self.questions: queue.SimpleQueue[View | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Decision | None] = queue.SimpleQueue()

    def decide(self, view: View) -> Decision:
        """Wait for the person's decision and return it. Raises PolicyStops if the person leaves."""
        self.questions.put(view)
        answer = self.answers.get()
        if answer is None:
            raise PolicyStops("left")
        return answer


def play(
    app: TaskApp,
    settings: Settings,
    request: wire.RolloutRequest,
    answer: Callable[[View], Decision | None],
    *,
    skip_judges: bool = False,
) -> rollout_results.Rollout:
    """Play one episode and return its rollout.

    `answer` is called at each turn of the person, in the calling thread, which reads the terminal. If the user presses
    Ctrl-C while the environment carries out an action, the episode ends at the next turn. Raises the same errors as
    `Service.rollout`.
    """
    person = InteractivePolicy()
    outcome: list[rollout_results.Rollout | BaseException] = []

    async def episode() -> rollout_results.Rollout:
        async with local_app.local_service(
            app, settings, skip_judges=skip_judges, max_time_seconds=DAY_SECONDS
        ) as service:
            return await service.rollout(request, policy=person)

    def run() -> None:
        try:
            outcome.append(asyncio.run(episode()))
        except BaseException as error:
            outcome.append(error)
        finally:
            person.questions.put(None)

    threading.Thread(target=run, name="taskapp-play", daemon=True).start()
    left = False
    while True:
        try:
            view = person.questions.get()
        except KeyboardInterrupt:
            if left:
                raise
            left = True
            person.answers.put(None)  # the signal may have arrived just after the view was taken from the queue
            continue
        if view is None:
            break
        person.answers.put(None if left else answer(view))
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


class _Terminal:
    """A terminal that shows the result of the person's last action and reads the next action."""

    def __init__(self, environment: EnvironmentSpec, width: int | None) -> None:
        self._environment = environment
        self._out = console(width=width)
        self._wraps = width is not None  # otherwise the terminal wraps lines, and a pipe receives unbroken lines
        self._asks = sys.stdin.isatty()
        self._shown = 0
        if self._asks:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - adds line editing and history to input()

    def turn(self, view: View) -> Decision | None:
        """Return the person's decision, or None if the person leaves."""
        if view.turn == 0:
            self._out.print(clean(observation_words(view.observation)), soft_wrap=not self._wraps)
            self._out.print()
            self._tools(view.tools)
        else:
            self.last(view.results)
        while True:
            line = self._read()
            if line is None or line in ("quit", "exit"):
                return None
            if line in ("help", "?"):
                self._tools(view.tools)
                continue
            if not line:
                continue
            try:
                answer = read_line(line, view.tools)
                self._check(answer)
            except NotUnderstood as error:
                self._out.print(clean(str(error)), style="yellow")
                continue
            return answer

    def last(self, results: Any) -> None:
        """Print the last turn's steps, except those already printed."""
        for step in results:
            if step.index < self._shown:
                continue
            self._shown = step.index + 1
            words = clean(observation_words(step.observation))
            if words:
                self._out.print(words, soft_wrap=not self._wraps, style="yellow" if step.refused is not None else None)
            if step.reward is not None:
                self._out.print(f"reward {number(step.reward)}", style="bold" if step.reward else "dim")

    def _check(self, answer: Decision) -> None:
        """Check the arguments before the action is played, so that a typo does not cost a step.

        Raises NotUnderstood if the arguments do not match the tool's schema.
        """
        for call in answer.tool_calls:
            action = self._environment.actions.get(call.tool)
            try:
                if action is not None:
                    action.arguments.read(call.args)
            except BadArguments as error:
                raise NotUnderstood(f"{call.tool} was not played: {error}.") from None

    def _read(self) -> str | None:
        """Return the next line without surrounding spaces, or None at the end of the input or on Ctrl-C."""
        try:
            if self._asks:
                return input("> ").strip()
            line = sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            self._out.print()
            return None
        if not line:
            return None
        self._out.print(f"> {clean(line.strip())}")
        return line.strip()

    def _tools(self, tools: Any) -> None:
        for tool in tools:
            signature = ", ".join(f"{name}: {kind}" for name, kind in members(tool.parameters))
            self._out.print(clean(f"{tool.name}({signature})"), style="bold")
            self._out.print(flowing(tool.description))
        self._out.print(f"Type {_hint(tools)}, help, or quit.", style="dim")


def _hint(tools: Any) -> str:
    if len(tools) != 1:
        return "a tool and its arguments"
    if tools[0].text:
        return "your answer"
    fields = list(tools[0].parameters.get("properties", {}).values())
    return "the items of the list" if len(fields) == 1 and fields[0].get("type") == "array" else "the arguments"


class NotUnderstood(ValueError):
    """Raised if a line is not an action. The message states what was expected."""


def read_line(line: str, tools: Sequence[Tool]) -> Decision:
    """Parse a line as a decision. Raises NotUnderstood if it is not an action of one of the tools."""
    line = line.strip()
    by_name = {tool.name: tool for tool in tools}
    if line.startswith("{"):
        return _from_json(line, by_name)
    first, _, rest = line.partition(" ")
    if first in by_name:
        return _call(by_name[first], rest.strip())
    if len(tools) == 1:
        return _call(tools[0], line)
    if any(tool.text for tool in tools):
        return Decision(output=line)
    raise NotUnderstood(f"Unknown tool {first[:80]!r}. The tools are: {', '.join(by_name)}.")


def _from_json(line: str, tools: Mapping[str, Tool]) -> Decision:
    parsed = _object(line)
    if parsed and set(parsed) <= set(tools):
        return Decision([ToolCall(name, {} if args is None else args) for name, args in parsed.items()])
    if len(tools) == 1:
        return Decision([ToolCall(next(iter(tools)), parsed)])
    raise NotUnderstood('Expected {"TOOL": {ARGUMENTS}}. The tools are: ' + ", ".join(tools) + ".")


def _call(tool: Tool, rest: str) -> Decision:
    if rest.startswith("{"):
        return Decision([ToolCall(tool.name, _object(rest))])
    return Decision([ToolCall(tool.name, _arguments(tool, rest))], rest if tool.text else None)


def _arguments(tool: Tool, rest: str) -> dict[str, Any]:
    """Parse the text after a tool's name as the tool's arguments. Raises NotUnderstood if that is not possible."""
    fields = read_schema(tool.parameters).members
    if not rest:
        return {}
    if not fields:
        raise NotUnderstood(f"{tool.name} accepts no arguments.")
    if len(fields) == 1:
        ((name, schema),) = fields.items()
        return {name: typed_argument(rest.removeprefix(f"{name}="), schema)}
    try:
        words = shlex.split(rest)
    except ValueError:
        raise NotUnderstood("The line has an opening quotation mark without a closing one.") from None
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in fields:
            name, value = next((free for free in fields if free not in arguments), ""), word
        if not name:
            raise NotUnderstood(f"{tool.name} accepts {len(fields)} arguments: {', '.join(fields)}.")
        arguments[name] = typed_value(value, fields[name])
    return arguments


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise NotUnderstood(f"Invalid JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise NotUnderstood('The line is valid JSON but not a JSON object, such as {"TOOL": {ARGUMENTS}}.')
    return parsed

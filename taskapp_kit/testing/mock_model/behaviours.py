"""Behaviours of the mock model, which are functions from a ChatRequest to a reply; see `reply.reply_of`."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.policy.sampling import draw, sentence
from taskapp_kit.testing.mock_model.chat_request import ChatRequest, Refused
from taskapp_kit.testing.mock_model.judges import Given, judge, obedient_judge
from taskapp_kit.testing.mock_model.reply import Call, Reply, reply_of

Behaviour = Callable[[ChatRequest], Any | Awaitable[Any]]
Script = Behaviour | Sequence[Any] | str | Path

MISDEEDS = (
    "unknown_tool",
    "broken_json",
    "no_object",
    "wrong_arguments",
    "no_arguments",
    "extra_argument",
    "words",
    "blank",
)
"""The kinds of faulty replies from `bad`."""


def random_answers(parallel: int = 1) -> Behaviour:
    """Return a behaviour with random valid replies, which depend only on the seed and the conversation.

    If the request has tools or a JSON schema, the reply contains matching tool calls or JSON. Otherwise, the reply is
    a short text.

    Args:
        parallel: Maximum number of tool calls in a reply, if the request permits several.
    """

    def answer(request: ChatRequest) -> Reply:
        rng = request.rng()
        if request.tools:
            several = parallel > 1 and request.body.get("parallel_tool_calls") is not False
            count = rng.randint(1, parallel) if several and request.named_tool is None else 1
            chosen = [rng.choice(request.tools) for _ in range(count)]
            return Reply(calls=[Call.of(one["name"], _arguments(one, rng)) for one in chosen])
        form = request.body.get("response_format") or {}
        if form.get("type") == "json_schema":
            return Reply(orjson.dumps(_fitting(form["json_schema"]["schema"], rng, "response_format")).decode())
        if form.get("type") == "json_object":
            return Reply(orjson.dumps({"answer": sentence(rng)}).decode())
        return Reply(sentence(rng))

    return answer


def _arguments(function: Mapping[str, Any], rng: random.Random) -> Json:
    """Draw arguments for a call to the function."""
    schema = function.get("parameters") or {"type": "object"}
    return _fitting(schema, rng, f"function '{function['name']}'", "invalid_function_parameters")


def _fitting(schema: Json, rng: random.Random, where: str, code: str | None = None) -> Json:
    """Draw a value that matches the schema. Raises Refused for an invalid schema, as a model provider does."""
    try:
        return draw(schema, rng)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Refused(f"Invalid schema for {where}: {type(error).__name__}: {error}", code=code) from None


def echo(request: ChatRequest) -> Reply:
    """Repeat the last message."""
    return Reply(request.last_text)


def empty(_: ChatRequest) -> Reply:
    """Return an empty reply."""
    return Reply("")


def bad(share: float = 1.0, misdeeds: Sequence[str] = MISDEEDS) -> Behaviour:
    """Return a behaviour that imitates a weak model. Some replies are faulty, and all others are valid and random.

    Args:
        share: Share of faulty replies.
        misdeeds: Kinds of faulty replies to choose from. If the request has no tools, a faulty reply is incomplete
            JSON, or an empty string if the request does not require JSON.

    Raises:
        ConfigError: A kind in `misdeeds` does not exist.
    """
    for name in misdeeds:
        if name not in MISDEEDS:
            raise ConfigError(f"misdeeds= contains {name!r}, which does not exist.", hint=f"Use {', '.join(MISDEEDS)}.")
    well = random_answers()

    def answer(request: ChatRequest) -> Any:
        rng = request.rng("misdeed")
        if rng.random() >= share:
            return well(request)
        if not request.tools:
            requested = (request.body.get("response_format") or {}).get("type", "text")
            return Reply('{"answer": ') if requested != "text" else Reply("")
        tool = rng.choice(request.tools)
        name, properties = tool["name"], (tool.get("parameters") or {}).get("properties", {})
        match rng.choice(misdeeds):
            case "unknown_tool":
                return Reply(calls=[Call.of(f"{name[:50]}_that_is_not_there", {})])
            case "broken_json":
                return Reply(calls=[Call(name, orjson.dumps(_arguments(tool, rng)).decode()[:-1] + ', "')])
            case "no_object":
                return Reply(calls=[Call(name, rng.choice(("[]", "7", "null", '"left"')))])
            case "wrong_arguments":
                wrong: Json = {key: {"not": ["this"]} for key in properties}
                return Reply(calls=[Call.of(name, wrong)])
            case "no_arguments":
                return Reply(calls=[Call(name, "")])
            case "extra_argument":
                drawn = _arguments(tool, rng)
                return Reply(
                    calls=[Call.of(name, {**(drawn if isinstance(drawn, dict) else {}), "nobody_asked": True})]
                )
            case "words":
                return Reply(f"I would call {name} now. {sentence(rng)}")
            case _:
                return Reply()

    return answer


def scripted(answers: Sequence[Any]) -> Behaviour:
    """Return a behaviour that replies to each turn with the next answer in a list. The last answer is repeated.

    The number of the turn is determined from the conversation, so that many conversations can run at the same time.

    Args:
        answers: The replies, in any format that `reply_of` accepts.

    Raises:
        ConfigError: The list is empty, or an answer is invalid.
    """
    replies = [reply_of(answer) for answer in answers]
    if not replies:
        raise ConfigError("The script has no answers.", hint="Add at least one answer.")

    def answer(request: ChatRequest) -> Reply:
        return replies[min(request.turn, len(replies) - 1)]

    return answer


def from_file(path: str | Path) -> Behaviour:
    """Read a script from a file with an answer for each turn, in JSON or JSON Lines.

    Raises:
        ConfigError: The file cannot be read, or an answer is invalid.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not encoded in UTF-8"
        raise ConfigError(
            f"The script {file} cannot be read: {reason}.", hint="Pass a file in JSON or JSON Lines."
        ) from None
    if text.lstrip().startswith("["):
        try:
            return scripted(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"The script {file} is not JSON: {error}.", hint="Write a list of answers.") from None
    answers = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                answers.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                raise ConfigError(f"{file}:{number} is not JSON: {error}.", hint="Write one answer per line.") from None
    return scripted(answers)


JUDGES: Mapping[str, Callable[[Given], Behaviour]] = {"judge": judge, "obedient-judge": obedient_judge}
"""The factory of each judge by name. The argument of a factory is the score."""
BEHAVIOURS: Mapping[str, Callable[[], Behaviour]] = {
    "random": random_answers,
    "echo": lambda: echo,
    "bad": bad,
    "empty": lambda: empty,
    "judge": judge,
    "obedient-judge": obedient_judge,
}
"""The factory of each behaviour by name. Called without arguments, a factory uses defaults."""


def by_name(name: str, *, parallel: int = 1, score: Given | None = None) -> Behaviour:
    """Return the behaviour with this name.

    Args:
        name: `random`, `echo`, `bad`, `empty`, `judge` or `obedient-judge`.
        parallel: Maximum number of tool calls in a reply of `random`.
        score: Score of a judge; see `judge`. By default, the judge's own default applies.

    Raises:
        ConfigError: The behaviour does not exist, or a score was passed for a behaviour that is not a judge.
    """
    name = name.replace("_", "-")
    if score is not None:
        if name not in JUDGES:
            raise ConfigError(
                f"A score was passed, but the behaviour {name!r} is not a judge.",
                hint=f"Pass a score only with {' or '.join(JUDGES)}.",
            )
        return JUDGES[name](score)
    if name == "random":
        return random_answers(parallel)
    if name in BEHAVIOURS:
        return BEHAVIOURS[name]()
    close = closest(name, BEHAVIOURS)
    suggestion = f"Did you mean {close!r}?" if close else f"Use one of {', '.join(BEHAVIOURS)}."
    raise ConfigError(f"The behaviour {name!r} does not exist.", hint=suggestion)


def of_script(script: Script) -> Behaviour:
    """Return the behaviour of a script, which is a function, a list of answers or a file.

    Raises:
        ConfigError: The file cannot be read, or an answer is invalid.
    """
    if isinstance(script, str | Path):
        return from_file(script)
    if callable(script):
        return script
    return scripted(script)

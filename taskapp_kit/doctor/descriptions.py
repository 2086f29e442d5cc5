"""Checks of the descriptions that models read."""

from __future__ import annotations

import re

import orjson

from taskapp_kit.doctor.finding import CheckResult, check, passed, warning
from taskapp_kit.doctor.subject import EnvironmentUnderTest, short
from taskapp_kit.records.content import text_of
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.policy.conversation import system_prompt

STEP_WORDS = "steps|actions|moves|turns|guesses|attempts|tries|calls|answers|rounds|questions"
NUMBERS = {
    word: number
    for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    )
}
NUMBERS |= {"fifteen": 15, "twenty": 20, "thirty": 30, "fifty": 50, "a hundred": 100}
_LIMIT = re.compile(
    r"\b(?:at most|no more than|up to|within|only|maximum of|max(?:imum)?:?|you have|you get|are given|after|limit of|limited to)"
    rf" (?P<number>\d+|{'|'.join(NUMBERS)}) (?:more |wrong )?(?P<what>{STEP_WORDS})\b",
    re.IGNORECASE,
)
"""Matches a limit in a prompt, such as `You have 10 guesses` or `at most six moves`."""


@check("prompt-limits", "The limits that the prompt states are the real limits.", plays=True)
async def prompt_limits(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the environment's limits with the limits stated in the prompt, the tools and the first observation."""
    environment = subject.environment
    view = await subject.first_view(*subject.seeds(1)[0])
    texts = {
        "The prompt": system_prompt(subject.spec, environment, "tool_calls", view.tools),
        "The first observation": text_of(view.observation),
        **{f"The description of {tool.name}": tool.description for tool in view.tools},
    }
    holds = {limit for limit in (environment.max_steps, environment.max_turns, environment.most_turns) if limit}
    holds |= {getattr(environment.cls, "step_limit", None) or 0}
    holds |= {parameter.default for parameter in environment.config.parameters if type(parameter.default) is int}
    longest = max((rollout.length for rollout in subject.scored()), default=0)
    stated = []
    for where, text in texts.items():
        for found in _LIMIT.finditer(text):
            word = found["number"].lower()
            number = int(word) if word.isdigit() else NUMBERS[word]
            stated.append(found[0])
            if number in holds:
                continue
            if longest > number or (environment.max_steps is not None and environment.max_steps < number):
                limits = ", ".join(map(str, sorted(limit for limit in holds if limit))) or "none"
                said = f"{where} states {short(found[0])}, but the limits are {limits}, and an episode had {longest} steps."
                return warning(said, "Change the text so that it states the limit that applies.", subject.place)
    return passed(
        f"These limits are stated and apply: {', '.join(map(short, stated))}."
        if stated
        else "No limit is contradicted."
    )


@check("task-info", "The task, its data and its rubrics are described for trainers.")
async def task_info(subject: EnvironmentUnderTest) -> CheckResult:
    """Read the environment's part of `/task_info`."""
    described = Description(subject.spec, max_time_seconds=1, max_concurrent=1, max_body_bytes=1)
    info = described.taskset(subject.environment)
    orjson.dumps(info)
    if not subject.environment.description:
        found = f"Environment {subject.name} has no description, so a model's prompt does not describe the task."
        return warning(found, "Add a docstring to the class.", subject.place)
    for part in ("outcome", "events"):
        section = info["rubric"][part]
        for criterion in [] if section is None else section["criteria"]:
            if criterion["description"] in ("", criterion["id"]):
                found = f"Criterion {criterion['id']!r} has no description."
                places = [item.place for item in subject.spec.criteria if item.name == criterion["id"]]
                return warning(found, "Add a docstring to its function.", places[0] if places else subject.place)
    splits, count = info["dataset"]["splits"], info["dataset"]["cardinality"]
    criteria = sum(len(section["criteria"]) for section in info["rubric"].values() if section is not None)
    return passed(f"Splits {', '.join(splits)}: {count} episodes; {criteria} criteria; {info['reward']['formula']}.")

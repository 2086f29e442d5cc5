"""`app.tasks(...)`: a class is made for it, so that everything else sees one kind of environment."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taskapp_kit.contract.trajectory import Step
from taskapp_kit.declare.check_actions import check_actions
from taskapp_kit.declare.marks import action
from taskapp_kit.declare.places import did_you_mean
from taskapp_kit.declare.problems import Problems, check_name
from taskapp_kit.declare.signature import Arguments
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.declare.taskapp import Declared, TaskApp
from taskapp_kit.declare.tasks import TaskSource, private_fields
from taskapp_kit.errors import DeclarationError


def check_questions(app: TaskApp, declared: Declared, problems: Problems) -> EnvironmentSpec | None:
    """The environment of one `app.tasks`; None when something is wrong with it."""
    options, place = declared.options, declared.place
    before = len(problems)
    check_name(declared, problems)
    source = app.task_source(declared)
    if not options["tasks"]:
        problems.add(place, f"tasks {declared.name!r} has no split", "at least one, e.g. train=[…]",
                     "add train=[...] or train=\"train.jsonl\"")  # fmt: skip
    problems.extend(source.check())
    prompt = options["prompt"]
    if isinstance(prompt, str):
        _prompt_fields(declared, source, prompt, problems)
    elif not callable(prompt):
        problems.add(place, f"tasks {declared.name!r} have prompt={prompt!r}", "a str or fn(row) -> str", "mend it")
    if len(problems) > before:
        return None
    cls = question_class(declared.name, source, prompt)
    return EnvironmentSpec(
        name=declared.name,
        cls=cls,
        description=app.description or f"Answer one question of {declared.name}.",
        version=str(options["version"]),
        place=place,
        config=Arguments(f"{declared.name}_config", ()),
        actions={name: replace(spec, place=place) for name, spec in check_actions(cls, place, problems).items()},
        reset_parameters=("task",),
        splits={},
        tasks=source,
        max_turns=None,
        tags=options["tags"],
    )


def question_class(name: str, source: TaskSource, prompt: str | Callable[[Any], str]) -> type:
    """The environment that `app.tasks` stands for: shows a row's prompt, takes the answer, ends."""

    class Questions:
        def reset(self, task: Any) -> str:
            return prompt.format(**source.public(task)) if isinstance(prompt, str) else prompt(task)

        @action(text=True)
        def answer(self, text: str) -> Step:
            """Give the answer."""
            return Step(observation=None, terminated=True, info={"characters": len(text)})

    Questions.__name__ = Questions.__qualname__ = f"Questions_{name}"
    return Questions


def _prompt_fields(declared: Declared, source: TaskSource, prompt: str, problems: Problems) -> None:
    """A format string has to parse, to name public fields that rows have, and to fit the first row of each split."""
    try:
        names = {
            name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(prompt) if name is not None
        }
    except ValueError as error:
        problems.add(declared.place, f"the prompt of {declared.name!r} is no format string: {error}",
                     "{name} for a field of the row, {{ and }} for braces", "double the braces that are text")  # fmt: skip
        return
    before = len(problems)
    hidden = names & private_fields(source.row)
    if hidden:
        problems.add(declared.place, f"the prompt of {declared.name!r} shows private field {min(hidden)!r}",
                     "public fields only", "take it out of the prompt, or make the field public")  # fmt: skip
    known = set(getattr(source.row, "model_fields", {}) or getattr(source.row, "__dataclass_fields__", {}))
    for name in sorted(names - known) if known else ():
        problems.add(declared.place, f"the prompt of {declared.name!r} names {name!r}, which rows do not have",
                     f"one of {', '.join(sorted(known))}", did_you_mean(name, known))  # fmt: skip
    for split in source.splits if len(problems) == before else ():
        try:
            prompt.format(**source.public(next(iter(source.rows(split)))))
        except (DeclarationError, StopIteration):
            return  # the rows are wrong, and reported as such
        except Exception as error:
            problems.add(declared.place, f"the prompt of {declared.name!r} does not fit row 0 of split {split!r}: "
                         f"{type(error).__name__}: {error}", "names of the row's public fields; members as {field[name]}",
                         "mend the prompt or the row")  # fmt: skip
            return

"""The body of `POST rl/jobs`, read and checked: both forms that clients send.

    {"job_type": "rl", "data": {"endpoint_base_url", "config", "model" | "base_model", "trainer"?}, "compute", "tags", "metadata"}
    {"model", "endpoint_base_url", "trainer_id", "trainer"?, "config"?, "metadata"?}

The body is a stranger's: every member that is used is checked, and all problems are told at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from taskapp_kit.backend.engine import Engine, JobDocument
from taskapp_kit.backend.task_app_addresses import PLACE, TaskAppAddresses
from taskapp_kit.client.config.consistency import kind_of_model, models_named
from taskapp_kit.client.config.rl_config import rl_config_of
from taskapp_kit.client.config.values import is_key_like, name_shown
from taskapp_kit.errors import FieldProblem, JobConfigError, RequestError

MAX_WORD = 512


def fingerprint(body: Mapping[str, Any]) -> str:
    """SHA-256 of a body: the same body, whatever the order of its names."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_submission(
    body: Mapping[str, Any], job_id: str, *, addresses: TaskAppAddresses, engine: Engine
) -> JobDocument:
    """The job that the body asks for. Raises RequestError naming the fields, JobConfigError with every problem."""
    problems: list[FieldProblem] = []

    def table(place: tuple[str, ...], value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        problems.append(FieldProblem(("body", *place), "should be an object", "dict_type"))
        return {}

    def word(place: tuple[str, ...], value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str) and len(value) <= MAX_WORD and value.isprintable():
            return value.strip()
        problems.append(
            FieldProblem(("body", *place), f"should be a text of at most {MAX_WORD} letters", "string_type")
        )
        return ""

    if body.get("job_type", "rl") != "rl":
        problems.append(FieldProblem(("body", "job_type"), 'should be "rl"', "literal_error"))
    for name in ("tags", "metadata", "compute"):
        table((name,), body.get(name))
    at: tuple[str, ...] = ("data",) if "data" in body else ()
    data = table(at, body["data"]) if at else body
    model = ""
    for name in ("model", "base_model"):
        model = model or word((*at, name), data.get(name))
    trainer_id = ""
    for place, source in (((*at, "trainer_id"), data), (("trainer_id",), body)):
        trainer_id = trainer_id or word(place, source.get("trainer_id"))
    url = ""
    try:
        url = addresses.read(data.get("endpoint_base_url"))
    except RequestError as error:
        problems += [FieldProblem(("body", *at, PLACE[-1]), one.message, one.type) for one in error.fields]
    if data.get("job_config_id") is not None:
        problems.append(
            FieldProblem(("body", *at, "job_config_id"), "is not known here; send the config itself", "unknown_config")
        )
    config = table((*at, "config"), data.get("config"))
    trainer = table((*at, "trainer"), data.get("trainer"))
    if problems:
        named = ", ".join(".".join(map(str, problem.loc[1:])) + " " + problem.message for problem in problems)
        raise RequestError(f"The job cannot be taken: {named}.", fields=tuple(problems))
    for name, held in (("config", config), ("trainer", trainer)):
        secret = next(_secrets(held, name, name), None)
        if secret is None:
            continue
        raise JobConfigError(
            "The config cannot be used:",
            problems=(
                f"{secret} holds something that looks like a key, and what a job was asked for is kept with it.",
            ),
            hint="Take it out. Keys of task apps are uploaded sealed (setup); a vendor's key belongs to the task app's server.",
        )
    job = JobDocument(job_id, url, config, model, trainer_id, trainer)
    _check(job, engine)
    return job


def _check(job: JobDocument, engine: Engine) -> None:
    """The config as a whole, where there is one, and what the engine says to it. Raises JobConfigError."""
    problems: list[str] = []
    hint = ""
    if job.config:
        document = dict(job.config)
        if job.model and not models_named(document):
            section = document.get("model")
            named = {kind_of_model(job.model): job.model}
            if section is None or isinstance(section, Mapping):
                document["model"] = {**(section or {}), **named}
        try:
            rl_config_of(document, name="the job's config")
        except JobConfigError as error:
            problems += error.problems or (error.message,)
            hint = error.hint
    problems += [problem for problem in engine.problems(job) if problem not in problems]
    if problems:
        raise JobConfigError("The config cannot be used:", problems=tuple(problems), hint=hint)


def _secrets(value: Any, name: str, place: str) -> Iterator[str]:
    """Places whose value looks like a key, or whose name does; an address may have one in its query."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            if is_key_like("", key):
                yield f"a name in {place}"
            yield from _secrets(held, key, f"{place}.{name_shown(key)}")
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from _secrets(held, name, f"{place}[{index}]")
    elif isinstance(value, str) and (is_key_like(name, value) or _asks_with_a_key(value)):
        yield place


def _asks_with_a_key(text: str) -> bool:
    _, separator, query = text.replace("#", "?").partition("?")
    return "://" in text and bool(separator) and any(is_key_like(*pair) for pair in parse_qsl(query.replace("?", "&")))

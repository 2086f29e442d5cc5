"""Parses and validates the body of `POST rl/jobs`, which has one of two forms.

    {"job_type": "rl", "data": {"endpoint_base_url", "config", "model" | "base_model", "trainer"?},
     "compute", "tags", "metadata"}

    {"model", "endpoint_base_url", "trainer_id", "trainer"?, "config"?, "metadata"?}

The body is untrusted: every field that is used is validated, and all problems are reported at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from taskapp_kit.errors import FieldProblem, JobConfigError, RequestError
from taskapp_kit.jobs.client.config.rl_config import review_rl_document
from taskapp_kit.jobs.client.config.values import is_key_like, name_shown
from taskapp_kit.jobs.server.engine import Engine, JobDocument
from taskapp_kit.jobs.server.task_app_access import URL_PATH, TaskAppAddresses

MAX_WORD = 512
MAX_TAGS = 64


def fingerprint(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a body. The order of the body's fields does not change it."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_submission(
    body: Mapping[str, Any], job_id: str, *, addresses: TaskAppAddresses, engine: Engine
) -> JobDocument:
    """Return the job that a body requests.

    Raises RequestError, which names the fields, if fields of the body are invalid. Raises JobConfigError, which
    contains all problems, if the config cannot be used.
    """
    problems: list[FieldProblem] = []

    def table(path: tuple[str, ...], value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        problems.append(FieldProblem(("body", *path), "should be an object", "dict_type"))
        return {}

    def word(path: tuple[str, ...], value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str) and len(value) <= MAX_WORD and value.isprintable():
            return value.strip()
        problems.append(
            FieldProblem(("body", *path), f"should be a string of at most {MAX_WORD} characters", "string_type")
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
    for path, source in (((*at, "trainer_id"), data), (("trainer_id",), body)):
        trainer_id = trainer_id or word(path, source.get("trainer_id"))
    url = ""
    try:
        url = addresses.read(data.get("endpoint_base_url"))
    except RequestError as error:
        problems += [FieldProblem(("body", *at, URL_PATH[-1]), field.message, field.type) for field in error.fields]
    if data.get("job_config_id") is not None:
        problems.append(
            FieldProblem(("body", *at, "job_config_id"), "is not supported (send the config itself)", "unknown_config")
        )
    config = table((*at, "config"), data.get("config"))
    trainer = table((*at, "trainer"), data.get("trainer"))
    tags = table((*at, "config", "tags"), config.get("tags"))
    if len(tags) > MAX_TAGS or not all(map(_is_tag, tags.items())):
        shape = f"should have at most {MAX_TAGS} fields, each a short string, a number, true or false"
        problems.append(FieldProblem(("body", *at, "config", "tags"), shape, "tags_type"))
    if problems:
        named = ", ".join(".".join(map(str, problem.loc[1:])) + " " + problem.message for problem in problems)
        raise RequestError(f"The job is invalid: {named}.", fields=tuple(problems))
    for name, held in (("config", config), ("trainer", trainer)):
        secret = next(_secrets(held, name, name), None)
        if secret is None:
            continue
        raise JobConfigError(
            "The config cannot be used:",
            problems=(f"{secret} looks like an API key, which would be stored unencrypted with the request.",),
            hint="Remove the key. Upload the task app's key with `taskapp setup`. Set a vendor's key on the task app's "
            "server.",
        )
    job = JobDocument(job_id, url, config, model, trainer_id, trainer)
    _check(job, engine)
    return job


def _is_tag(item: tuple[str, Any]) -> bool:
    name, value = item
    return isinstance(value, str | int | float) and max(len(name), len(str(value))) <= MAX_WORD


def _check(job: JobDocument, engine: Engine) -> None:
    """Raise JobConfigError if the config is invalid or the engine does not support it. The config may be absent."""
    problems = review_rl_document(job.document, *job.typed_config).problems if job.config else {}
    for place, text in engine.problems(job).items():
        problems.setdefault(place, text)
    if problems:
        raise JobConfigError("The config cannot be used:", problems=tuple(problems.values()), places=tuple(problems))


def _secrets(value: Any, name: str, path: str) -> Iterator[str]:
    """Yield the path of each value or name that looks like an API key. An address may have a key in its query."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            if is_key_like("", key):
                yield f"a name in {path}"
            yield from _secrets(held, key, f"{path}.{name_shown(key)}")
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from _secrets(held, name, f"{path}[{index}]")
    elif isinstance(value, str) and (is_key_like(name, value) or _has_key_in_query(value)):
        yield path


def _has_key_in_query(text: str) -> bool:
    _, separator, query = text.replace("#", "?").partition("?")
    return "://" in text and bool(separator) and any(is_key_like(*pair) for pair in parse_qsl(query.replace("?", "&")))

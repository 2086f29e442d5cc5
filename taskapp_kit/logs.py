"""Log records as text or JSON, one record per line, with the id of the rollout that wrote them.

text    2026-03-01 12:00:00,123 INFO rollout rollout_id=4f… environment=adder seed=3 …
json    {"time":"2026-03-01T11:00:00.123Z","level":"INFO","logger":"taskapp_kit.serve","message":"rollout",
         "rollout_id":"4f…","environment":"adder","seed":3,…}

A library never configures logging: commands and worker processes call `handler`. A string from a client cannot
forge a log line: control characters are escaped, and every line of a record after the first begins with `    | `.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]

ROLLOUT: ContextVar[str] = ContextVar("taskapp_kit.rollout_id", default="")
"""The id of the current rollout; "" outside of rollouts."""

CONTINUED = "\n    | "
"""The prefix of every line of a record after its first, so that only first lines begin with a time."""
MAX_VALUE = 500
"""The maximum length of a field in the text format, in characters."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PLAIN = re.compile(r"[\w.:/@+,;*%#$^~<>!?()\[\]{}&|-]+", re.ASCII)
_CONVERSION = re.compile(r"(?:(\w+)=)?%(?:%|[-+ #0]*[\d.]*([a-zA-Z]))")
_ERROR_ID = re.compile(r"\(error_id (\w+)\)")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "rollout_id"}


@contextmanager
def rollout(rollout_id: str) -> Iterator[None]:
    """Add this id to the log records that this thread or asyncio task creates inside the `with` block."""
    token = ROLLOUT.set(rollout_id)
    try:
        yield
    finally:
        ROLLOUT.reset(token)


class LogMessage:
    """A log message with fields: `log.info(LogMessage("rollout", seed=3))` writes `rollout seed=3`, or JSON.

    The text format quotes values that are not plain words, so that a value cannot imitate another field. In JSON,
    `message` is the name, such as `rollout`, and each field has its own key.
    """

    __slots__ = ("fields", "name")

    def __init__(self, name: str, **fields: Any) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        text = self.name
        for name, value in self.fields.items():
            text += f" {name}={_word(value)}"
        return text


def _word(value: Any) -> str:
    kind = type(value)
    if kind is str:
        if value.isalnum() and len(value) <= MAX_VALUE and value.isascii():
            return value  # type: ignore[no-any-return]  # the fast path for most values
        return value if len(value) <= MAX_VALUE and _PLAIN.fullmatch(value) else json.dumps(_short(value))
    if kind is float:
        return f"{value:.6g}"
    if value is None or kind is int or kind is bool:
        return str(value)
    return _word(str(value))


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"


class RolloutIdFilter(logging.Filter):
    """Adds `rollout_id`, the id of the current rollout, to each record. It does not filter out any record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set `rollout_id` and return True."""
        if not hasattr(record, "rollout_id"):
            record.rollout_id = ROLLOUT.get()
        return True


class TextFormatter(logging.Formatter):
    """Formats a record as `time LEVEL message`, followed by ` rollout_id=…` unless the message already contains it.

    worker: The process id to show.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who = "" if worker is None else f"[worker {worker}] "
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, followed by its traceback."""
        message = record.getMessage()
        if not isinstance(record.msg, LogMessage):  # a LogMessage is already quoted
            message = _safe(message)
        text = f"{self._time(record)} {record.levelname} {self._who}{message}"
        rollout_id = getattr(record, "rollout_id", "")
        if rollout_id and f"rollout_id={rollout_id}" not in text:
            head, line, rest = text.partition("\n")
            text = f"{head} rollout_id={rollout_id}{line}{rest}"
        if not (record.exc_info or record.exc_text or record.stack_info):
            return text
        return text + "".join(CONTINUED + _safe(part).replace("\n", CONTINUED) for part in _traces(self, record))

    def _time(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if self._second[0] != second:
            self._second = (second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second)))
        return f"{self._second[1]},{int(record.msecs):03d}"


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object.

    It has `time` (UTC, ISO 8601), `level`, `logger` and `message`, and if they exist, `rollout_id`, the record's
    fields, `error_id` and `traceback`. Fields come from a `LogMessage`, from `extra=`, and from each `name=%s` in the
    message.

    worker: The process id to add.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who = {} if worker is None else {"worker": worker}
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        source: Any = record.msg
        plain = not isinstance(source, LogMessage)
        message = record.getMessage() if plain else source.name
        entry: dict[str, Any] = {
            "time": self._time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        if self._who:
            entry["worker"] = self._who["worker"]
        rollout_id = getattr(record, "rollout_id", "")
        if rollout_id:
            entry["rollout_id"] = rollout_id
        for name, value in _fields(record).items():
            if name not in entry:
                entry[name] = value
        if plain and "error_id" not in entry and (found := _ERROR_ID.findall(message)):
            entry["error_id"] = found[-1]
        if (record.exc_info or record.exc_text or record.stack_info) and (traces := _traces(self, record)):
            entry["traceback"] = "\n".join(traces)
        return _json(entry)

    def _time(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if self._second[0] != second:
            self._second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._second[1]}.{int(record.msecs):03d}Z"


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, even if it was replaced after this handler was created."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # the base class stores the stream from its construction
        """Return the current `sys.stderr`."""
        return sys.stderr


def handler(
    log_format: LogFormat = "text", *, worker: int | None = None, stream: TextIO | None = None
) -> logging.StreamHandler[TextIO]:
    """Return a log handler that writes records with the id of the current rollout.

    Args:
        log_format: `text` or `json`.
        worker: The process id of the worker that writes, or None for the server.
        stream: The stream to write to. Defaults to stderr.
    """
    made = _Stderr() if stream is None else logging.StreamHandler(stream)
    made.setFormatter(JsonFormatter(worker) if log_format == "json" else TextFormatter(worker))
    made.addFilter(RolloutIdFilter())
    return made


def configure(log_level: str, log_format: LogFormat = "text", *, worker: int | None = None) -> None:
    """Log to stderr: the kit's records from `log_level` up, and the records of other libraries from WARNING up.

    INFO records of other libraries are dropped, because they may contain addresses with keys.
    """
    made = handler(log_format, worker=worker)
    level = logging.getLevelNamesMapping()[log_level.upper()]
    for name in ("taskapp_kit", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [made]
        logger.propagate = False
    logging.getLogger("taskapp_kit").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, level))
    root = logging.getLogger()
    for old in [known for known in root.handlers if getattr(known, "of_taskapp_kit", False)]:
        root.removeHandler(old)
    others = handler(log_format, worker=worker)
    others.of_taskapp_kit = True  # type: ignore[attr-defined]  # so that a second call replaces it
    others.setLevel(max(logging.WARNING, level))
    root.addHandler(others)


def _safe(text: str) -> str:
    """Escape control characters, and prefix every line after the first with CONTINUED."""
    if text.isascii() and text.isprintable():
        return text
    escaped = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}" if ord(found[0]) > 255 else _hex(found[0]), text)
    return escaped.replace("\n", CONTINUED) if "\n" in escaped else escaped


def _hex(letter: str) -> str:
    return {"\r": "\\r"}.get(letter) or f"\\x{ord(letter):02x}"


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Return the traceback and the stack of a record; the list is empty if the record has neither."""
    found = []
    if record.exc_info and record.exc_info[0] is not None:
        found.append(formatter.formatException(record.exc_info))
    elif record.exc_text:
        found.append(record.exc_text)
    if record.stack_info:
        found.append(formatter.formatStack(record.stack_info))
    return found


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    if isinstance(record.msg, LogMessage):
        return record.msg.fields
    found: dict[str, Any] = {}
    if isinstance(record.msg, str) and isinstance(record.args, tuple) and record.args:
        found = {name: record.args[at] for at, name in _named(record.msg) if at < len(record.args)}
    elif isinstance(record.args, Mapping):
        found = dict(record.args)
    for name in record.__dict__.keys() - _STANDARD:  # fields passed as extra=
        found[name] = record.__dict__[name]
    return found


@lru_cache(maxsize=512)
def _named(template: str) -> tuple[tuple[int, str], ...]:
    """Return the index and the name of each `name=%s` in a message template."""
    conversions = [found for found in _CONVERSION.finditer(template) if found[2]]
    return tuple((at, found[1]) for at, found in enumerate(conversions) if found[1])


def _json(entry: dict[str, Any]) -> str:
    try:
        return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # for integers beyond 64 bits and lone surrogates, which `json` can write
        return json.dumps({name: _written(value) for name, value in entry.items()})


def _written(value: Any) -> Any:
    return value if isinstance(value, str | int | bool | None) else str(value)

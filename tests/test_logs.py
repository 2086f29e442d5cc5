"""Log records: their two forms, the rollout's id on each, one line for each rollout, and that nobody can forge one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit import TaskApp, logs
from taskapp_kit.config import Settings, child_environment, set_child_logging, take_parent_logging
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.logs import LogMessage
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.app import log_ended
from tests.cli.conftest import ROOT, serving

from .rollouts import a_request, app_from

KEY = "sentinel-Key-5d1c90"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
NASTY = 'x\n2030-01-01 00:00:00,000 INFO rollout rollout_id=forged reward=1\r\x1b[2K\x85\u2028\ud800 "q" a=b'

SOURCE = (
    f"import logging\nNASTY = {NASTY!r}\n"
    + """
app = TaskApp("talker")

@app.environment("talker", splits={"train": range(9)}, max_steps=2)
class Talker:
    def reset(self, seed: int, context) -> str:
        context.log.info("hello from seed %s %s", seed, NASTY)
        logging.getLogger("somebody.else").warning("beside it")
        return ""

    @action(noop={})
    def go(self) -> Step:
        "Go."
        if self.__class__.__name__ == "Broken":
            raise RuntimeError("broken on purpose")
        return Step("", 1.0)

@app.environment("broken", splits={"train": range(9)}, max_steps=2)
class Broken(Talker):
    pass

@app.rubric
def whole(trajectory) -> float:
    "One."
    return 1.0
"""
)


@contextmanager
def written(log_format: logs.LogFormat = "text", level: int = logging.INFO) -> Iterator[io.StringIO]:
    """What the kit's and all other loggers write in this form meanwhile."""
    out = io.StringIO()
    handler = logs.handler(log_format, stream=out)
    loggers = [logging.getLogger("taskapp_kit"), logging.getLogger("somebody.else")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield out
    finally:
        for logger, (old, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)
            logger.propagate = propagate


def record(message: Any, *args: Any, **more: Any) -> logging.LogRecord:
    error = more.pop("error", None)
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("taskapp_kit.x", logging.INFO, "f.py", 1, message, args, info)
    made.__dict__.update(more)
    return made


def as_text(made: logging.LogRecord) -> str:
    return logs.TextFormatter().format(made)


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = logs.JsonFormatter().format(made)
    assert "\n" not in line
    told = json.loads(line)
    assert isinstance(told, dict)
    return told


def test_text_is_one_line_with_time_level_and_message() -> None:
    assert re.fullmatch(TIME + r" INFO a 1", as_text(record("a %d", 1)))
    assert as_text(record("a", rollout_id="r1")).endswith(" INFO a rollout_id=r1")
    assert as_text(record("a rollout_id=%s b", "r1", rollout_id="r1")).endswith(" INFO a rollout_id=r1 b"), "not twice"
    assert "[worker 7] a" in logs.TextFormatter(7).format(record("a"))


def test_text_shows_the_local_time_of_each_record() -> None:
    formatter, plain = logs.TextFormatter(), logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    for created in (0.0, 1.25, 1.75, 1e9, 1_700_000_000.999):
        made = record("m")
        made.created, made.msecs = created, int(created % 1 * 1000)
        assert formatter.format(made) == plain.format(made)


def test_json_has_the_parts_apart() -> None:
    try:
        raise ValueError("detail")
    except ValueError as error:
        told = as_json(record("internal error error_id=%s route=%s n=%d", "e1", "/x", 3, error=error, rollout_id="r1"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told.pop("traceback").endswith("ValueError: detail")
    assert told == {
        "level": "INFO", "logger": "taskapp_kit.x", "message": "internal error error_id=e1 route=/x n=3",
        "rollout_id": "r1", "error_id": "e1", "route": "/x", "n": 3,
    }  # fmt: skip
    assert as_json(record("it broke (error_id %s)", "e2"))["error_id"] == "e2"
    assert as_json(record("100%% of %s at=%.2f", "it", 1.5))["at"] == 1.5
    assert as_json(record("m", score={"a": [1]}))["score"] == {"a": [1]}, "what an author gives as extra="
    assert logs.JsonFormatter(7).format(record("m")).endswith('"worker":7}')


def test_a_field_of_json_does_not_replace_a_part_of_the_record() -> None:
    told = as_json(record(LogMessage("name", level="DEBUG", time="never", rollout_id="mine"), rollout_id="r1"))
    assert (told["level"], told["message"], told["rollout_id"]) == ("INFO", "name", "r1")
    assert told["time"] != "never"


@pytest.mark.parametrize("value", [2**70, float("nan"), "\ud800", {1: "x"}, {"a": object()}, b"\xff", None, [2**70]])
def test_json_log_accepts_any_field_value(value: Any) -> None:
    assert "field" in as_json(record(LogMessage("m", field=value)))


def test_a_field_that_is_no_plain_word_is_quoted() -> None:
    told = LogMessage(
        "rollout", a="plain/word-1.5", b="two words", c='q"', d=None, e=0.25, f="", g="x=1", h=True, i="z" * 600
    )
    shown = str(told)
    assert shown.startswith(r'rollout a=plain/word-1.5 b="two words" c="q\"" d=None e=0.25 f="" g="x=1" h=True i="zzz')
    assert len(shown) < 700


@given(st.text() | st.just(NASTY))
def test_log_record_cannot_forge_a_line(text: str) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        broken = error
    for made in (
        record("%s", text),
        record(LogMessage("rollout", run_id=text)),
        record("m", error=broken),
        record("a", x=text),
    ):
        lines = re.split("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", as_text(made))
        assert re.match(TIME + " INFO ", lines[0])
        assert all(line.startswith("    | ") for line in lines[1:])
        assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "".join(lines))
        as_json(made)
    (line,) = as_text(record(LogMessage("rollout", run_id=text))).split("\n")
    assert line.count("=") == 1 or '"' in line, "a value cannot pass for another field"


def test_records_carry_the_rollout_in_which_they_were_made_and_no_other() -> None:
    with written() as out:
        log = logging.getLogger("taskapp_kit.x")
        with logs.rollout("r1"):
            with logs.rollout("r2"):
                log.info("inner")
            log.info("outer")
            thread = threading.Thread(target=log.info, args=("elsewhere",))
            thread.start()
            thread.join()
        log.info("after")
    told = [line.partition(" INFO ")[2] for line in out.getvalue().splitlines()]
    assert told == ["inner rollout_id=r2", "outer rollout_id=r1", "elsewhere", "after"]


@pytest.fixture
def talker(tmp_path: Path) -> TaskApp:
    return app_from(tmp_path, SOURCE)


async def _played(app: TaskApp, environment: str, workers: int) -> str:
    service = Service(app, ServiceSettings(workers=workers))
    service.watchers.append(log_ended)
    try:
        rollout = await service.rollout(a_request("noop", seed=4, env_name=environment), caller=Caller("lab 1"))
    except RolloutFailed as failed:
        return failed.rollout_id
    finally:
        await service.close()
    return rollout.rollout_id


def test_a_scored_rollout_is_one_line(talker: TaskApp) -> None:
    with written() as out:
        rollout_id = asyncio.run(_played(talker, "talker", 0))
    (line,) = [line for line in out.getvalue().splitlines() if re.match(TIME + " INFO rollout ", line)]
    expected = (
        rf"{TIME} INFO rollout rollout_id={rollout_id} environment=talker seed=4 steps=2 status=truncated reward=1 "
        r'policy=noop key="lab 1" seconds=[\d.e-]+'
    )
    assert re.fullmatch(expected, line), line


def test_a_failed_rollout_is_one_line_with_its_boundary(talker: TaskApp) -> None:
    with written("json") as out:
        rollout_id = asyncio.run(_played(talker, "broken", 0))
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    (line,) = [told for told in records if told["message"] == "rollout failed"]
    assert (line["level"], line["rollout_id"], line["boundary"]) == ("ERROR", rollout_id, "environment")
    assert line["code"] == "environment_raised"
    assert "reward" not in line
    (cause,) = [told for told in records if "traceback" in told]
    assert cause["error_id"] == line["error_id"]
    assert "broken on purpose" in cause["traceback"]


def test_disabled_log_level_formats_nothing(talker: TaskApp) -> None:
    with written(level=logging.WARNING) as out:
        asyncio.run(_played(talker, "talker", 0))
    assert " INFO " not in out.getvalue()


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize(
    ("log_format", "workers"),
    [
        ("text", "0"),
        ("json", "1"),
        pytest.param("text", "1", marks=pytest.mark.exhaustive),
        pytest.param("json", "0", marks=pytest.mark.exhaustive),
    ],
)
def test_server_logs_in_the_requested_format(tmp_path: Path, workers: str, log_format: str) -> None:
    """The author's own lines carry the rollout's id, in threads and in worker processes; the key is nowhere."""
    import httpx

    (tmp_path / "app.py").write_text("from taskapp_kit import Step, TaskApp, action\n" + SOURCE)
    body = {
        "run_id": "".join(letter for letter in NASTY if letter.isprintable()),  # others are refused
        "env": {"seed": 4, "env_name": "talker"},
        "policy": {"policy_name": "noop"},
        "ops": [],
        "mode": "rl",
    }
    options = ["--workers", workers, "--store", "none", "--log-format", log_format]
    with serving(tmp_path, "app.py", *options, ENVIRONMENT_API_KEY=KEY) as served:
        answer = httpx.post(served.url + "/rollout", json=body, headers={"X-API-Key": KEY}, timeout=30)
        assert answer.status_code == 200, answer.text
        rollout_id = answer.json()["rollout_id"]
    lines = [line for line in served.err.splitlines() if line and "Stopped." not in line]
    assert not [KEY[i : i + 6] for i in range(len(KEY) - 5) if KEY[i : i + 6] in served.err]
    if log_format == "json":
        records = [json.loads(line) for line in lines]
        said = [told for told in records if "hello from" in told["message"] or told["message"] == "beside it"]
        assert [told["rollout_id"] for told in said] == [rollout_id] * 2
        assert all(("worker" in told) is (workers == "1") for told in said)
    else:
        assert all(re.match(TIME + " [A-Z]+ |    [|] ", line) for line in lines), lines
        (hello,) = [line for line in lines if "hello from" in line]
        (beside,) = [line for line in lines if "beside it" in line]
        assert f"rollout_id={rollout_id}" in hello
        assert beside.endswith(f"beside it rollout_id={rollout_id}")
        assert ("[worker " in hello) is (workers == "1")


def test_worker_processes_are_told_how_to_log() -> None:
    before = take_parent_logging(child_environment())
    try:
        set_child_logging(log_format="json", log_level="debug")
        assert take_parent_logging(child_environment()) == ("json", "debug")
    finally:
        set_child_logging(log_format=before[0], log_level=before[1])
    assert take_parent_logging({}) == ("text", "info")
    assert take_parent_logging({"TASKAPP_LOG_FORMAT": "JSON", "TASKAPP_SERVED_LOG_LEVEL": "loud"}) == ("json", "info")
    assert Settings().log_format == "text"
    assert ROOT.is_dir()

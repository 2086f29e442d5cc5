"""Traces of real rollouts, written with the SDK to memory: the tree, its times, its parent, and what it must not hold."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from taskapp_kit import TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.errors import Failure, RolloutFailed
from taskapp_kit.records.events import (
    Acted,
    Answered,
    Called,
    EpisodeEnded,
    Event,
    Failed,
    Observed,
    Started,
    Stepped,
    fold,
)
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import CriterionScore, Scorecard
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.admission import Caller, RunningRollout
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.serve.telemetry.spans import Span, spans_of
from taskapp_kit.serve.telemetry.tracing import Tracing, tracing_of
from tests.rollouts import a_request, app_from, serving

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KEY = "sentinel-Key-5d1c90"
SECRETS = ("sentinel-answer", "sentinel-state", "sentinel-detail", KEY)

SOURCE = """
import os, time
app = TaskApp("traced")

class Row(BaseModel):
    question: str
    answer: Private[str]

@app.environment("traced", tasks={"train": lambda: [Row(question="two?", answer="sentinel-answer")] * 4}, row=Row, max_steps=3)
class Traced:
    def __init__(self, breaks: str = "", key: str = ""):
        self.breaks, self.key = breaks, key
        if breaks == "reset":
            raise RuntimeError("sentinel-detail")

    def reset(self, task: Row) -> str:
        time.sleep(0.01)
        self.task = task
        return f"shown observation {task.question} {self.key}"

    @action(noop={"words": "given words"})
    def say(self, words: str) -> Step:
        "Say."
        time.sleep(0.01)
        if self.breaks == "step":
            raise RuntimeError("sentinel-detail")
        return Step("heard " + words, 0.5)

    def final_state(self):
        return {"db": "sentinel-state"}

@app.rubric(weight=2)
def half(trajectory, config) -> float:
    "Half."
    time.sleep(0.005)
    if config.get("breaks") == "rubric":
        raise RuntimeError("sentinel-detail")
    return 0.5

@app.rubric(weight=0)
def nothing(trajectory) -> float:
    "Nothing."
    raise RuntimeError("sentinel-detail")

@app.judge(weight=0)
def kind(trajectory) -> str:
    "Kind?"
    return ""
"""


@pytest.fixture
def app(tmp_path: Path) -> TaskApp:
    return app_from(tmp_path, SOURCE)


def traced(
    app: TaskApp, *, workers: int = 0, caller: Caller | None = None, requests: Sequence[Any] = (), **options: Any
) -> list[ReadableSpan]:
    """The spans of one rollout for each request, written by a provider of this test's own."""
    memory, provider = InMemorySpanExporter(), TracerProvider(sampler=options.pop("sampler", None))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing = Tracing(provider, **options)

    async def main() -> None:
        async with serving(app, workers=workers) as service:
            service.watchers.append(tracing)
            for request in requests or [a_request("noop", seed=1)]:
                with contextlib.suppress(RolloutFailed):
                    await service.rollout(request, caller=caller or Caller("lab"))

    asyncio.run(main())
    tracing.close()
    return list(memory.get_finished_spans())


def shape(spans: Sequence[ReadableSpan], of: ReadableSpan | None = None) -> list[Any]:
    """The tree as nested lists of names, in the order of their beginnings."""
    known = {span.context.span_id for span in spans if span.context is not None}
    if of is None:
        found = [span for span in spans if span.parent is None or span.parent.span_id not in known]
    else:
        found = [span for span in spans if span.parent is not None and span.parent.span_id == of.context.span_id]
    found.sort(key=lambda span: (span.start_time or 0, span.end_time or 0))
    return [[span.name, *shape(spans, span)] for span in found]


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_time or 0)


def nested(spans: Sequence[ReadableSpan]) -> None:
    """Every span lies within its parent."""
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    for span in spans:
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time, span.name
        parent = by_id.get(span.parent.span_id) if span.parent is not None else None
        if parent is not None:
            assert (parent.start_time or 0) <= span.start_time, (parent.name, span.name)
            assert span.end_time <= (parent.end_time or 0), (parent.name, span.name)


def everything(spans: Sequence[ReadableSpan]) -> str:
    return "".join(span.to_json() for span in spans)


WHOLE = [
    ["rollout", ["reset"], *[["turn", ["policy"], ["step"]]] * 3, ["scoring", ["criterion"], ["criterion"], ["judge"]]]
]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_a_rollout_is_a_tree(app: TaskApp, workers: int) -> None:
    spans = traced(app, workers=workers)
    assert shape(spans) == WHOLE
    nested(spans)
    (root,) = named(spans, "rollout")
    assert root.kind is SpanKind.SERVER and root.status.status_code is StatusCode.UNSET
    told = {name.removeprefix("taskapp."): value for name, value in root.attributes.items()}
    assert len(str(told.pop("rollout_id"))) == 32
    assert told == {
        "environment": "traced", "environment.version": "1", "split": "train", "seed": 1, "policy": "noop", "key": "lab",
        "status": "truncated", "stop_reason": "max_steps", "steps": 3, "return": 1.5, "outcome_score": 0.5, "reward": 0.5,
    }  # fmt: skip
    steps = [dict(span.attributes or {}) for span in named(spans, "step")]
    assert [step["taskapp.step"] for step in steps] == [0, 1, 2]
    assert {step["gen_ai.tool.name"] for step in steps} == {"say"}
    assert {step["taskapp.reward"] for step in steps} == {0.5}
    assert {step["taskapp.terminated"] for step in steps} == {False}
    scores = [dict(span.attributes or {}) for span in (*named(spans, "criterion"), *named(spans, "judge"))]
    assert [(item["taskapp.criterion"], item.get("taskapp.score"), item["taskapp.weight"]) for item in scores] == [
        ("half", 0.5, 2.0), ("nothing", None, 0.0), ("kind", None, 0.0),
    ]  # fmt: skip
    assert [span.status.status_code for span in named(spans, "criterion")] == [StatusCode.UNSET, StatusCode.ERROR]
    for name, least in (("reset", 0.01), ("step", 0.01), ("criterion", 0.005)):
        first = named(spans, name)[0]
        assert least * 1e9 <= (first.end_time or 0) - (first.start_time or 0) < 5e9, name
    (scoring,) = named(spans, "scoring")
    assert scoring.end_time == root.end_time
    assert (named(spans, "turn")[-1].end_time or 0) <= (scoring.start_time or 0)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("breaks", "boundary", "code", "expected", "broke_in"),
    [
        ("reset", "environment", "environment_raised", [["rollout", ["reset"]]], "reset"),
        ("step", "environment", "environment_raised", [["rollout", ["reset"], ["turn", ["policy"], ["step"]]]], "step"),
        ("rubric", "scoring", "criterion_failed", [["rollout", ["reset"], *[["turn", ["policy"], ["step"]]] * 3, ["scoring"]]], "scoring"),
    ],
)  # fmt: skip
def test_a_failure_is_an_error_where_it_broke(
    app: TaskApp, workers: int, breaks: str, boundary: str, code: str, expected: list[Any], broke_in: str
) -> None:
    spans = traced(app, workers=workers, requests=[a_request("noop", seed=1, config={"breaks": breaks})])
    assert shape(spans) == expected
    nested(spans)
    (root,) = named(spans, "rollout")
    attributes = dict(root.attributes or {})
    assert (attributes["taskapp.boundary"], attributes["error.type"]) == (boundary, code)
    assert attributes["taskapp.error_id"]
    assert "taskapp.reward" not in attributes
    assert root.status.status_code is StatusCode.ERROR and root.status.description == f"{boundary}: {code}"
    assert named(spans, broke_in)[-1].status.status_code is StatusCode.ERROR
    assert not [secret for secret in SECRETS if secret in everything(spans)]


def test_the_callers_span_is_the_parent(app: TaskApp) -> None:
    spans = traced(app, caller=Caller(None, None, PARENT, "vendor=1"))
    (root,) = named(spans, "rollout")
    assert root.parent is not None and root.context is not None
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert root.context.trace_state.get("vendor") == "1"
    assert root.kind is SpanKind.SERVER


@pytest.mark.parametrize(
    "header", ["", "junk", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 5000, PARENT + "-\x00"]
)
def test_invalid_traceparent_is_ignored(app: TaskApp, header: str) -> None:
    (root,) = named(traced(app, caller=Caller(None, None, header, header)), "rollout")
    assert root.parent is None


def test_without_a_caller_it_is_internal_and_what_a_parent_does_not_sample_is_not_written(app: TaskApp) -> None:
    from taskapp_kit.rollout.admission import ANYONE

    (root,) = named(traced(app, caller=ANYONE), "rollout")
    assert root.kind is SpanKind.INTERNAL and root.parent is None
    assert traced(app, caller=Caller(None, None, PARENT[:-1] + "0")) == []
    assert traced(app, sampler=ALWAYS_OFF) == []


def test_no_content_unless_it_was_asked_for(app: TaskApp) -> None:
    scripted = {"type": "env", "tool": "no such tool words", "args": {"words": "given words"}}
    request = a_request(None, seed=1, config={"key": KEY}, ops=[scripted])
    told = everything(traced(app, requests=[request, a_request("noop", seed=1, config={"key": KEY})]))
    for words in (*SECRETS, "shown observation", "given words", "no such tool", "heard", "two?"):
        assert words not in told, words
    assert '"(unknown)"' in told


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_content_is_cut_and_holds_no_key_and_nothing_private(app: TaskApp, workers: int) -> None:
    settings = Settings(
        environment_api_key=KEY, trace_content=True, variables={"SOME_TOKEN": "given words " + "x" * 50}
    )
    requests = [
        a_request("noop", seed=1, config={"key": KEY}),
        a_request("constant", seed=1, action={"say": {"words": "w" * 5000}}),
        a_request("constant", seed=1, action={"say": {"words": "given words " + "x" * 50}}),
        *[a_request("noop", seed=1, config={"breaks": breaks}) for breaks in ("reset", "step", "rubric")],
    ]
    from taskapp_kit.serve.telemetry.tracing import _secrets

    spans = traced(app, workers=workers, requests=requests, content=True, secrets=_secrets(settings))
    told = everything(spans)
    for words in ("shown observation two? (hidden)", "given words", "heard given", "say", "environment Traced"):
        assert words in told, words
    assert not [secret for secret in SECRETS if secret in told]
    assert "x" * 50 not in told
    assert max(len(str(value)) for span in spans for value in (span.attributes or {}).values()) <= 1025
    assert "w" * 1000 in told


def test_spans_are_counted_beyond_a_number(app: TaskApp) -> None:
    spans = traced(app, most=8)
    assert len(spans) == 8
    nested(spans)
    (root,) = named(spans, "rollout")
    assert (root.attributes or {})["taskapp.dropped_spans"] == 1 + 1 + 9 + 1 + 3 - 8


def test_a_rollout_that_hangs_shows_where(tmp_path: Path) -> None:
    app = app_from(tmp_path, SOURCE.replace("time.sleep(0.01)\n        if", "time.sleep(1.5)\n        if"))
    spans = traced(app, requests=[a_request("noop", seed=1, safety={"max_time_s": 0.3})])
    assert shape(spans) == [["rollout", ["reset"], ["turn", ["policy"], ["step"]]]]
    nested(spans)
    (root,), (step,) = named(spans, "rollout"), named(spans, "step")
    assert (root.attributes or {})["taskapp.boundary"] == "timeout"
    assert step.end_time == root.end_time
    assert (step.end_time or 0) - (step.start_time or 0) > 0.8e9


# -- the layout of times, on recorded numbers -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    """One app for all examples; its episodes are not played."""
    return app_from(tmp_path_factory.mktemp("recorded"), SOURCE)


def a_model_rollout(
    app: TaskApp, *, seconds: list[float], total: float, scoring: float, cut: int
) -> tuple[RunningRollout, Rollout]:
    """A rollout whose parts took `seconds`, as a model's answers would be told; broken off after `cut` parts."""
    ticks = itertools.cycle(seconds or [0.0])
    request = a_request("noop", seed=1, policy_config={"model": "gpt-x"})
    plan = RequestPlanner(app.freeze(), app.file.parent).plan(request)
    told: list[Event] = [Started("traced", "1", "train", 1, {}, "noop"), Observed("", ["say"], next(ticks))]
    for turn in range(3):
        answer = Decision([ToolCall("say", {})], usage={"prompt_tokens": 7.0, "completion_tokens": 2.0})
        told += [Called(turn), Answered(turn, answer, next(ticks)), Acted(turn, "say", {})]
        told.append(Stepped(PlayedStep(turn, "say", {}, reward=0.5, seconds=next(ticks))))
    whole = cut >= len(told)
    told = told[: max(1, cut)]
    failure = None if whole else Failure("timeout", "environment_hung", "it hung", error_id="e")
    told.append(EpisodeEnded("terminated", "environment") if failure is None else Failed("timeout", failure.code, ""))
    trajectory = fold(told)
    card = Scorecard([CriterionScore("c", "outcome", 1.0, 1.0, seconds=next(ticks)) for _ in range(2)], 1.0, None, 1.0)
    card = card if whole else Scorecard()
    result = Rollout.of_events(request, "noop", told, trajectory, status="terminated", failure=failure, scorecard=card)
    result.timing = {"total": total, "scoring": scoring, "environment": next(ticks)}
    course = RunningRollout("id", plan, Caller(), 1_700_000_000.25, 0.0, 60.0)
    return course, result


@given(
    seconds=st.lists(st.floats(0, 100), max_size=9),
    total=st.floats(0, 300),
    scoring=st.floats(0, 100),
    cut=st.integers(1, 20),
)
def test_spans_lie_within_each_other_and_do_not_overlap(
    recorded: TaskApp, seconds: list[float], total: float, scoring: float, cut: int
) -> None:
    root = spans_of(*a_model_rollout(recorded, seconds=seconds, total=total, scoring=scoring, cut=cut))

    def look(span: Span) -> None:
        before = span.start_ns
        for child in span.children:
            assert before <= child.start_ns <= child.end_ns <= span.end_ns, (span.name, child.name)
            before = child.end_ns
            look(child)

    look(root)
    assert abs(root.start_ns - 1_700_000_000_250_000_000) < 1000, "as exact as a float of seconds"
    assert root.end_ns - root.start_ns == round(total * 1e9)


def test_lengths_are_exact_when_there_was_time_for_them(recorded: TaskApp) -> None:
    root = spans_of(*a_model_rollout(recorded, seconds=[0.25], total=10.0, scoring=1.0, cut=99))
    parts = [
        part for child in root.children for part in (child, *child.children) if part.name not in ("turn", "scoring")
    ]
    assert {part.end_ns - part.start_ns for part in parts} == {250_000_000}
    assert root.children[0].start_ns - root.start_ns == round((10.0 - 1.0 - 7 * 0.25) * 1e9), "waiting comes first"


def test_a_models_answer_is_told_in_the_words_of_the_convention(recorded: TaskApp) -> None:
    root = spans_of(*a_model_rollout(recorded, seconds=[0.1], total=10.0, scoring=1.0, cut=99))
    call = root.children[1].children[0]
    assert (call.name, call.kind) == ("chat gpt-x", "client")
    assert call.attributes == {
        "taskapp.policy": "noop", "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-x",
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 2,
    }  # fmt: skip


# -- when it is on ----------------------------------------------------------------------------------------------------


def test_no_tracing_without_otel_variables() -> None:
    assert tracing_of(Settings(), "x") is None
    for variables in ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
                      {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"}):  # fmt: skip
        assert tracing_of(Settings(variables=variables), "x") is None


def test_an_exporter_that_is_not_installed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"OTEL_TRACES_EXPORTER": "no-such-exporter"}
    assert tracing_of(Settings(variables=variables), "x") is None
    assert "no-such-exporter" in caplog.text


@pytest.mark.process
def test_without_the_extra_one_sentence_names_it(tmp_path: Path) -> None:
    """In a process that cannot import the SDK."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("")  # shadows the installed one: it has no `sdk`
    code = (
        "import logging; logging.basicConfig()\n"
        "from taskapp_kit.config import from_environment\nfrom taskapp_kit.serve.telemetry.tracing import tracing_of\n"
        "print(tracing_of(from_environment(), 'x'))"
    )
    environ = {"PYTHONPATH": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "None"
    (line,) = done.stderr.strip().splitlines()
    assert "pip install 'taskapp-kit[otel]'" in line


PROGRAM = """
import asyncio
from opentelemetry import trace
from taskapp_kit.config import from_environment
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.telemetry.tracing import tracing_of
from taskapp_kit.wire.rollout import RolloutRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(None) + chr(10))))
trace.set_tracer_provider(provider)
app = find_app("app.py")
tracing = tracing_of(from_environment(), app.name)
async def main():
    service = Service(app)
    service.watchers.append(tracing)
    body = {"run_id": "r", "env": {"seed": 1}, "policy": {"policy_name": "noop"}, "ops": [], "mode": "rl"}
    await service.rollout(RolloutRequest.model_validate(body))
    await service.close()
asyncio.run(main())
tracing.close()
"""


@pytest.mark.process
def test_traces_go_to_the_provider_that_the_process_set(tmp_path: Path, app: TaskApp) -> None:
    """In a process of its own, for it is global; what the variables name is used by stress/test_sentinels.py."""
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, cwd=tmp_path, env=environ
    )
    assert done.returncode == 0, done.stderr
    spans = [json.loads(line) for line in done.stdout.splitlines()]
    assert [span["name"] for span in spans].count("turn") == 3
    (root,) = [span for span in spans if span["name"] == "rollout"]
    assert root["resource"]["attributes"]["service.name"].startswith("unknown_service")

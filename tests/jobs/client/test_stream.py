"""A job's events: gapless, from a stream that lasts, one that breaks, and from polls."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskapp_kit.client import BackendClient
from taskapp_kit.errors import BackendError, BackendUnreachable
from taskapp_kit.jobs.client.stream import all_events, all_metrics, follow_events, hints_at_the_end
from tests.jobs.client.scripted_backend import RUN, ScriptedBackend, asked, numbered

pytestmark = pytest.mark.server


def followed(backend: ScriptedBackend, since_seq: int = 0, **options: Any) -> list[int]:
    """The numbers of the events, as they came."""

    async def numbers(client: BackendClient) -> list[int]:
        options.setdefault("poll_seconds", 0.01)
        return [event["seq"] async for event in follow_events(client, "job_1", since_seq, **options)]

    return asked(backend.app(), numbers, retries=0)


ALL = [event["seq"] for event in RUN]


@pytest.mark.parametrize(
    "how",
    [
        {"sse": ("rl",)},
        {"sse": ("learning",)},
        {"sse": ("rl",), "families": ("learning",)},
        {"sse": ()},
        {"sse": (), "families": ("orchestration",)},
        {"sse": (), "grows": 1},
        {"sse": ("rl",), "sse_cut": 4, "grows": 3},
        {"sse": ("rl",), "troubles": {"events/stream": [500]}},
        {"sse": ("rl",), "troubles": {"events/stream": ["html"]}},
        {"sse": ("rl",), "troubles": {"events/stream": ["drop"]}},
        {"sse": (), "troubles": {"jobs/job_1/events": ["drop", "truncated", 500, "html", 502]}},
        {"sse": ("rl",), "sse_skips": (5,), "troubles": {"jobs/job_1/events": [500, "drop"]}},
        {"sse": (), "troubles": {"GET rl/jobs/job_1": ["drop", 503, "truncated"]}},
    ],
    ids=str,
)
def test_every_event_comes_once_and_in_order(how: dict[str, Any]) -> None:
    backend = ScriptedBackend(events=RUN, **how)
    if how.get("grows"):
        backend.statuses = [{"status": "running"}] * 3 + [{"status": "succeeded"}]
    if "html" in str(how.get("troubles", {}).get("jobs/job_1/events")):
        with pytest.raises(BackendError):
            followed(backend)
        return
    assert followed(backend) == ALL


def test_it_takes_up_where_it_is_told_to() -> None:
    for sse in ((), ("rl",)):
        assert followed(ScriptedBackend(events=RUN, sse=sse), since_seq=6) == ALL[6:]


def test_a_silent_stream_is_left_for_polls() -> None:
    backend = ScriptedBackend(events=RUN, sse=("rl",), sse_cut=3, sse_hangs=True)
    assert followed(backend, silence_seconds=0.3) == ALL


def test_it_does_not_end_before_the_job_does() -> None:
    """A type that ends in `completed` may be of a part of the job; only the status says that it is over."""
    events = numbered("rl.train.started", "rl.train.completed", "rl.eval.started", "rl.eval.failed", "rl.job.completed")
    backend = ScriptedBackend(
        events=events, sse=("rl",), statuses=[{"status": "running"}] * 3 + [{"state": "Completed"}]
    )
    assert followed(backend) == [1, 2, 3, 4, 5]
    assert hints_at_the_end({"type": "workflow.failed"}) and not hints_at_the_end({"type": "rl.train.step"})
    assert not hints_at_the_end({"type": None})


def test_events_that_come_with_the_end_are_not_lost() -> None:
    backend = ScriptedBackend(events=RUN, late=4, statuses=[{"status": "running"}] * 2 + [{"status": "succeeded"}])
    assert followed(backend) == ALL


def test_a_job_that_is_over_has_been_told_to_the_end_though_no_event_says_so() -> None:
    backend = ScriptedBackend(events=RUN[:3], statuses=[{"status": "running"}, {"status": "failed"}])
    assert followed(backend) == [1, 2, 3]


@pytest.mark.parametrize("trouble", [401, 403, 404])
def test_a_refusal_ends_it(trouble: int) -> None:
    backend = ScriptedBackend(events=RUN, troubles={"jobs/job_1/events": [trouble] * 9})
    with pytest.raises(BackendError) as told:
        followed(backend)
    assert told.value.status == trouble


def test_a_backend_that_stays_away_ends_it_when_the_patience_is_over() -> None:
    backend = ScriptedBackend(events=RUN, troubles={"job_1/events": ["drop"] * 10_000})
    with pytest.raises(BackendUnreachable):
        followed(backend, patience_seconds=0.2)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.none() | st.integers(0, 12),
    skips=st.sets(st.integers(1, 11), max_size=6),
    twice=st.booleans(),
    since=st.integers(0, 12),
    troubles=st.lists(st.sampled_from(["drop", 500, "truncated", 503]), max_size=3),
)
def test_whatever_breaks_nothing_is_lost_or_doubled(
    cut: int | None, skips: set[int], twice: bool, since: int, troubles: list[Any]
) -> None:
    backend = ScriptedBackend(
        events=RUN, sse=("rl",), sse_cut=cut, sse_skips=tuple(skips), sse_twice=twice,
        troubles={"jobs/job_1/events": troubles},
    )  # fmt: skip
    assert followed(backend, since_seq=since) == [seq for seq in ALL if seq > since]


def test_all_events_and_all_metrics_page_by_page() -> None:
    many = numbered(*["rl.train.step"] * 450)
    points = [{"name": name, "value": 0.5, "step": step} for step in range(600) for name in ("reward", "loss", "kl")]
    backend = ScriptedBackend(events=many, points=points)

    assert asked(backend.app(), lambda client: all_events(client, "job_1", 10)) == many[10:]
    assert asked(backend.app(), lambda client: all_metrics(client, "job_1")) == points


def streamed(job: Any, events: Any, stream: Any = None, **options: Any) -> list[dict[str, Any]]:
    """The events that a client gets of a backend that answers so: JSON, or a handler."""
    app = web.Application()
    for path, answer in (("", job), ("/events", events), ("/events/stream", stream)):
        if answer is not None:
            app.router.add_get(f"/api/rl/jobs/job_1{path}", answer if callable(answer) else replying(answer))

    async def all_of_them(client: BackendClient) -> list[dict[str, Any]]:
        return [event async for event in follow_events(client, "job_1", **options)]

    return asked(app, all_of_them)


def replying(body: Any) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def test_a_stream_that_forgets_to_end_is_left_when_the_job_is_over() -> None:
    """Comments keep it open, and the event that tells of the end never comes."""

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"type": "rl.train.step"}\n\n')
        while True:
            await response.write(b": alive\n\n")
            await asyncio.sleep(0.02)

    events = streamed({"job_id": "job_1", "status": "Succeeded"}, {"events": []}, stream, status_seconds=0.2)
    assert [event["type"] for event in events] == ["rl.train.step"]


@pytest.mark.ci
def test_events_that_go_back_repeat_or_have_no_number() -> None:
    odd = [{"seq": seq, "type": "x", "message": str(seq)} for seq in (1, 2, 2, 1, -4, 3, 3)]
    odd += [{"seq": "4", "type": "x"}, {"seq": None}, {"seq": True}, {"type": 7}]
    assert [event["seq"] for event in streamed({"state": " FAILED "}, {"events": odd})] == [1, 2, 3]


def test_a_backend_that_makes_up_events_for_ever_is_not_held_in_memory() -> None:
    async def events(request: web.Request) -> web.Response:
        since = int(request.query["since_seq"])
        return web.json_response({"events": [{"seq": since + step} for step in range(1, 1001)]})

    app = web.Application()
    app.router.add_get("/api/rl/jobs/job_1/events", events)
    app.router.add_get("/api/rl/jobs/job_1", events)

    async def first(client: BackendClient) -> int:
        async with aclosing(client.stream("job_1")) as stream:
            return int((await anext(stream))["seq"])

    assert asked(app, first) == 1

"""A backend asked over HTTP: addresses, families of routes, what is sent again, what is told of a refusal."""

from __future__ import annotations

import pytest

from taskapp_kit.client import BackendClient, backend_url
from taskapp_kit.errors import BackendError, BackendUnreachable, ConfigError, JobConfigError
from tests.jobs.client.scripted_backend import KEY, RUN, ScriptedBackend, asked

pytestmark = pytest.mark.server


def test_every_route() -> None:
    backend = ScriptedBackend(events=RUN, points=[{"name": "reward", "value": 1.0, "step": 0}])

    async def all_of_them(client: BackendClient) -> None:
        assert (await client.health())["status"] == "ok"
        assert (await client.create_job({"job_type": "rl"}, idempotency_key="i-1"))["job_id"] == "job_1"
        assert (await client.get_job("job_1"))["status"] == "succeeded"
        assert (await client.list_jobs())[0]["job_id"] == "job_1"
        assert len(await client.events("job_1", 3, 5)) == 5
        assert (await client.metrics("job_1"))[0]["name"] == "reward"
        assert (await client.timeline("job_1"))[0]["phase"] == "queued"
        assert (await client.verify_task_app("http://127.0.0.1:1"))["any_ok"] is True
        assert await client.public_key() == "abc="
        assert (await client.put_env_key("ENVIRONMENT_API_KEY", "xyz="))["stored"] is True
        assert (await client.trainer("t/../1"))["trainer_id"]
        assert await client.start_job("job_1")
        assert (await client.cancel("job_1"))["status"] == "cancelled"
        assert [event["seq"] async for event in client.stream("job_1", 9)] == [10, 11]

    asked(backend.app(), all_of_them)
    path, body, headers = backend.posts[0]
    assert (path, body, headers["Idempotency-Key"]) == ("rl/jobs", {"job_type": "rl"}, "i-1")
    assert headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("end", ["", "/", "/api", "/api/"])
def test_api_is_appended_once(end: str) -> None:
    assert BackendClient(f"http://127.0.0.1:8500{end}", KEY).url == "http://127.0.0.1:8500/api"


def test_the_family_that_answered_is_asked_first_from_then_on() -> None:
    backend = ScriptedBackend(events=RUN, families=("learning",))

    async def twice(client: BackendClient) -> None:
        for _ in range(2):
            await client.get_job("job_1")
            await client.events("job_1")

    asked(backend.app(), twice)
    assert backend.asked == [
        "GET rl/jobs/job_1",
        "GET learning/jobs/job_1",
        "GET rl/jobs/job_1/events",
        "GET learning/jobs/job_1/events",
        "GET learning/jobs/job_1",
        "GET learning/jobs/job_1/events",
    ]


def test_a_job_that_no_family_knows() -> None:
    backend = ScriptedBackend()
    with pytest.raises(BackendError) as told:
        asked(backend.app(), lambda client: client.get_job("nobody"))
    assert told.value.status == 404
    assert len(backend.asked) == 3


def test_reads_are_asked_again() -> None:
    backend = ScriptedBackend(troubles={"GET rl/jobs/job_1": ["drop", "truncated"]})
    assert asked(backend.app(), lambda client: client.get_job("job_1"))["status"] == "succeeded"
    backend.troubles["GET rl/jobs/job_1"] = [502, 503]
    assert asked(backend.app(), lambda client: client.get_job("job_1"))["status"] == "succeeded"


@pytest.mark.parametrize("trouble", ["drop", "truncated", 502])
def test_a_job_is_made_again_only_with_its_key(trouble: str | int) -> None:
    backend = ScriptedBackend(troubles={"POST rl/jobs": [trouble]})
    with pytest.raises(BackendError):
        asked(backend.app(), lambda client: client.create_job({}))
    assert len(backend.posts) == 1
    backend.troubles = {"POST rl/jobs": [trouble, trouble]}
    assert asked(backend.app(), lambda client: client.create_job({}, idempotency_key="same"))["job_id"] == "job_1"
    assert [headers["Idempotency-Key"] for _, _, headers in backend.posts[1:]] == ["same"] * 3


def test_a_slow_backend_is_not_waited_for() -> None:
    backend = ScriptedBackend(troubles={"health": ["slow"]})
    with pytest.raises(BackendUnreachable):
        asked(backend.app(), lambda client: client.health(), timeout_seconds=0.3)


@pytest.mark.parametrize("trouble", [500, 400, 302, "html"])
def test_a_page_of_the_server_is_not_shown(trouble: str | int) -> None:
    backend = ScriptedBackend(troubles={"health": [trouble]})
    with pytest.raises(BackendError) as told:
        asked(backend.app(), lambda client: client.health())
    assert "secret-page" not in str(told.value)
    assert told.value.status == (200 if trouble == "html" else trouble)


def test_a_refused_key_is_not_shown() -> None:
    with pytest.raises(BackendError) as told:
        asked(ScriptedBackend().app(), lambda client: client.health(), key="sk-wrong-4711")
    assert told.value.status == 401
    assert "sk-wrong" not in str(told.value) + repr(told.value)


@pytest.mark.parametrize("name", ["", "..", "x" * 600])
def test_an_id_stays_one_part_of_the_path(name: str) -> None:
    with pytest.raises(JobConfigError):
        asked(ScriptedBackend().app(), lambda client: client.get_job(name))


def test_an_id_with_slashes_is_quoted() -> None:
    backend = ScriptedBackend()
    with pytest.raises(BackendError):
        asked(backend.app(), lambda client: client.cancel("../../v1/env-keys"))
    assert backend.asked == ["POST rl/jobs/../../v1/env-keys/cancel"]  # as the server reads the quoted part


def test_which_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        backend_url(None)
    monkeypatch.setenv("PROD_BACKEND_URL", "http://prod.invalid")
    assert backend_url(None) == "http://prod.invalid"
    monkeypatch.setenv("BACKEND_BASE_URL", "http://base.invalid")
    assert backend_url(" ") == "http://base.invalid"
    assert backend_url("http://given.invalid") == "http://given.invalid"

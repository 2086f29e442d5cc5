"""Every stored rollout is found by its id and in the list, as far as the store has it, and nothing private with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit import TaskApp
from taskapp_kit.client import SyncTaskAppClient
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import TaskAppError
from taskapp_kit.store import open_store
from tests.live_app import SECRET, a_body
from tests.plain_store import PlainStore
from tests.serve.running_server import KEY, RunningServer, error_of, opened, request_body
from tests.store.postgres_server import server
from tests.stress.server import stored

pytestmark = [pytest.mark.process, pytest.mark.server]

LIVE = Path(__file__).parent.parent / "live_app.py"
LACKING = ("ops_executed",)


@pytest.fixture(scope="module", params=["file", "postgres"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of an app with pictures and a private end state, that keeps 12 rollouts."""
    app = find_app(str(LIVE))
    assert isinstance(app, TaskApp)
    file = str(tmp_path_factory.mktemp("stored") / "rollouts.db")
    store = open_store(server().database() if request.param == "postgres" else file)
    with opened(store=store, serves=app) as running:
        for seed in range(10):
            body = a_body(seed, steps=seed + 1) | {"run_id": f"run-{seed % 2}", "group_id": "g" if seed > 6 else None}
            assert running.client.post("/rollout", json=body).status_code == 200
        assert running.client.post("/rollout", json=a_body(50, breaks="step")).status_code == 500
        assert running.client.post("/rollout", json=a_body(51, breaks="rubric")).status_code == 500
        yield running


def listed(running: RunningServer, query: str = "") -> list[dict[str, Any]]:
    answer = running.client.get(f"/rollouts{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rollouts"])


@pytest.mark.parametrize("image", [False, True])
def test_a_plain_rollout_is_found_as_it_was_answered(live: RunningServer, image: bool) -> None:
    body = a_body(20, image=image) | {"group_id": "of-one"}
    body["record"] = {"trajectories": True, "return_trace": False}
    answered = live.client.post("/rollout", json=body).json()
    found = live.client.get(f"/rollouts/{answered['rollout_id']}")
    assert found.status_code == 200, found.text
    told = found.json()
    for name in LACKING:
        assert told.pop(name) is None and answered.pop(name) is not None
    assert told["pipeline_metadata"].pop("warnings") is None and answered["pipeline_metadata"].pop("warnings") == []
    for one in (told, answered):
        one["versions"].pop("git")
        for name in ("env_id", "policy_id"):
            label = one["trajectories"][0].pop(name)
            assert (label is None) is (one is told)
    assert told == answered


def test_events_are_added_when_they_are_asked_for(live: RunningServer) -> None:
    rollout_id = live.client.post("/rollout", json=a_body(21)).json()["rollout_id"]
    found = live.client.get(f"/rollouts/{rollout_id}?events=1")
    (trajectory,) = found.json()["trajectories"]
    kinds = [event["kind"] for event in trajectory["trace"]["event_history"]]
    assert kinds[0] == "started" and kinds[-1] == "scored" and "stepped" in kinds
    assert live.client.get(f"/rollouts/{rollout_id}").json()["trajectories"][0]["trace"]["event_history"] == []
    streamed = live.client.get(f"/rollouts/{rollout_id}", headers={"Accept": "text/event-stream"}).text
    assert streamed.count("event: ") == len(kinds) + 1 and "event: result" in streamed
    for query in ("?events=2", "?events=1&events=1", "?event=1"):
        assert error_of(live.client.get(f"/rollouts/{rollout_id}{query}"))["code"] == "invalid_query"


def test_a_ticket_s_answer_gets_its_events_too(live: RunningServer) -> None:
    answered = live.client.post("/rollout", json=a_body(22), headers={"Idempotency-Key": "k22"}).json()
    found = live.client.get(f"/rollouts/{answered['rollout_id']}?events=1").json()
    assert found["trajectories"][0]["trace"].pop("event_history")
    assert answered["trajectories"][0]["trace"].pop("event_history") == []
    assert found == answered


def test_without_a_store_a_ticket_has_its_events() -> None:
    with opened() as running:
        answered = running.client.post("/rollout", json=request_body(), headers={"Idempotency-Key": "k"}).json()
        found = running.client.get(f"/rollouts/{answered['rollout_id']}?events=1").json()
        assert found["trajectories"][0]["trace"]["event_history"]
        assert error_of(running.client.get("/rollouts"))["code"] == "unavailable"


def test_a_failed_one_is_its_envelope(live: RunningServer) -> None:
    (row,) = listed(live, "?boundary=environment")
    found = live.client.get(f"/rollouts/{row['id']}")
    error = error_of(found)
    assert (found.status_code, error["code"], error["boundary"], error["rollout_id"]) == (
        500, "environment_raised", "environment", row["id"],
    )  # fmt: skip
    told = live.client.get(f"/rollouts/{row['id']}?events=1").json()
    assert told["detail"]["error"]["code"] == "environment_raised"
    assert "failed" in [event["kind"] for event in told["trace"]["event_history"]]


@pytest.mark.parametrize(("key", "found"), [("trial", 200), (None, 404)])
@pytest.mark.parametrize("breaks", [None, "step"])
def test_a_trial_is_in_no_list_and_its_key_has_its_answer(
    live: RunningServer, breaks: str | None, key: str | None, found: int
) -> None:
    before = [row["id"] for row in listed(live)]
    body = a_body(23, **({"breaks": breaks} if breaks else {})) | {"group_id": "trial", "record": {"store": False}}
    headers = {"Idempotency-Key": f"{key}-{breaks}"} if key else {}
    first, again = (live.client.post("/rollout", json=body, headers=headers) for _ in range(2))
    assert first.status_code == again.status_code == (500 if breaks else 200)
    played = [error_of(each)["rollout_id"] if breaks else each.json()["rollout_id"] for each in (first, again)]
    assert (played[0] == played[1]) == (key is not None)
    assert [row["id"] for row in listed(live)] == before and listed(live, "?group_id=trial") == []
    assert live.client.get(f"/rollouts/{played[0]}").status_code == (500 if breaks and found == 200 else found)


def test_stored_rollout_contains_nothing_private(live: RunningServer) -> None:
    for row in listed(live, "?limit=500"):
        assert set(row) == {
            "id", "created_at", "environment", "split", "seed", "policy", "model", "status", "stop_reason", "boundary",
            "reward", "length", "tokens", "cost", "seconds", "run_id", "group_id",
        }  # fmt: skip
        assert SECRET not in live.client.get(f"/rollouts/{row['id']}?events=1").text


def test_pages_hold_each_rollout_once_newest_first(live: RunningServer) -> None:
    whole = listed(live, "?limit=500")
    assert whole == sorted(whole, key=lambda row: (row["created_at"], row["id"]), reverse=True)
    assert len(listed(live)) == min(50, len(whole))
    paged: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = live.client.get(f"/rollouts?limit=5{cursor}").json()
        paged += page["rollouts"]
        if page["next_cursor"] is None:
            break
        assert len(page["rollouts"]) == 5
        cursor = f"&cursor={page['next_cursor']}"
    assert paged == whole


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("run_id=run-1", lambda row: row["run_id"] == "run-1"),
        ("group_id=g", lambda row: row["group_id"] == "g"),
        ("environment=show", lambda row: True),
        ("environment=none", lambda row: False),
        ("policy=noop&status=terminated", lambda row: row["status"] == "terminated"),
        ("status=failed", lambda row: row["status"] == "failed"),
        ("boundary=scoring", lambda row: row["boundary"] == "scoring"),
        ("reward_above=0.5", lambda row: row["reward"] is not None and row["reward"] > 0.5),
        ("reward_above=1", lambda row: False),
        ("reward_below=1.5&run_id=run-0", lambda row: row["reward"] is not None and row["run_id"] == "run-0"),
        ("key_label=environment", lambda row: True),
        ("key_label=nobody", lambda row: False),
        ("run_id=%00%1a%27", lambda row: False),
    ],
)
def test_filters(live: RunningServer, query: str, fits: Any) -> None:
    whole = listed(live, "?limit=500")
    assert listed(live, f"?limit=500&{query}") == [row for row in whole if fits(row)]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "limit=", "status=done", "boundary=x", "reward_above=nan", "reward_below=x",
     "cursor=x", "cursor=W10", "cursor=%ff", "order=asc", "run_id=a&run_id=a", "run_id=" + "x" * 513],
)  # fmt: skip
def test_invalid_list_query_is_rejected(live: RunningServer, query: str) -> None:
    answer = live.client.get(f"/rollouts?{query}")
    assert (answer.status_code, error_of(answer)["code"]) == (422, "invalid_query")


def test_client_lists_and_loads_stored_rollouts(live: RunningServer) -> None:
    client = SyncTaskAppClient(live.url, KEY)
    page = client.rollouts(limit=2, status="terminated")
    assert len(page["rollouts"]) == 2 and page["next_cursor"]
    row = client.rollouts(limit=1, status="terminated", cursor=page["next_cursor"])["rollouts"][0]
    assert client.rollout_by_id(row["id"], events=True)["rollout_id"] == row["id"]
    with pytest.raises(TaskAppError) as unknown:
        client.rollout_by_id("0" * 32)
    assert unknown.value.status == 404
    failed = client.rollouts(limit=1, boundary="scoring")["rollouts"][0]
    with pytest.raises(TaskAppError) as broken:
        client.rollout_by_id(failed["id"])
    assert broken.value.boundary == "scoring"


def test_store_that_cannot_list_still_finds_by_id() -> None:
    with opened(store=PlainStore()) as running:
        rollout_id = running.client.post("/rollout", json=request_body()).json()["rollout_id"]
        assert running.client.get(f"/rollouts/{rollout_id}").status_code == 200
        answer = running.client.get("/rollouts")
        assert (answer.status_code, error_of(answer)["code"]) == (422, "unavailable")


def test_a_replay_takes_the_stored_episode_and_refuses_another(tmp_path: Path) -> None:
    with opened(store=open_store(str(tmp_path / "r.db"))) as running:
        body = request_body(seed=70, config={"low": 4, "split": "test"})
        body["policy"] = {"config": {"policy": "one", "sample": 3}}
        first = running.client.post("/rollout", json=body).json()

        def replayed(env: dict[str, Any], **config: Any) -> httpx.Response:
            policy = {"config": {"policy": "replay", "rollout_id": first["rollout_id"], **config}}
            return running.client.post("/rollout", json=request_body() | {"env": env, "policy": policy})

        same = {"env_name": "counter", "seed": 70, "config": {"low": 4, "split": "test"}}
        for env in ({}, same, {"seed": 70}, {"config": {"split": "test"}}, {"config": {"index": 6, "split": "test"}}):
            answer = replayed(env)
            assert answer.status_code == 200, answer.text
            assert answer.json()["digest"] == first["digest"]
        assert replayed({}, sample=3).status_code == 200
        assert stored(tmp_path / "r.db", answer.json()["rollout_id"]).policy["sample"] == 3
        for env, named in (
            ({"env_name": "slow"}, ["body", "env", "env_name"]),
            ({"seed": 71}, ["body", "env", "seed"]),
            ({"config": {"split": "train"}}, ["body", "env", "config", "split"]),
            ({"config": {"low": 5}}, ["body", "env", "config", "low"]),
            ({"config": {"high": 9}}, ["body", "env", "config", "high"]),
        ):
            error = error_of(replayed(env))
            assert error["code"] == "replay_differs"
            assert [field["loc"] for field in error["fields"]] == [named]  # type: ignore[attr-defined]
        error = error_of(replayed({"seed": 71}, sample=4))
        assert [field["loc"][-1] for field in error["fields"]] == ["seed", "sample"]  # type: ignore[attr-defined]

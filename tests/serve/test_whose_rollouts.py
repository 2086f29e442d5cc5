"""Key labels are tenants: by id, in lists, in replays and groups each sees its own; the operator and admins see all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.store import open_store
from tests.live_app import a_body
from tests.serve.running_server import KEY, LABEL_KEYS, RunningServer, error_of, labelled_keys, opened, request_body
from tests.store.postgres_server import server
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]

UNKNOWN = "0" * 32
LIVE = Path(__file__).parent.parent / "live_app.py"
KEYS = {**LABEL_KEYS, "operator": KEY}
ALL = ("root", "operator")


@dataclass
class TwoServers:
    """Two servers of different apps on one store, and what alice and bob played at the first."""

    running: RunningServer
    other: RunningServer
    mine: dict[str, list[str]] = field(default_factory=dict)
    fetched: dict[str, str] = field(default_factory=dict)
    elsewhere: str = ""

    def ask(
        self, who: str, method: str, path: str, running: RunningServer | None = None, **named: Any
    ) -> httpx.Response:
        headers = {"X-API-Key": KEYS[who], **named.pop("headers", {})}
        return httpx.request(method, (running or self.running).url + path, headers=headers, timeout=30, **named)


@pytest.fixture(scope="module", params=["file", "postgres"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoServers]:
    folder = tmp_path_factory.mktemp("servers")
    address = server().database() if request.param == "postgres" else str(folder / "rollouts.db")
    known, live = labelled_keys(folder), find_app(str(LIVE))
    assert isinstance(live, TaskApp)
    with (
        opened(known, store=open_store(address)) as running,
        opened(known, store=open_store(address), serves=live) as two,
    ):
        made = TwoServers(running, two)
        for who in ("alice", "bob"):
            bodies = [request_body(seed=1, group_id="shared"), request_body(seed=1, group_id="shared", run_id="two")]
            made.mine[who] = [_played(made.ask(who, "POST", "/rollout", json=body)) for body in bodies]
            answer = made.ask(who, "POST", "/rollout", json=request_body(seed=2), headers={"Idempotency-Key": "same"})
            made.fetched[who] = _played(answer)
        made.elsewhere = _played(made.ask("alice", "POST", "/rollout", two, json=a_body(3)))
        yield made


def _played(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["rollout_id"])


def _sees(who: str, whose: str) -> bool:
    return who in ALL or who == whose


@pytest.mark.parametrize(("who", "whose"), list(product(KEYS, ("alice", "bob"))))
@pytest.mark.parametrize("kept", ["mine", "fetched"])
def test_by_id(servers: TwoServers, who: str, whose: str, kept: str) -> None:
    wanted = servers.mine[whose][0] if kept == "mine" else servers.fetched[whose]
    for suffix, headers in (("", {}), ("?events=1", {}), ("", {"Accept": "text/event-stream"})):
        found = servers.ask(who, "GET", f"/rollouts/{wanted}{suffix}", headers=headers)
        unknown = servers.ask(who, "GET", f"/rollouts/{UNKNOWN}{suffix}", headers=headers)
        assert unknown.status_code == 404
        if _sees(who, whose):
            assert found.status_code == 200 and wanted in found.text, found.text
        else:
            assert (found.status_code, found.text) == (404, unknown.text)
    ended = servers.ask(who, "DELETE", f"/rollouts/{wanted}")
    assert ended.status_code == (200 if _sees(who, whose) else 404)


@pytest.mark.parametrize(("who", "whose"), list(product(KEYS, ("alice", "bob"))))
def test_replay_and_groups(servers: TwoServers, who: str, whose: str) -> None:
    def replayed(rollout_id: str) -> httpx.Response:
        body = request_body() | {"env": {}, "policy": {"config": {"policy": "replay", "rollout_id": rollout_id}}}
        return servers.ask(who, "POST", "/rollout", json=body)

    wanted = servers.mine[whose]
    answer, unknown = replayed(wanted[0]), replayed(UNKNOWN)
    assert unknown.status_code == 422
    group = servers.ask(who, "POST", "/score_group", json={"rollout_ids": wanted})
    no_group = servers.ask(who, "POST", "/score_group", json={"rollout_ids": [UNKNOWN, "1" * 32]})
    assert error_of(no_group)["code"] == "no_such_rollout"
    if _sees(who, whose):
        assert answer.status_code == 200, answer.text
        assert error_of(group)["code"] == "unavailable", "this environment has no group judge, which is asked later"
    else:
        assert answer.text == unknown.text.replace(UNKNOWN, wanted[0])
        assert group.text == no_group.text.replace(UNKNOWN, wanted[0])


def test_a_group_by_its_label_has_the_callers_own(servers: TwoServers) -> None:
    code = error_of(servers.ask("alice", "POST", "/score_group", json={"group_id": "shared"}))["code"]
    assert code == "unavailable"
    made = servers.ask("bob", "POST", "/rollout", json=request_body(seed=9, group_id="of-bob"))
    assert made.status_code == 200
    code = error_of(servers.ask("alice", "POST", "/score_group", json={"group_id": "of-bob"}))["code"]
    assert code == "no_such_group"


@pytest.mark.parametrize("who", list(KEYS))
def test_the_list(servers: TwoServers, who: str) -> None:
    listed = servers.ask(who, "GET", "/rollouts?limit=500").json()["rollouts"]
    names = {row["id"] for row in listed}
    for whose in ("alice", "bob"):
        theirs = {*servers.mine[whose], servers.fetched[whose]}
        assert theirs <= names if _sees(who, whose) else not theirs & names
    assert servers.elsewhere not in names
    by_label = servers.ask(who, "GET", "/rollouts?limit=500&key_label=bob")
    if who in ALL:
        found = {row["id"] for row in by_label.json()["rollouts"]}
        assert set(servers.mine["bob"]) <= found and not found & set(servers.mine["alice"])
    else:
        assert by_label.status_code == 403 and error_of(by_label)["code"] == "admin_only"


@pytest.mark.parametrize("who", list(KEYS))
def test_rollouts_of_another_app_in_the_same_store_are_unknown(servers: TwoServers, who: str) -> None:
    assert servers.ask(who, "GET", f"/rollouts/{servers.elsewhere}").status_code == 404
    assert servers.ask(who, "DELETE", f"/rollouts/{servers.elsewhere}").status_code == 404
    for wanted in (servers.mine["alice"][0], servers.fetched["alice"]):
        assert servers.ask(who, "GET", f"/rollouts/{wanted}", servers.other).status_code == 404
    # one Idempotency-Key at both apps is two rollouts
    answer = servers.ask(
        "alice", "POST", "/rollout", servers.other, json=a_body(4), headers={"Idempotency-Key": "same"}
    )
    assert answer.status_code == 200 and answer.json()["rollout_id"] != servers.fetched["alice"]


def test_running_rollout_is_visible_only_to_its_label(servers: TwoServers, tmp_path: Path) -> None:
    body = a_body(5, gate=tmp_path / "gate", mark=tmp_path / "mark")
    taken = servers.ask("alice", "POST", "/rollout", servers.other, json=body, headers={"Prefer": "respond-async"})
    assert taken.status_code == 202
    path = taken.headers["location"]
    until((tmp_path / "mark").exists, 20)
    for method in ("GET", "DELETE"):
        assert servers.ask("bob", method, path, servers.other).status_code == 404
        assert servers.ask("bob", method, path).status_code == 404
    assert servers.ask("alice", "GET", path, servers.other).status_code == 202
    assert servers.ask("root", "DELETE", path, servers.other).json()["status"] == "cancelled"

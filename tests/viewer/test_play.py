"""A person plays in the viewer: what the pages of a real server show and do, without a script."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.config import Settings
from taskapp_kit.declare.specs import ActionSpec
from taskapp_kit.interop.protocols import load_protocols
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.viewer.action_forms import BadFields, action_forms, fields_of, read_fields
from taskapp_kit.viewer.pages import shown
from tests.serve.running_server import KEY, LABEL_KEYS, RunningServer, fragments, labelled_keys, opened
from tests.viewer import play_app
from tests.viewer.hostile_texts import TEXTS
from tests.viewer.test_pages import Elements
from tests.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.process]

PROTOCOLS = ("openenv",)


class HandClock(SystemClock):
    """The system's clock, moved forward by hand."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + HandClock.ahead


@dataclass
class Game:
    """A person at the pages of one sitting; `page` is the latest."""

    http: httpx.Client
    page: httpx.Response

    @classmethod
    def begin(cls, running: RunningServer, environment: str, *, key: str = KEY, seed: str = "1", **form: str) -> Game:
        http = httpx.Client(base_url=running.url, headers={"X-API-Key": key}, timeout=30, follow_redirects=True)
        form = {"environment": environment, "sitting": hidden(http.get(f"/ui/environment?environment={environment}"), "sitting"),
                "split": "train", "seed": seed, **form}  # fmt: skip
        return cls(http, http.post("/ui/environment", data=form))

    @property
    def address(self) -> str:
        return str(self.page.url.path)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{self.address}.json").json()
        return found

    def press(self, label: str) -> Game:
        """The button of an action, by its words."""
        for form in re.findall(r"<form.*?</form>", self.page.text, re.S):
            for args, words in re.findall(r'<button name="args" value="([^"]*)"[^>]*>(.*?)</button>', form, re.S):
                if re.sub(r"<kbd>.*?</kbd>|\s", "", words) == label:
                    return self.post(which=re.search(r'name="which" value="(\d+)"', form)[1], args=unescape(args))  # type: ignore[index]
        raise AssertionError(f"there is no button {label}: {self.page.text}")

    def post(self, **form: str) -> Game:
        self.page = self.http.post(self.address, data={"at": hidden(self.page, "at"), **form})
        assert self.page.status_code == 200, self.page.text[:500]
        return self

    def leave(self) -> None:
        at = hidden(self.http.get(self.address), "at")
        assert self.http.post(self.address, data={"at": at, "do": "close"}).url.path == "/ui/environment"


def hidden(page: httpx.Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found is not None, page.text[-3000:]
    return unescape(found[1])


def stored(running: RunningServer, rollout_id: str) -> dict[str, Any]:
    found: dict[str, Any] = running.client.get(f"/ui/rollouts/{rollout_id}.json").json()
    return found


@pytest.fixture(scope="module")
def arcade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("arcade")
    settings = labelled_keys(folder, ui=True, protocols=PROTOCOLS)
    store = open_store(f"sqlite:///{folder}/rollouts.db")

    def make(*args: Any, **more: Any) -> Service:
        return Service(*args, **more, clock=HandClock())

    with opened(settings, store=store, serves=play_app.app, make=make) as running:
        yield running
        for found in running.client.get("/sessions").json()["sessions"]:
            running.client.delete(f"/sessions/{found['session_id']}")


# -- an episode ----------------------------------------------------------------------------------------------------


def test_an_episode_is_played_to_its_end_and_is_an_ordinary_rollout(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", **{"config:f0": "2", "config:f1": "true"})
    assert "You are at 0 of 2." in game.page.text and "0 of 9" in game.page.text
    (picture,) = re.findall(r'<img src="(/ui/blobs/[^"]+)"', game.page.text)
    assert game.http.get(picture).content.startswith(b"\x89PNG")
    game.press("right")
    assert "You are at 1 of 2." in game.page.text and game.state["rewards"] == {"env": 0.0, "event": 0.0}
    game.press("right")
    assert "The episode has ended" in game.page.text
    state = game.state
    assert state["state"] == "over" and state["episode"]["reward"] == 1.0 and state["rewards"]["outcome"] == 1.0
    assert [item["name"] for item in state["episode"]["criteria"]] == ["arrived"]
    found = stored(arcade, state["episode"]["rollout_id"])
    same = arcade.client.post(
        "/rollout",
        json={"run_id": "x", "mode": "rl", "ops": [], "env": {"env_name": "walk", "seed": 1, "config": {"edge": 2, "image": True}},
              "policy": {"config": {"policy": "right"}}},
    ).json()  # fmt: skip
    assert found["status"] == "terminated" and found["reward"] == stored(arcade, same["rollout_id"])["reward"]
    assert found["policy"] == "person" and found["policy_config"]["protocol"] == "viewer"
    assert found["run_id"] == f"play-{game.address.rpartition('/')[2]}"
    rows = arcade.client.get("/ui/rollouts.json?policy=person&environment=walk").json()["rollouts"]
    assert found["rollout_id"] in [row["rollout_id"] for row in rows]
    page = arcade.client.get(f"/ui/rollouts/{found['rollout_id']}")
    assert page.status_code == 200 and "You are at 2 of 2." in page.text
    pair = arcade.client.get(f"/ui/compare.json?a={found['rollout_id']}&b={same['rollout_id']}").json()
    assert pair["difference"] is None
    game.leave()


def test_episodes_follow_one_another_in_a_sitting(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", seed="3", **{"config:f0": "1"})
    game.press("right")
    game.post(do="again")
    assert game.state["episode"]["seed"] == 3 and game.state["turn"] == 0 and "0 of 1." in game.page.text, (
        "config stays"
    )
    game.post(do="finish")
    assert game.state["episode"]["status"] == "truncated" and game.state["episode"]["stop_reason"] == "finished"
    game.post(do="another")
    assert game.state["state"] == "playing"
    run = arcade.client.get(f"/ui/rollouts.json?run_id=play-{game.address.rpartition('/')[2]}").json()["rollouts"]
    assert len(run) == 2
    game.leave()
    assert "no longer open" in game.http.get(game.address).text


def test_a_refused_action_says_why(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk")
    game.press("left")
    assert "There is a wall on the left." in game.page.text and "consecutive refusals" in game.page.text
    assert "You are at 0 of 3." in game.page.text, "what was seen before stays"
    assert game.state["limits"][2] == ["consecutive refusals", "1 of 10"]
    game.press("right")
    assert "consecutive refusals" not in game.page.text
    game.leave()


def test_a_failure_has_a_boundary_and_no_reward(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", seed="5")
    game.press("right").press("right")
    assert "failed at boundary environment" in game.page.text and "It has no reward" in game.page.text
    assert "the floor gave way" not in game.page.text, "an exception's text is for the log"
    state = game.state
    assert state["episode"]["reward"] is None and state["episode"]["failure"]["boundary"] == "environment"
    assert stored(arcade, state["episode"]["rollout_id"])["status"] == "failed"
    game.post(do="another")
    assert game.state["state"] == "playing"
    game.leave()


def test_a_session_that_expired_shows_how_it_ended(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk")
    game.press("right")
    at = hidden(game.page, "at")
    HandClock.ahead += arcade.service.sessions.idle_seconds + 60
    try:
        until(lambda: not arcade.service.sessions.listed(), 10)
        page = game.http.get(game.address)
    finally:
        HandClock.ahead = 0.0
    assert page.status_code == 200 and "no longer open" in page.text
    assert "session_idle" in page.text and "boundary timeout" in page.text
    after = game.http.post(game.address, data={"at": at, "which": "0", "args": '{"way":"right"}'})
    assert after.url.path == game.address and "no longer open" in after.text


# -- forms -----------------------------------------------------------------------------------------------------------

FORMS = list(play_app.app.freeze().environments["forms"].actions.values())
EVERYTHING = FORMS[0].tool.parameters
LINE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\x00"))
ARGUMENTS = st.fixed_dictionaries(
    {
        "number": st.integers(-5, 500),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "word": LINE,
        "sure": st.booleans(),
        "colour": st.sampled_from(["red", "blue"]),
        "point": st.fixed_dictionaries({"x": st.integers()}, optional={"y": st.integers()}),
        "several": st.lists(st.sampled_from(["a", "b"]), min_size=1),
    },
    optional={
        "maybe": st.integers(), "either": st.integers() | LINE, "few": st.integers(1, 3), "notes": st.lists(LINE),
    },
)  # fmt: skip


def typed(schema: Any, args: dict[str, Any]) -> dict[str, str]:
    """The form as a browser sends it when a person enters these arguments; every control is sent."""
    form = {}
    for one in fields_of(schema):
        value = args.get(one.name)
        if one.name not in args:
            form[one.control] = ""
        elif one.kind == "text":
            form[one.control] = value.replace("\n", "\r\n")
        elif one.kind == "words":
            form[one.control] = " ".join(value)
        else:
            form[one.control] = json.dumps(value)
    return form


@given(ARGUMENTS)
def test_what_a_person_enters_is_what_the_action_gets(args: dict[str, Any]) -> None:
    assert read_fields(EVERYTHING, typed(EVERYTHING, args)) == args


@given(st.dictionaries(st.sampled_from([f"f{index}" for index in range(11)]), LINE))
def test_any_form_is_read_or_refused_with_a_sentence(form: dict[str, str]) -> None:
    try:
        json.dumps(read_fields(EVERYTHING, form))
    except BadFields as error:
        assert all(error.problems.values())


def test_each_kind_of_argument_has_its_control() -> None:
    kinds = {one.name: one.kind for one in fields_of(EVERYTHING)}
    assert kinds == {
        "number": "number", "share": "number", "word": "text", "sure": "choice", "colour": "choice", "point": "json",
        "several": "words", "maybe": "number", "either": "json", "few": "choice", "notes": "json",
    }  # fmt: skip


def actions_of(environment: str) -> list[ActionSpec]:
    return list(play_app.app.freeze().environments[environment].actions.values())


def test_keys_come_from_the_environment_else_from_words_and_digits() -> None:
    go, rest = action_forms(actions_of("walk"), ("go", "rest"))
    assert [(one.label, one.keys) for one in go.buttons] == [("left", ("ArrowLeft",)), ("right", ("ArrowRight",))]
    assert [(one.label, one.keys) for one in rest.buttons] == [("rest", ("b",))]
    (poke,) = action_forms(actions_of("zoo"), ("poke",))
    assert [one.keys for one in poke.buttons] == [("1",), ("2",), ("3",)]
    assert action_forms(actions_of("walk"), ()) == []


def test_a_form_is_sent_and_wrong_input_costs_no_turn(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "forms")
    args = {"number": 7, "share": 0.5, "word": "w", "sure": True, "colour": "red", "point": {"x": 1}, "several": ["a", "b"]}  # fmt: skip
    form = typed(EVERYTHING, args)
    for control, text, said in (
        ("f0", "", "must not be empty"), ("f0", "501", "less than or equal to 500"), ("f5", "{", "is not valid JSON"),
        ("f5", '{"y": 1}', "x"), ("f6", "a nonsense", "nonsense"), ("f4", '"green"', "red"),
    ):  # fmt: skip
        game.post(which="0", **{**form, control: text})
        assert said in game.page.text and 'role="alert"' in game.page.text, (control, text)
        assert game.state["turn"] == 0
        assert control == "f4" or not text or text in unescape(game.page.text), "what was typed stays"
    game.post(which="0", **form)
    assert game.state["turn"] == 1
    seen = json.loads(game.state["episode"]["turns"][0]["steps"][0]["observation"][0])
    assert seen == {**args, "point": {"x": 1, "y": 0}, "maybe": None, "either": "x", "few": 2, "notes": []}
    game.post(which="1", text="hello\r\nthere")
    assert "You said &#39;hello\\nthere&#39;." in game.page.text and game.state["turn"] == 2
    game.post(which="1", text="  ")
    assert "must not be empty" in game.page.text and game.state["turn"] == 2
    game.post(which="77", args="{}")
    assert game.state["turn"] == 2
    game.leave()


def test_a_wrong_start_is_shown_beside_its_field_and_leaves_no_session(arcade: RunningServer) -> None:
    before = len(arcade.service.sessions)
    for form, said in (
        ({"seed": "x"}, "must be an integer"), ({"seed": "99"}, "99"), ({"split": "none"}, "none"),
        ({"config:f0": "1000"}, "less than or equal to 50"), ({"config:f0": "q"}, "q"),
    ):  # fmt: skip
        game = Game.begin(arcade, "walk", **{"seed": "1", **form})
        assert game.page.status_code == 200 and game.address == "/ui/environment", form
        assert said in game.page.text and 'role="alert"' in game.page.text
        assert len(arcade.service.sessions) == before


# -- twice, late, from elsewhere ---------------------------------------------------------------------------------------


def test_a_form_sent_twice_acts_once(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", seed="2")
    at, before = hidden(game.page, "at"), len(play_app.MOVES)
    form = {"at": at, "which": "0", "args": '{"way":"right"}'}
    posts = [threading.Thread(target=game.http.post, args=(game.address,), kwargs={"data": form}) for _ in range(8)]
    for post in posts:
        post.start()
    for post in posts:
        post.join(timeout=30)
    assert len(play_app.MOVES) == before + 1 and game.state["turn"] == 1
    late = game.http.post(game.address, data=form)
    assert "changed after your page" in late.text and len(play_app.MOVES) == before + 1, (
        "as after the browser's back button"
    )
    other = game.http.post(game.address, data={**form, "args": '{"way":"left"}'})
    assert "changed after your page" in other.text and game.state["turn"] == 1, "and in a second tab"
    for do in ("finish", "close", "again"):
        assert "changed after your page" in game.http.post(game.address, data={"at": at, "do": do}).text
    assert game.state["state"] == "playing"
    game.leave()


def test_a_start_sent_twice_begins_one_episode(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", seed="4")
    before = list(play_app.STARTS)
    form = {"environment": "walk", "sitting": game.address.rpartition("/")[2], "split": "train", "seed": "9"}
    again = game.http.post("/ui/environment", data=form)
    assert again.url.path == game.address and before == play_app.STARTS
    assert game.http.post("/ui/environment", data={**form, "sitting": "../../x"}).status_code == 422
    game.leave()


def test_only_the_player_sees_and_plays_a_sitting(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk", key=LABEL_KEYS["alice"])
    form = {"at": hidden(game.page, "at"), "which": "0", "args": '{"way":"right"}'}
    for who in ("bob", "root"):
        header = {"X-API-Key": LABEL_KEYS[who]}
        assert httpx.get(arcade.url + game.address, headers=header).status_code == 404
        httpx.post(arcade.url + game.address, data=form, headers=header)
        assert "Your open episodes" not in httpx.get(f"{arcade.url}/ui/environments", headers=header).text
    assert game.state["turn"] == 0
    assert "Your open episodes" in game.http.get("/ui/environments").text
    game.leave()


def test_another_site_can_not_play(arcade: RunningServer) -> None:
    game = Game.begin(arcade, "walk")
    form = {"at": hidden(game.page, "at"), "do": "close"}
    browser = httpx.Client(base_url=arcade.url)
    page = browser.post("/ui/login", data={"key": KEY})
    assert page.status_code == 200
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        assert browser.post(game.address, data=form, headers=headers).status_code == 403
        assert browser.post("/ui/environment", data={}, headers=headers).status_code == 403
    assert game.state["state"] == "playing"
    assert browser.post(game.address, data=form, headers={"Origin": arcade.url}).status_code == 303


def test_api_session_cannot_be_played_in_the_viewer(arcade: RunningServer) -> None:
    opened_by_api = arcade.client.post("/sessions", json={"env_name": "walk", "run_id": "play-" + "a" * 16}).json()
    assert arcade.client.get("/ui/play/" + "a" * 16).status_code == 404
    arcade.client.delete(f"/sessions/{opened_by_api['session_id']}")


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_text_on_the_page_of_a_game(arcade: RunningServer, name: str) -> None:
    text = TEXTS[name]
    game = Game.begin(arcade, "zoo", seed=str(list(TEXTS).index(name)))
    try:
        pages = [game.page.text]
        args = re.findall(r'name="args" value="([^"]*)"', game.page.text)
        assert len(args) == 3
        game.post(which="0", args=unescape(args[2]))
        assert game.state["limits"][2][1] == "1 of 10", "the button's arguments came through as they were"
        pages.append(game.page.text)
        pages.append(game.http.get("/ui/environment?environment=zoo").text)
    finally:
        game.leave()
    for page in pages:
        Elements(page).harmless(scripts=1)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert shown(text)[:5000] in Elements(pages[0]).text and shown(text)[:5000] in Elements(pages[1]).text


# -- the page of an environment ----------------------------------------------------------------------------------------


def test_the_page_of_an_environment_has_the_lines_of_clients_and_no_key(arcade: RunningServer) -> None:
    page = arcade.client.get("/ui/environment?environment=walk")
    data = arcade.client.get("/ui/environment.json?environment=walk").json()
    (protocol,) = load_protocols(PROTOCOLS)
    wanted = [[lines.title, lines.text] for lines in protocol.clients(arcade.url, ["walk"])]
    assert data["clients"] == [{"protocol": protocol.summary, "clients": wanted}]
    assert all(text in unescape(page.text) for _, text in wanted) and arcade.url in page.text
    assert fragments(page.content, KEY, *LABEL_KEYS.values(), length=8) == []
    assert data["splits"] == {"train": "0 to 19", "test": "20 to 29"} and "One step." in page.text
    listed = arcade.client.get("/ui/environments.json").json()["environments"]
    assert [one["name"] for one in listed] == ["walk", "forms", "zoo"]
    assert arcade.client.get("/ui/environment?environment=none").status_code == 404


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_store_and_in_worker_processes(workers: int) -> None:
    with opened(exposure="local", serves=play_app.app, workers=workers) as running:
        assert "serves only taskapp-kit" in running.client.get("/ui/environment?environment=walk").text
        game = Game.begin(running, "walk", **{"config:f0": "1"})
        game.press("left")
        assert "There is a wall on the left." in game.page.text
        game.press("right")
        assert "The episode has ended" in game.page.text and "The stored rollout" not in game.page.text
        assert game.state["episode"]["reward"] == 1.0 and game.state["episode"]["policy"] == "person"
        game.leave()
        assert game.http.get(game.address).status_code == 404


def test_viewer_of_a_store_cannot_play(tmp_path: Path) -> None:
    from taskapp_kit.serve.auth import Keys
    from taskapp_kit.viewer.source import UiSource
    from taskapp_kit.viewer.viewer import Viewer

    viewer = Viewer(UiSource(), Keys.of(Settings(environment_api_key=KEY)), title="t", hosts=("test",))
    transport = httpx.ASGITransport(viewer)

    async def asked() -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers={"X-API-Key": KEY}) as http:
            paths = ("environments", "environment?environment=x", f"play/{'a' * 16}")
            return [(await http.get(f"/ui/{path}")).status_code for path in paths]

    import asyncio

    assert asyncio.run(asked()) == [404, 404, 404]

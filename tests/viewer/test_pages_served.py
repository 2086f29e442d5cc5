"""What the pages of a real server show, and to whom: runs, rollouts, comparisons, groups, live rollouts, annotations."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.store import open_store
from taskapp_kit.viewer.pages import shown
from taskapp_kit.viewer.source import Scale
from tests.live_app import SECRET, a_body
from tests.rollouts import app_from
from tests.serve.running_server import KEY, LABEL_KEYS, RunningServer, error_of, labelled_keys, opened, request_body
from tests.viewer.hostile_texts import TEXTS
from tests.viewer.test_pages import Elements, echo_app
from tests.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.process]

KEYS = {**LABEL_KEYS, "operator": KEY}
LIVE = Path(__file__).parents[1] / "live_app.py"
UNKNOWN = "0" * 32


@dataclass
class ViewedServer:
    """A server with rollouts of two key labels."""

    running: RunningServer
    ids: dict[str, list[str]] = field(default_factory=dict)

    def get(self, path: str, who: str = "operator", **more: Any) -> httpx.Response:
        return httpx.get(f"{self.running.url}/ui/{path}", headers={"X-API-Key": KEYS[who]}, timeout=30, **more)

    def json(self, path: str, who: str = "operator") -> dict[str, Any]:
        answer = self.get(path, who)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewedServer]:
    folder = tmp_path_factory.mktemp("viewed")
    with opened(labelled_keys(folder, ui=True), store=open_store(f"sqlite:///{folder}/rollouts.db")) as running:
        made = ViewedServer(running)
        for who in ("alice", "bob"):
            ids = []
            for seed, run in ((1, "one"), (1, "two"), (2, "one")):
                body = request_body(seed=seed, run_id=f"{who}-{run}", group_id=f"{who}-group")
                answer = httpx.post(f"{running.url}/rollout", json=body, headers={"X-API-Key": KEYS[who]})
                ids.append(answer.json()["rollout_id"])
            failing = request_body("broken", "going", seed=1, run_id=f"{who}-one")
            failed = httpx.post(f"{running.url}/rollout", json=failing, headers={"X-API-Key": KEYS[who]})
            ids.append(str(error_of(failed)["rollout_id"]))
            made.ids[who] = ids
        yield made


def about(ids: list[str]) -> dict[str, str]:
    """The pages about somebody's rollouts, by what they are about."""
    one, two = ids[:2]
    return {
        "rollout": f"rollouts/{one}",
        "failed": f"rollouts/{ids[3]}",
        "pair": f"compare?a={one}&b={two}",
        "half": f"compare?a={two}&b={one}",
    }


@pytest.mark.parametrize("who", KEYS)
@pytest.mark.parametrize("whose", ["alice", "bob"])
def test_each_label_sees_its_own_rollouts_and_admins_see_all(viewed: ViewedServer, who: str, whose: str) -> None:
    sees = who in (whose, "root", "operator")
    mine = viewed.ids[whose]
    for name, path in about(mine).items():
        for suffix in ("", ".json"):
            head, mark, query = path.partition("?")
            answer = viewed.get(f"{head}{suffix}{mark}{query}", who)
            assert (answer.status_code == 200) == sees, (name, answer.text)
            if not sees:
                unknown = viewed.get(f"rollouts/{UNKNOWN}", who)
                assert answer.status_code == 404 and answer.text == unknown.text
    assert (viewed.json(f"annotate.json?id={mine[0]}", who)["rollout_id"] == mine[0]) == sees
    for path in ("rollouts.json", "runs.json", f"run.json?run_id={whose}-one", f"group.json?group_id={whose}-group"):
        text = viewed.get(path, who).text
        assert (f"{whose}-one" in text) == sees, path
    stored = viewed.running.client.get(f"/rollouts/{mine[0]}", headers={"X-API-Key": KEYS[who]})
    assert (stored.status_code == 200) == sees, "as everywhere else"


def test_every_page_has_its_data_as_json(viewed: ViewedServer) -> None:
    rows = viewed.json("rollouts.json?run_id=alice-one")["rollouts"]
    assert {row["rollout_id"] for row in rows} == {viewed.ids["alice"][index] for index in (0, 2, 3)}
    runs = {item["run_id"]: item for item in viewed.json("runs.json")["runs"]}
    assert runs["alice-one"]["rollouts"] == 3 and runs["alice-one"]["failed"] == 1
    run = viewed.json("run.json?run_id=alice-one")
    assert run["reward"]["mean"] == 1.0 and run["reward"]["n"] == 2, "a failure is no number"
    assert run["failures"] == [{"boundary": "environment", "code": run["failures"][0]["code"], "rollouts": 1}]
    assert [item["seed"] for item in run["by_seed"]] == [1, 1, 2]
    details = viewed.json(f"rollouts/{viewed.ids['alice'][0]}.json")
    assert details["seed"] == 1 and len(details["turns"]) > 1
    pair = viewed.json(f"compare.json?a={viewed.ids['alice'][0]}&b={viewed.ids['bob'][0]}")
    assert pair["difference"] is None and pair["equal_turns"] == len(details["turns"])
    other = viewed.json(f"compare.json?a={viewed.ids['alice'][0]}&b={viewed.ids['alice'][2]}")
    assert other["difference"] is not None and other["equal_turns"] < len(details["turns"])
    assert viewed.json("live.json") == {"rollouts": [], "running": 0}


@pytest.mark.parametrize(
    ("query", "count"),
    [("status=failed", 2), ("boundary=environment", 2), ("boundary=policy", 0), ("reward_above=0.5", 6),
     ("reward_below=0.5", 0), ("environment=broken", 2), ("policy=one", 6), ("run_id=bob-two", 1),
     ("status=nothing", 8), ("reward_above=x", 8), ("page=1", 0), ("order=worst", 6), ("order=nothing", 8)],
)  # fmt: skip
def test_filters_and_orders(viewed: ViewedServer, query: str, count: int) -> None:
    assert len(viewed.json(f"rollouts.json?{query}")["rollouts"]) == count
    page = viewed.get(f"rollouts?{query}")
    assert len(re.findall(r'name="pick"', page.text)) == count


@pytest.mark.parametrize(
    "path", ["rollouts/" + UNKNOWN, "run", "run?run_id=none", "group", "group?group_id=none", f"blobs/{'0' * 64}.png",
             "live/" + UNKNOWN, "nothing", "rollouts/x", "static/../app.py", "static/base.html", "report"],
)  # fmt: skip
def test_unknown_page_returns_404(viewed: ViewedServer, path: str) -> None:
    assert viewed.get(path).status_code == 404


def test_a_wrong_method_is_405_and_names_the_right_one(viewed: ViewedServer) -> None:
    answer = viewed.running.client.post("/ui/rollouts", data={})
    assert answer.status_code == 405 and answer.headers["allow"] == "GET"
    assert viewed.running.client.get("/ui/logout").status_code == 405


def test_head_answers_as_get_without_the_body(viewed: ViewedServer) -> None:
    for path in ("/ui/", "/ui/rollouts.json", "/ui/static/ui.js"):
        got, head = viewed.running.client.get(path), viewed.running.client.head(path)
        assert (
            head.status_code == 200 and head.content == b"" and head.headers["content-length"] == str(len(got.content))
        )


# -- hostile texts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, str]]]:
    """A server whose rollouts say every hostile text, in runs and groups that are named so, too."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('zoo')}/rollouts.db")
    with opened(exposure="local", store=store, serves=echo_app()) as running:
        ids = {}
        for seed, (name, text) in enumerate(TEXTS.items()):
            label = "".join(letter for letter in text[:100] if letter.isprintable()) or "x"
            body = request_body("echo", "constant", seed=seed % 10, run_id=label, group_id=label)
            body["policy"] = {"config": {"policy": "constant", "action": text}}
            answer = running.client.post("/rollout", json=body)
            assert answer.status_code == 200, answer.text[:300]
            ids[name] = answer.json()["rollout_id"]
            form = {"rollout_id": ids[name], f"score:{label}": "1", "note": text[:2000]}
            assert running.client.post("/ui/annotate", data=form).status_code == 303
        yield running, ids


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_text_on_every_page(zoo: tuple[RunningServer, dict[str, str]], name: str) -> None:
    running, ids = zoo
    text, one = TEXTS[name], ids[name]
    label = "".join(letter for letter in text[:100] if letter.isprintable()) or "x"
    pages = {
        f"rollouts/{one}": {},
        "compare": {"a": one, "b": next(other for other in ids.values() if other != one)},
        "group": {"group_id": label},
        "run": {"run_id": label},
        "rollouts": {"run_id": label, "environment": text[:200], "policy": text[:200]},
        "annotate": {"id": one},
        "annotations": {},
        "runs": {},
        "compare?": {},
    }
    for path, query in pages.items():
        answer = running.client.get(f"/ui/{path.rstrip('?')}", params=query)
        assert answer.status_code == 200, (path, answer.text[:200])
        Elements(answer.text).harmless(scripts=1)
        page = re.sub(r'value="[^"]*"', "", answer.text)  # a field of a form holds what was typed
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert shown(text)[:5000] in Elements(running.client.get(f"/ui/rollouts/{one}").text).text


# -- live ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_rollout_is_watched_while_it_is_played(tmp_path: Path, workers: int) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    settings = Settings(environment_api_key=KEY)
    store = open_store(f"sqlite:///{tmp_path}/rollouts.db")
    with opened(settings, exposure="local", store=store, serves=find_app(str(LIVE)), workers=workers) as running:
        body = a_body(3, steps=4, gate=gate, at=2, mark=mark, image=True)
        thread = threading.Thread(target=running.client.post, args=("/rollout",), kwargs={"json": body}, daemon=True)
        thread.start()
        with httpx.Client(base_url=running.url, headers={"X-API-Key": KEY}) as watcher:
            until(lambda: mark.exists() and "waiting" in mark.read_text())
            (row,) = watcher.get("/ui/live.json").json()["rollouts"]
            path = f"/ui/live/{row['rollout_id']}"
            page = watcher.get(path)
            assert page.status_code == 200
            if not workers:
                assert watcher.get(f"{path}.json").json()["length"] == 2
                assert "seed 3, number 2" in page.text and "number 3" not in page.text
                (picture, *_) = re.findall(r'<img src="(/ui/blobs/[^"]+)"', page.text)
                assert watcher.get(picture).content.startswith(b"\x89PNG")
            assert SECRET not in page.text
            to = watcher.get(f"/ui/rollouts/{row['rollout_id']}").headers["location"]
            assert to == path, "not stored yet"
            gate.touch()
            thread.join(timeout=20)
            until(lambda: watcher.get(path).status_code == 303)
            assert watcher.get(path).headers["location"] == f"/ui/rollouts/{row['rollout_id']}"
            text = watcher.get(f"/ui/rollouts/{row['rollout_id']}").text
            assert SECRET not in text and "number 4" in text


def test_a_live_rollout_of_another_label_is_unknown(tmp_path: Path) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    with opened(labelled_keys(tmp_path, ui=True), serves=find_app(str(LIVE))) as running:
        body = a_body(3, steps=2, gate=gate, at=1, mark=mark)
        alice = {"X-API-Key": KEYS["alice"]}
        taken = httpx.post(f"{running.url}/rollout", json=body, headers={**alice, "Prefer": "respond-async"})
        assert taken.status_code == 202
        until(lambda: mark.exists() and "waiting" in mark.read_text())
        (row,) = httpx.get(f"{running.url}/ui/live.json", headers=alice).json()["rollouts"]
        bob = {"X-API-Key": KEYS["bob"]}
        assert httpx.get(f"{running.url}/ui/live.json", headers=bob).json()["rollouts"] == []
        answer = httpx.get(f"{running.url}/ui/live/{row['rollout_id']}", headers=bob)
        assert answer.status_code == 404
        gate.touch()


# -- annotations ---------------------------------------------------------------------------------------------------

JUDGED = """
app = TaskApp("judged")

class Row(BaseModel):
    question: str
    answer: Private[str]

app.tasks("q", row=Row, prompt="{question}", train=[Row(question="Why?", answer="sentinel-why"), Row(question="How?", answer="so")])

@app.judge(weight=0, scale=(0, 10))
def clear(answer_text: str) -> str:
    '''Is it clear?'''
    return answer_text

@app.judge(weight=0, choices=("bad", "fair", "good"))
def kind(answer_text: str) -> str:
    '''Is it kind?'''
    return answer_text

@app.rubric
def said(answer_text: str) -> float:
    '''Something was said.'''
    return float(bool(answer_text))
"""


def test_a_person_scores_rollouts_one_after_the_other(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/rollouts.db")
    with opened(exposure="local", store=store, serves=app_from(tmp_path, JUDGED)) as running:
        for seed in (0, 1):
            body = request_body("q", "constant", seed=seed)
            body["policy"] = {"config": {"policy": "constant", "action": f"because {seed}"}}
            assert running.client.post("/rollout", json=body).status_code == 200
        first = running.client.get("/ui/annotate.json").json()
        assert [scale["name"] for scale in first["scales"]] == ["clear", "kind", "said"]
        page = running.client.get("/ui/annotate").text
        assert "sentinel-why" not in page
        form = {"rollout_id": first["rollout_id"], "score:clear": "7", "score:kind": "1.0", "note": "so & so"}
        for name, score in (("clear", "11"), ("clear", "nan"), ("clear", "x"), ("none", "1"), ("", "1")):
            assert running.client.post("/ui/annotate", data={**form, f"score:{name}": score}).status_code == 422
        answer = running.client.post("/ui/annotate", data=form)
        assert answer.status_code == 303
        second = running.client.get("/ui/annotate.json").json()
        assert second["rollout_id"] != first["rollout_id"] and second["annotated"] == 1
        again = running.client.get("/ui/annotate.json", params={"id": first["rollout_id"]}).json()
        assert {item["criterion"]: item["score"] for item in again["annotations"]} == {"clear": 7.0, "kind": 1.0}
        running.client.post("/ui/annotate", data={**form, "score:clear": "8"})
        found = running.client.get("/ui/annotations.json").json()["annotations"]
        assert {(item["criterion"], item["score"], item["annotator"]) for item in found} == {
            ("clear", 8.0, "environment"), ("kind", 1.0, "environment"),
        }  # fmt: skip
        assert all(item["note"] == "so & so" for item in found)
        lines = running.client.get("/ui/annotations.jsonl").text.splitlines()
        assert len(lines) == 2 and '"label":8.0' in lines[0] + lines[1]
        shown_there = running.client.get(f"/ui/rollouts/{first['rollout_id']}").text
        assert "People&#39;s scores" in shown_there or "People's scores" in shown_there


def test_scales_offer_what_the_rubric_takes() -> None:
    assert Scale("x", "", 0, 1).values()[2] == (0.5, "0.5")
    assert [words for _, words in Scale("x", "", 1.0, 5.0).values()] == ["1", "2", "3", "4", "5"]
    assert Scale("x", "", 0.0, 100.0).values() == []
    assert Scale("x", "", 0.0, 1.0, ("bad", "fair", "good")).values() == [(0.0, "bad"), (0.5, "fair"), (1.0, "good")]

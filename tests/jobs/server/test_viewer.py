"""The pages of a backend's jobs: what they show, to whom, and that what a task app answers is text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from taskapp_kit.cli.train.backend_viewer import backend_viewer
from taskapp_kit.config import Settings
from taskapp_kit.jobs.client.rl_job import RLJob
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.jobs.server.auth import BearerKeys
from taskapp_kit.jobs.server.engine import CurvePoint, Engine, Ledger, RolloutOutcome
from taskapp_kit.viewer.viewer import PAGES, UiMount
from tests.jobs.server.exchange import (
    APP_KEY,
    KEY,
    OTHER_KEY,
    ScriptedApp,
    ScriptedEngine,
    a_config,
    a_job,
    client,
    ended,
    episode,
    failure,
    serving,
)

pytestmark = pytest.mark.server

NUMBERS = itertools.count()
HOSTILE = "<script>window.hostile=1</script>\u202e"


@contextmanager
def viewed(engine: Engine | None = None) -> Iterator[str]:
    """The address of a backend with pages."""
    bearer = BearerKeys([KEY, OTHER_KEY])
    app = create_backend(bearer, environment_api_key=APP_KEY, engine=engine)
    viewer = backend_viewer(app.state.jobs, bearer, [KEY, OTHER_KEY], Settings())
    with serving(UiMount(viewer, app)) as url:
        yield url


def played(body: dict[str, Any]) -> Any:
    """Of four rollouts one fails and one has no reward."""
    number = next(NUMBERS)
    if number % 4 == 1:
        return failure(code=HOSTILE)
    return episode(None if number % 4 == 2 else number / 100)


def test_a_job_is_shown_with_its_rewards_and_rollouts_by_iteration_to_its_key_only() -> None:
    config = a_config(training={"iterations_per_epoch": 3, "batch_size": 4}, tags={"try": 3, "warm": True})
    with serving(ScriptedApp(play=played).app()) as app_url, viewed() as url, client(url) as api:
        job_id = api.post("/rl/jobs", json=a_job(app_url, config)).json()["job_id"]
        status = ended(api, job_id)
        with httpx.Client(base_url=f"{url}/ui", headers={"Origin": url}) as browser:
            assert browser.get("/jobs").status_code == 401
            assert browser.post("/login", data={"key": KEY}).status_code == 200
            assert browser.get("/").headers["location"] == "/ui/jobs"
            (listed,) = browser.get("/jobs.json").json()["jobs"]
            assert (listed["job_id"], listed["status"]) == (job_id, status["status"])
            data = browser.get(f"/jobs/{job_id}.json").json()
            assert data["job"]["progress"] == status["progress"]
            assert sum(one["rollouts"] for one in data["iterations"]) == status["progress"]["completed"]
            for one in data["iterations"]:
                chosen = browser.get(f"/jobs/{job_id}.json", params=one).json()
                rewards = [row["reward"] for row in chosen["rollouts"]]
                scored = [reward for reward in rewards if reward is not None]
                lost = sum(row["status"] == "failed" for row in chosen["rollouts"])
                assert (one["rollouts"], one["failed"]) == (len(rewards), lost)
                assert one["undefined"] == len(rewards) - lost - len(scored), "a failure is no number"
                assert one["reward"] == pytest.approx(sum(scored) / len(scored)) if scored else one["reward"] is None
            assert {one["iteration"] for one in data["iterations"] if one["phase"] == "train"} == {1, 2, 3}
            page = browser.get(f"/jobs/{job_id}", params=data["iterations"][0]).text
            assert "try=3 warm=true" in page
            assert "window.hostile" in page and "<script>window" not in page and "\u202e" not in page
            assert f'href="{app_url}/ui/rollouts/' in page and KEY not in page and APP_KEY not in page
            for path in ("/jobs", f"/jobs/{job_id}"):
                assert "unsafe" not in browser.get(path).headers["content-security-policy"]
        other = {"Authorization": f"Bearer {OTHER_KEY}"}
        assert httpx.get(f"{url}/ui/jobs.json", headers=other).json() == {"jobs": []}
        assert httpx.get(f"{url}/ui/jobs/{job_id}", headers=other).status_code == 404
        assert httpx.get(f"{url}/ui/rollouts.json", headers=other).json()["rollouts"] == []


def test_without_a_key_nothing_but_the_login_answers() -> None:
    with viewed() as url:
        routes = [
            re.sub(r"\(\?P<\w+>\[[^]]+\]\{(?:1,)?(\d+)\}\)", lambda found: "a" * int(found[1]), one[1]) for one in PAGES
        ]
        routes = ["", *(route.replace("(?:runs)?", "runs") for route in routes), "static/ui.js", "report", "nothing"]
        wrong = ({}, {"X-API-Key": KEY[:-1]}, {"Authorization": f"Bearer {KEY}x"}, {"X-API-Key": APP_KEY})
        for route, ending, headers in itertools.product(routes, ("", ".json"), wrong):
            answer = httpx.get(f"{url}/ui/{route}{ending}", headers=headers)
            assert answer.status_code == 401, (route, headers, answer.text)
        assert httpx.get(f"{url}/ui/login").status_code == 200


def test_the_api_does_not_take_the_cookie_and_a_foreign_site_reads_nothing() -> None:
    with viewed() as url:
        cookie = httpx.post(f"{url}/ui/login", data={"key": KEY}).headers["set-cookie"].partition(";")[0]
        assert httpx.get(f"{url}/ui/jobs.json", headers={"Cookie": cookie}).status_code == 200
        assert httpx.get(f"{url}/api/rl/jobs", headers={"Cookie": cookie}).status_code == 401
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert httpx.get(f"{url}/ui/jobs.json", headers={"Cookie": cookie, **headers}).status_code in (403, 421)


class Learning(ScriptedEngine):
    """An engine that reports the metric points of a learning job, and one of its author's. more: further points."""

    restarts = True

    def __init__(self, more: Sequence[CurvePoint] = ()) -> None:
        super().__init__(self._learn)
        self.more = more

    async def _learn(self, ledger: Ledger) -> float:
        points = [CurvePoint("eval_reward", 0.25, 0, "eval", 1), CurvePoint("eval_turns", 2.0, 0, "eval", 1)]
        for step in (1, 2):
            values = {"reward": step / 4, "loss": -0.5 * step, "turns": 3.0, HOSTILE: 7.0}
            points += [CurvePoint(name, value, step, "train", 1) for name, value in values.items()]
        await ledger.store(RolloutOutcome("eval", 0, 0, 0, 100, "terminated", 0.25, "ro_eval"))
        await ledger.report(points=[*points, *self.more])
        return 0.5


def test_the_metrics_of_a_learning_job_are_curves_beside_the_evaluation_before_the_first_iteration() -> None:
    with serving(ScriptedApp().app()) as app_url, viewed(Learning()) as url, client(url) as api:
        job_id = api.post("/rl/jobs", json=a_job(app_url)).json()["job_id"]
        assert ended(api, job_id)["status"] == "succeeded"
        headers = {"Authorization": f"Bearer {KEY}"}
        curves = httpx.get(f"{url}/ui/jobs/{job_id}.json", headers=headers).json()["curves"]
        assert {one["title"]: one["curves"] for one in curves} == {
            "Mean reward": {"training": [[1, 0.25], [2, 0.5]], "evaluation": [[0, 0.25]]},
            "Loss": {"training": [[1, -0.5], [2, -1.0]]},
            "Turns of a rollout": {"training": [[1, 3.0], [2, 3.0]], "evaluation": [[0, 2.0]]},
            HOSTILE: {"training": [[1, 7.0], [2, 7.0]]},
        }
        page = httpx.get(f"{url}/ui/jobs/{job_id}", headers=headers).text
        titles = re.findall(r"<figcaption>([^<]*)</figcaption>", page)
        assert titles[:3] == ["Mean reward", "Loss", "Turns of a rollout"] and len(titles) == 4
        assert "<script>window" not in page and "\u202e" not in page
        assert "<title>evaluation 0, 0.25</title>" in page and "does not update weights" not in page


def test_a_client_reads_every_point_although_pages_have_whole_steps_only() -> None:
    more = [CurvePoint(f"metric{number}", 1.0, step, "train", 1) for step in range(3, 33) for number in range(40)]
    with serving(ScriptedApp().app()) as app_url, viewed(Learning(more)) as url, client(url) as api:
        job_id = api.post("/rl/jobs", json=a_job(app_url)).json()["job_id"]
        assert ended(api, job_id)["status"] == "succeeded"
        points = RLJob.from_job_id(job_id, url, KEY).metrics()
    assert len(points) == len({(point["name"], point["step"]) for point in points}) == 2 + 2 * 4 + len(more)

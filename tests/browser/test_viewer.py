"""The viewer as a person meets it: a real Chromium, at both widths, light and dark, with the keyboard.

Needs Debian's chromium and the extra `web`; `make browser` runs these, and each is skipped with the reason otherwise.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.asgi import create
from taskapp_kit.cli.train.backend_viewer import backend_viewer
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.jobs.server.auth import BearerKeys
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store
from taskapp_kit.testing import MockModel, judge
from taskapp_kit.viewer.pages import shown
from taskapp_kit.viewer.viewer import UiMount
from tests.jobs.server.exchange import a_config, a_job, client, ended
from tests.viewer.hostile_texts import TEXTS
from tests.waiting import until

playwright = pytest.importorskip("playwright.sync_api", reason="the extra `web` is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.server,
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt-get install chromium)"),
]

AXE = "axe-core@4.14.1"
KEY = "Br0wser-key-41f7c2aa"
APP = Path(__file__).with_name("draw_app.py")
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
BOTH_EXTREMES = pytest.mark.parametrize("person", [LOOKS[0], LOOKS[3]], ids="-".join, indirect=True)
"""Of a page whose parts another test looks at in all four."""
SHOTS = os.environ.get("TASKAPP_SCREENSHOTS")
"""A folder for pictures of all pages, to be looked at."""
LOAD_PICTURES = """Promise.all([...document.images].map(one => { one.loading = 'eager'; return one.decode(); }))"""
HOSTILE = "<script>window.hostile=1</script><img src=x onerror='window.hostile=2'>\u202egnp.exe \x1b[31mred {{7*7}}"


def body(policy: str = "straight", seed: int = 0, run_id: str = "first", **config: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "mode": "eval",
        "ops": [],
        "env": {"env_name": "walk", "seed": seed, "config": config},
        "policy": {"config": {"policy": policy}},
    }


@dataclass
class Served:
    url: str
    model_url: str
    ids: dict[tuple[str, int], str] = field(default_factory=dict)

    def post(self, wanted: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.post(
            f"{self.url}/rollout", json=wanted, headers={"X-API-Key": KEY}, timeout=90
        ).json()
        return answer


@contextmanager
def drawing(folder: Path) -> Iterator[Served]:
    """A server of the app with a store, and the models: one that plays, one that is the user, one that judges."""
    answers = [
        {"content": "Let me see.", "reasoning_content": "I need the number.\nIt is 17.", "tool_calls": [
            {"name": "look_up", "arguments": {"number": "17"}}]},
        {"tool_calls": [{"name": "reply", "arguments": {"words": "It comes tomorrow between 9 and 12."}}]},
        {"content": f"I cannot do that. {HOSTILE}"},
        {"reasoning_content": HOSTILE, "tool_calls": [{"name": "reply", "arguments": {"words": f"Goodbye. {HOSTILE}"}}]},
    ]  # fmt: skip
    with (
        MockModel(answers) as player,
        MockModel(lambda _: "Thank you. And my other parcel?") as user,
        MockModel(judge(0.5, f"Half of it. {HOSTILE}")) as verdict,
    ):
        variables = {
            "TASKAPP_USER_URL": user.url, "TASKAPP_USER_MODEL": "a-user",
            "TASKAPP_JUDGE_URL": verdict.url, "TASKAPP_JUDGE_MODEL": "a-judge",
        }  # fmt: skip
        service = Service(
            find_app(str(APP)),
            ServiceSettings(exposure="local"),
            store=open_store(f"sqlite:///{folder}/rollouts.db"),
            models=model_access(Settings(variables=variables), "local", SystemClock()),
        )
        with BackgroundServer(create(service, Settings(environment_api_key=KEY), exposure="local")) as server:
            yield Served(server.url, player.url)


def talk(model_url: str) -> dict[str, Any]:
    policy = {"config": {"model": "a-model", "inference_url": model_url}}
    return {**body(), "run_id": "talk", "ops": [], "env": {"env_name": "talk", "seed": 1}, "policy": policy}


@pytest.fixture(scope="module")
def backend_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a backend, and the id of a job that is over."""
    bearer = BearerKeys([KEY])
    with drawing(tmp_path_factory.mktemp("jobs")) as app:
        backend = create_backend(bearer, environment_api_key=KEY)
        viewer = backend_viewer(backend.state.jobs, bearer, [KEY], Settings())
        with BackgroundServer(UiMount(viewer, backend)) as server, client(server.url, KEY) as api:
            config = a_config(
                rollout={"env_name": "walk", "policy_name": "wander", "max_turns": 30},
                training={"iterations_per_epoch": 6, "batch_size": 3, "max_turns": 30},
            )
            answer = api.post("/rl/jobs", json=a_job(app.url, config))
            assert answer.status_code == 201, answer.text
            assert ended(api, answer.json()["job_id"])["status"] == "succeeded"
            yield server.url, answer.json()["job_id"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with rollouts of two policies, some of them failed, and one that says what it should not."""
    with drawing(tmp_path_factory.mktemp("browser")) as found:
        for seed in range(8):
            for policy in ("straight", "wander"):
                made = found.post(body(policy, seed))
                error = made.get("detail", {}).get("error", {})
                found.ids[policy, seed] = made.get("rollout_id") or error["rollout_id"]
        hostile = body("straight", 9, HOSTILE.replace("\x1b", "").replace("\u202e", ""))
        hostile["policy"] = {"config": {"policy": "constant", "action": HOSTILE}}
        hostile["safety"] = {"max_ops": 12}
        found.ids["hostile", 9] = found.post(hostile)["rollout_id"]
        found.ids["talk", 1] = found.post(talk(found.model_url))["rollout_id"]
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Person:
    """One browser window, and everything that its console says."""

    def __init__(self, browser: Any, size: str, scheme: str, **more: Any) -> None:
        width, height = SIZES[size]
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, **more)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.said: list[str] = []
        self.name = f"{size}-{scheme}"
        self.page.on("console", lambda line: self.said.append(line.text) if line.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def log_in(self, url: str) -> None:
        self.page.goto(f"{url}/ui/login")
        self.page.fill("#key", KEY)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(f"{url}/ui/")

    def looks_right(self, name: str) -> None:
        """Nothing is cut off at the side, axe finds nothing serious, the console is silent."""
        page = self.page
        if SHOTS:
            page.evaluate(LOAD_PICTURES)
            page.screenshot(path=f"{SHOTS}/{name}-{self.name}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} is too wide"
        assert page.evaluate("window.hostile") is None
        assert self.said == [], name
        source = axe()
        if source is not None:
            page.evaluate(source)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            serious = [
                (item["id"], [node["html"][:120] for node in item["nodes"][:3]])
                for item in found["violations"]
                if item["impact"] in ("serious", "critical")
            ]
            assert serious == [], f"{name}: {serious}"


@functools.cache
def axe() -> str | None:
    """axe-core's source, from the npm registry into the cache of the tests; None where there is no npm or no registry."""
    folder = Path.home() / ".cache" / "taskapp-kit-tests" / AXE.replace("@", "-")
    file = folder / "axe.min.js"
    if not file.is_file():
        npm = shutil.which("npm")
        if npm is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        ran = subprocess.run(
            [npm, "pack", AXE, "--silent"], check=False, cwd=folder, capture_output=True, text=True, timeout=120
        )
        if ran.returncode:
            return None
        with tarfile.open(folder / ran.stdout.split()[-1]) as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            file.write_bytes(member.read())
    return file.read_text(encoding="utf-8")


@pytest.fixture(params=LOOKS, ids="-".join)
def person(request: pytest.FixtureRequest, chromium: Any, served: Served) -> Iterator[Person]:
    found = Person(chromium, *request.param)
    found.log_in(served.url)
    yield found
    found.context.close()


def test_axe_is_there() -> None:
    if axe() is None:
        pytest.skip("axe-core could not be fetched: no npm, or no registry; accessibility was not checked")


def test_find_a_failed_rollout_by_filter_and_step_through_it_by_keyboard(person: Person, served: Served) -> None:
    page = person.page
    person.looks_right("runs")
    person.page.click("text=Log out")
    page.wait_for_url("**/ui/login")
    person.looks_right("login")
    page.goto(f"{served.url}/ui/rollouts")
    person.said = [line for line in person.said if "401" not in line]  # Chromium's own words about the status
    person.looks_right("please-log-in")
    page.click("a.button.main")
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/rollouts")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_url("**/ui/runs")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/ui/rollouts")
    person.looks_right("rollouts")
    page.keyboard.press("f")
    assert page.evaluate("document.activeElement.name") == "status"
    page.select_option("select[name=status]", "failed")
    page.click("button.main")
    page.wait_for_url("**status=failed**")
    assert page.locator("[data-list] tbody tr").count() == 2
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/ui/rollouts/[0-9a-f]{32}$"))
    assert page.locator(".panel.failed").inner_text().startswith("Failed at boundary environment")
    assert page.locator(".turn:visible").count() >= 1
    assert page.locator(".stepper output").inner_text().startswith("start")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("j")
    assert page.locator(".stepper output").inner_text().startswith("turn 2")
    assert page.locator("#turn-2").is_visible() and not page.locator("#turn-1").is_visible()
    assert page.locator("#turn-2 img").evaluate("picture => picture.naturalWidth") == 128
    page.keyboard.press("k")
    assert page.locator("#turn-1").is_visible()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("v")
    assert page.locator("#turn-1").is_visible() and page.locator("#turn-2").is_visible()
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    person.looks_right("keys")
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    person.looks_right("failed")


def test_one_rollout_a_seed_and_two_compared(person: Person, served: Served) -> None:
    page = person.page
    page.goto(f"{served.url}/ui/rollouts/{served.ids['wander', 3]}#turn-2")
    assert page.locator("#turn-2").is_visible()
    page.locator("svg.strip a").nth(3).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#turn-4", state="visible")
    person.looks_right("rollout")
    page.keyboard.press("s")
    page.wait_for_url("**/ui/group?**")
    assert page.locator("li.card").count() == 2
    person.looks_right("group")
    page.goto(f"{served.url}/ui/rollouts?run_id=first")
    for _ in (1, 2):
        page.keyboard.press("j")
        page.keyboard.press("x")
    page.keyboard.press("c")
    page.wait_for_url("**/ui/compare?a=**")
    page.keyboard.press("d")
    page.wait_for_url("**#first-difference")
    assert "First difference" in page.locator(".panel[role=note]").inner_text()
    person.looks_right("compare")
    page.goto(f"{served.url}/ui/run?run_id=first")
    assert page.locator("svg.plot").count() >= 4
    person.looks_right("run")


@BOTH_EXTREMES
def test_pages_without_anything_to_show(person: Person, served: Served) -> None:
    page = person.page
    for name in ("compare", "live", "annotations"):
        page.goto(f"{served.url}/ui/{name}")
        person.looks_right(f"{name}-empty")


def test_a_talk_of_models_is_read_with_its_judge(person: Person, served: Served) -> None:
    page = person.page
    page.goto(f"{served.url}/ui/rollouts/{served.ids['talk', 1]}")
    page.keyboard.press("j")
    assert page.locator("#turn-1 .call b").first.inner_text() == "look_up"
    assert not page.locator("#turn-1 .reasoning .said").is_visible(), "reasoning is folded"
    page.keyboard.press("t")
    assert "I need the number." in page.locator("#turn-1 .reasoning .said").inner_text()
    assert "Half of it. <script>" in page.locator("main").inner_text()
    page.keyboard.press("v")
    for summary in page.locator("main > details > summary").all():
        summary.click()
    for text in ("And my other parcel?", "Did the user get what they needed?", "a-judge", "no usable action"):
        assert page.get_by_text(text).count() > 0, text
    person.looks_right("talk")


def test_jobs_of_a_backend(chromium: Any, backend_job: tuple[str, str]) -> None:
    url, job_id = backend_job
    for look in LOOKS:
        person = Person(chromium, *look)
        page = person.page
        page.goto(f"{url}/ui/login")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/ui/jobs")
        person.looks_right("jobs")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/ui/jobs/{job_id}")
        assert page.locator("svg.plot").first.locator("circle").count() == 6  # the reward; each other metric has a plot
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**iteration=1")
        person.looks_right("job")
        person.context.close()


def test_annotate_three(person: Person, served: Served) -> None:
    page = person.page
    page.goto(f"{served.url}/ui/annotate?run_id=first&policy=straight&order=newest&id={served.ids['straight', 7]}")
    person.looks_right("annotate")
    other = "before => (document.querySelector('input[name=rollout_id]')?.value ?? before) !== before"
    seen = set()
    for _ in range(3):
        before = page.locator("input[name=rollout_id]").input_value()
        seen.add(before)
        page.keyboard.press("5")
        page.keyboard.press("3")
        assert page.locator("input[type=radio]:checked").count() == 2
        page.keyboard.press("Enter")
        page.wait_for_function(other, arg=before)
    assert len(seen) == 3
    before = page.locator("input[name=rollout_id]").input_value()
    page.keyboard.press("p")
    page.wait_for_function(other, arg=before)
    page.goto(f"{served.url}/ui/annotations")
    assert page.locator("[data-list] tbody tr").count() >= 6
    person.looks_right("annotations")


def test_watch_a_live_rollout(person: Person, served: Served, tmp_path: Path) -> None:
    page, gate = person.page, tmp_path / "gate"
    playing = threading.Thread(target=served.post, args=(body("straight", 1, "live", gate=str(gate)),), daemon=True)
    playing.start()
    try:
        page.goto(f"{served.url}/ui/live")
        page.wait_for_selector("[data-list] tbody tr")
        page.click("[data-list] tbody a")
        page.wait_for_selector("#turn-3")
        assert page.locator("#turn-5").count() == 0
        person.looks_right("live")
    finally:
        gate.touch()
    page.wait_for_url(re.compile(r"/ui/rollouts/[0-9a-f]{32}$"))
    assert page.locator(".badge.terminated").first.is_visible()
    playing.join(timeout=30)


@BOTH_EXTREMES
def test_what_a_model_says_is_text(person: Person, served: Served) -> None:
    page = person.page
    one = served.ids["hostile", 9]
    for path in (
        f"rollouts/{one}",
        "rollouts",
        "",
        f"compare?a={one}&b={served.ids['straight', 1]}",
        f"annotate?id={one}",
    ):
        page.goto(f"{served.url}/ui/{path}")
        person.looks_right("hostile-" + path.split("?")[0].split("/")[0])
    page.goto(f"{served.url}/ui/rollouts/{one}")
    page.keyboard.press("v")
    assert page.get_by_text("<script>window.hostile=1</script>").count() > 0
    assert "⟨U+202E⟩" in page.content() and "⟨U+001B⟩[31m" in page.content()


def test_each_hostile_text_is_text_in_a_real_browser(chromium: Any, tmp_path: Path) -> None:
    person = Person(chromium, "wide", "light")
    page = person.page
    with drawing(tmp_path) as served:
        person.log_in(served.url)
        for name, text in TEXTS.items():
            hostile = body("constant", 1, "".join(letter for letter in text[:100] if letter.isprintable()))
            hostile["policy"]["config"]["action"] = text
            hostile["safety"] = {"max_ops": 4}
            address = f"{served.url}/ui/rollouts/{served.post(hostile)['rollout_id']}"
            page.goto(address)
            page.keyboard.press("v")
            page.keyboard.press("t")
            assert shown(text)[:5000] in str(page.evaluate("document.querySelector('main').textContent")), name
            assert page.url == address and page.evaluate("window.hostile") is None, name
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        for path in ("", "rollouts", "compare", "group?environment=walk&seed=1", "annotate"):
            page.goto(f"{served.url}/ui/{path}")
            assert page.url == f"{served.url}/ui/{path}" and page.evaluate("window.hostile") is None
            person.looks_right(f"zoo-{path.partition('?')[0]}")
    assert person.said == []
    person.context.close()


def test_without_scripts_every_page_can_be_read(chromium: Any, served: Served) -> None:
    person = Person(chromium, "wide", "light", java_script_enabled=False)
    page = person.page
    page.goto(f"{served.url}/ui/login")
    page.fill("#key", KEY)
    page.click("button.main")
    page.wait_for_url(f"{served.url}/ui/")
    page.goto(f"{served.url}/ui/rollouts/{served.ids['wander', 1]}")
    assert page.locator("#turn-1").is_visible() and page.locator("#turn-2").is_visible()
    page.goto(f"{served.url}/ui/annotate?id={served.ids['straight', 2]}")
    page.locator("input[type=radio]").first.check()
    page.click("button.main")
    page.wait_for_url("**/ui/annotate?**")
    page.click("text=Log out")
    page.wait_for_url("**/ui/login")
    page.goto(f"{served.url}/ui/rollouts")
    assert "Please log in" in page.content()
    person.context.close()


def test_an_evaluation_is_viewed_by_its_one_time_link_and_its_report_opened(chromium: Any, tmp_path: Path) -> None:
    taskapp = [sys.executable, "-m", "taskapp_kit"]
    evaluated = subprocess.run(
        [*taskapp, "eval", str(APP), "--env", "walk", "--policy", "straight", "--policy", "wander", "--seeds", "0-9",
         "--judges", "skip", "--out", str(tmp_path / "run")],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (tmp_path / "run" / "results.jsonl").exists(), evaluated.stderr
    log = (tmp_path / "log").open("w+")
    viewing = subprocess.Popen([*taskapp, "view", str(tmp_path / "run"), "--port", "0", "--app", str(APP)], stdout=log)
    try:
        link = until(lambda: re.search(r"http\S+code=\S+", (tmp_path / "log").read_text()), what="the link")[0]
        person = Person(chromium, "wide", "dark")
        person.page.goto(link)
        person.page.wait_for_url("**/ui/")
        person.looks_right("view")
        person.page.click("text=Rollouts")
        person.page.wait_for_url("**/ui/rollouts")
        assert person.page.locator("[data-list] tbody tr").count() == 20
        with person.page.expect_response("**/ui/report") as answer:
            person.page.click("nav >> text=Report")
        assert answer.value.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        person.page.wait_for_url("**/ui/report")
        assert person.page.locator("svg").count() >= 4
        person.page.goto((tmp_path / "run" / "report.html").as_uri())  # in the sandbox axe could not run either
        for size, scheme in LOOKS:
            person.page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
            person.page.emulate_media(color_scheme=scheme)
            person.name = f"{size}-{scheme}"
            person.looks_right("report")
        again = Person(chromium, "wide", "light")
        again.page.goto(link)
        assert "neither a valid key" in again.page.content()
    finally:
        viewing.terminate()
        viewing.wait(timeout=30)
        log.close()

"""A person plays in a real Chromium: keys, forms, words, refusals and failures, at both widths, light and dark.

Needs what `test_viewer.py` needs; `make browser` runs these, too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store
from taskapp_kit.store.sqlite import SqliteStore
from tests.browser.test_viewer import CHROMIUM, KEY, LOOKS, Person, playwright
from tests.viewer import play_app
from tests.viewer.hostile_texts import TEXTS
from tests.waiting import until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.server,
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt-get install chromium)"),
]
BOTH_EXTREMES = pytest.mark.parametrize("look", [LOOKS[0], LOOKS[3]], ids="-".join)
ADDER = Path(__file__).parents[2] / "examples" / "adder.py"


class HandClock(SystemClock):
    """The system's clock, moved forward by hand."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@contextmanager
def serving(app: Any, folder: Path, clock: SystemClock | None = None, store: Any = open_store) -> Iterator[str]:
    """The address of a server with a store in the folder; the games that are open at its end are closed."""
    service = Service(
        app, ServiceSettings(exposure="local"), store=store(f"sqlite:///{folder}/rollouts.db"), clock=clock
    )
    settings = Settings(environment_api_key=KEY, protocols=("openenv",))
    with BackgroundServer(create(service, settings, exposure="local")) as server:
        yield server.url
        with httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}) as api:
            for one in api.get("/sessions").json()["sessions"]:
                api.delete(f"/sessions/{one['session_id']}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def arcade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(play_app.app, tmp_path_factory.mktemp("arcade")) as url:
        yield url


class Player(Person):
    """A person who is logged in, and begins episodes."""

    def begin(self, url: str, environment: str, seed: int, **config: str) -> None:
        self.page.goto(f"{url}/ui/environment?environment={environment}")
        self.page.fill("input[name=seed]", str(seed))
        for label, value in config.items():
            self.page.get_by_label(label, exact=False).first.fill(value)
        self.page.click("[data-start] button.main")
        self.page.wait_for_url("**/ui/play/*")

    def shows(self, text: str) -> None:
        self.page.locator("[data-play]").get_by_text(text).first.wait_for()

    def leave(self) -> None:
        self.page.click("button[value=close]")
        self.page.wait_for_url("**/ui/environment?**")


@contextmanager
def player(chromium: Any, look: tuple[str, str], url: str, **more: Any) -> Iterator[Player]:
    found = Player(chromium, *look, **more)
    found.page.goto(f"{url}/ui/login")
    found.page.fill("#key", KEY)
    found.page.click("button.main")
    found.page.wait_for_url(f"{url}/ui/")
    yield found
    found.context.close()


class Full(SqliteStore):
    """Its disk is full."""

    def __init__(self, address: str) -> None:
        super().__init__(Path(address.removeprefix("sqlite:///")))

    async def save(self, rollout: object) -> None:
        raise StoreError("the disk is full.")


@BOTH_EXTREMES
def test_an_episode_that_cannot_be_stored_can_be_left(chromium: Any, tmp_path: Path, look: tuple[str, str]) -> None:
    with serving(find_app(str(ADDER)), tmp_path, store=Full) as url, player(chromium, look, url) as person:
        person.begin(url, "adder", 3)
        person.page.click("button[value=finish]")
        person.shows("store_failed")
        person.looks_right("play-not-stored")
        person.page.click("button[value=again]")
        person.shows("No episode can start now")
        person.looks_right("play-store-failing")
        person.leave()


def test_adder_is_played_to_its_end_and_becomes_a_demonstration(chromium: Any, tmp_path: Path) -> None:
    with serving(find_app(str(ADDER)), tmp_path) as url:
        for look in LOOKS:
            with player(chromium, look, url) as person:
                page = person.page
                page.keyboard.press("g")
                page.keyboard.press("e")
                page.wait_for_url("**/ui/environments")
                person.looks_right("play-environments")
                page.keyboard.press("j")
                page.keyboard.press("Enter")
                page.wait_for_url("**/ui/environment?**")
                assert f"{url}/openenv/adder" in page.inner_text("main") and KEY not in page.content()
                person.looks_right("play-environment")
                person.begin(url, "adder", 3)
                person.shows("target 8, total 0")
                person.looks_right("play-adder")
                for key, total in (("3", 3), ("3", 6), ("2", 8)):
                    page.keyboard.press(key)
                    person.shows(f"target 8, total {total}")
                person.shows("The episode has ended")
                person.looks_right("play-adder-end")
                page.reload()
                person.shows("The episode has ended")
                page.click("text=The stored rollout")
                page.wait_for_url(re.compile(r"/ui/rollouts/[0-9a-f]{32}$"))
                assert "person" in page.inner_text("dl.facts")
    out = tmp_path / "demonstrations.jsonl"
    subprocess.run(
        [sys.executable, "-m", "taskapp_kit", "export", str(tmp_path / "rollouts.db"), "--format", "sft",
         "--demonstrations", "--app", str(ADDER), "--out", str(out)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    calls = [
        call["function"]["arguments"] for message in lines[0]["messages"] for call in message.get("tool_calls") or ()
    ]
    assert [call if isinstance(call, dict) else json.loads(call) for call in calls] == [
        {"amount": amount} for amount in (3, 3, 2)
    ]


@BOTH_EXTREMES
def test_crafter_is_played_with_its_keys(chromium: Any, tmp_path: Path, look: tuple[str, str]) -> None:
    pytest.importorskip("crafter")
    with serving(find_app("crafter"), tmp_path) as url, player(chromium, look, url) as person:
        page = person.page
        person.begin(url, "crafter", 7)
        picture = page.locator(".seen > .pictures img")
        assert picture.evaluate("one => one.decode().then(() => one.naturalWidth)") == 144
        box = picture.bounding_box()
        assert box["width"] >= (500 if look[0] == "wide" else 340), "large enough to play"
        assert picture.evaluate("one => getComputedStyle(one).imageRendering") == "pixelated"
        before = picture.get_attribute("src")
        for number, (key, name) in enumerate(
            (("d", "move_right"), ("ArrowDown", "move_down"), (" ", "do"), ("t", "place_table"), ("z", "sleep"))
        ):
            page.keyboard.press(key)
            person.shows(f"step {number + 1} of 10000")
            assert name in page.inner_text(".last")
        assert page.locator(".seen > .pictures img").get_attribute("src") != before
        person.looks_right("play-crafter")
        page.fill("#a0-f0", "move_up move_up noop")
        page.keyboard.press("w")
        assert page.input_value("#a0-f0").endswith("noopw"), "keys are letters where a person types"
        page.fill("#a0-f0", "move_up move_up noop")
        page.keyboard.press("Enter")
        person.shows("step 8 of 10000")
        person.leave()


@BOTH_EXTREMES
def test_a_program_is_written_run_and_submitted(chromium: Any, tmp_path: Path, look: tuple[str, str]) -> None:
    with serving(find_app("python_sandbox"), tmp_path) as url, player(chromium, look, url) as person:
        page = person.page
        person.begin(url, "python_sandbox", 7)
        page.fill("#a0-f0", "for i in range(3):\n    print('line', i)")
        page.keyboard.press("Control+Enter")
        person.shows("line 2")
        assert page.input_value("#a1-f0") == "for i in range(3):\n    print('line', i)", (
            "to be changed, not typed again"
        )
        assert page.get_by_text("Write this function in Python").is_visible(), "the task stays"
        person.looks_right("play-python")
        page.click("#a1-send")
        person.shows("The episode has ended")
        person.looks_right("play-python-end")
        person.leave()


@BOTH_EXTREMES
def test_words_forms_refusals_and_wrong_input(chromium: Any, arcade: str, look: tuple[str, str]) -> None:
    with player(chromium, look, arcade) as person:
        page = person.page
        person.begin(arcade, "forms", 0)
        page.get_by_label("point").fill("{")
        page.click("#a0-send")
        person.shows("is not valid JSON")
        assert page.get_by_label("point").get_attribute("aria-invalid") == "true"
        person.looks_right("play-form-wrong")
        page.fill("#a1-text", "good morning")
        page.keyboard.press("Control+Enter")
        person.shows("You said 'good morning'.")
        person.leave()
        person.begin(arcade, "walk", 1)
        page.keyboard.press("ArrowLeft")
        person.shows("There is a wall on the left.")
        person.looks_right("play-refused")
        page.keyboard.press("b")
        person.shows("2 of 9")
        person.leave()


@BOTH_EXTREMES
def test_a_failed_episode_and_an_expired_session(chromium: Any, tmp_path: Path, look: tuple[str, str]) -> None:
    clock = HandClock()
    with serving(play_app.app, tmp_path, clock) as url, player(chromium, look, url) as person:
        page = person.page
        person.begin(url, "walk", 5)
        page.keyboard.press("ArrowRight")
        person.shows("You are at 1 of 3.")
        page.keyboard.press("ArrowRight")
        person.shows("failed at boundary environment")
        assert page.locator(".facts .big dd").first.inner_text() == "–", "no reward, not even 0"
        person.looks_right("play-failed")
        page.click("text=Play the same seed again")
        person.shows("You are at 0 of 3.")
        clock.ahead += 2000
        api = httpx.Client(base_url=url, headers={"X-API-Key": KEY})
        until(lambda: api.get("/sessions").json()["sessions"] == [], what="the end of the session")
        clock.ahead = 0.0
        page.keyboard.press("ArrowRight")
        page.get_by_text("no longer open").wait_for()
        assert "session_idle" in page.inner_text("main")
        person.looks_right("play-expired")


def test_two_tabs_do_not_disturb_each_other(chromium: Any, arcade: str) -> None:
    with player(chromium, LOOKS[0], arcade) as person:
        person.begin(arcade, "walk", 1)
        first, second = person.page, person.context.new_page()
        second.goto(first.url)
        first.keyboard.press("ArrowRight")
        person.shows("You are at 1 of 3.")
        second.keyboard.press("ArrowRight")
        second.get_by_text("changed after your page").wait_for()
        assert second.get_by_text("You are at 1 of 3.").first.is_visible()
        second.keyboard.press("ArrowRight")
        second.get_by_text("You are at 2 of 3.").first.wait_for()
        first.go_back()
        first.go_forward()
        person.shows("You are at 2 of 3.")
        person.leave()


def test_without_scripts_an_episode_is_played_by_its_forms(chromium: Any, arcade: str) -> None:
    with player(chromium, LOOKS[2], arcade, java_script_enabled=False) as person:
        page = person.page
        person.begin(arcade, "walk", 2)
        for place in (1, 2, 3):
            page.click("button:has-text('right')")
            page.get_by_text(f"You are at {place} of 3.").first.wait_for()
        assert page.get_by_text("The episode has ended").is_visible()
        page.reload()
        assert page.get_by_text("The episode has ended").is_visible()
        person.leave()


def test_a_hostile_environment_is_text_in_a_real_browser(chromium: Any, arcade: str) -> None:
    with player(chromium, LOOKS[0], arcade) as person:
        for seed, name in list(enumerate(TEXTS))[::3]:
            person.begin(arcade, "zoo", seed)
            person.page.keyboard.press("1")
            person.shows("consecutive refusals")
            assert person.page.evaluate("window.hostile") is None, name
            assert person.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
            if seed == 0:
                person.looks_right("play-hostile")
            person.leave()
        assert person.said == []

"""`taskapp view`: what it opens, and what it refuses."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from taskapp_kit.cli.evaluate.view import command, ui_source
from taskapp_kit.errors import StoreError
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import RolloutQuery
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.testing import MockModel, judge
from taskapp_kit.viewer.page import NEWEST
from taskapp_kit.viewer.run_pages import run_figures
from tests.cli.author.test_judges import FORTY_ROWS
from tests.waiting import until

ADDER = str(Path(__file__).parents[3] / "examples" / "adder.py")


def test_a_server_has_the_viewer_itself() -> None:
    ran = CliRunner().invoke(command, ["http://127.0.0.1:8001/"])
    assert ran.exit_code == 2 and "http://127.0.0.1:8001/ui" in ran.output


def test_nothing_is_created_where_nothing_is_stored(tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, [str(tmp_path / "none.db")])
    assert isinstance(ran.exception, StoreError) and list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.server
@pytest.mark.process
def test_a_store_is_shown_with_the_link_and_without_it_not(tmp_path: Path) -> None:
    taskapp, store = [sys.executable, "-m", "taskapp_kit"], str(tmp_path / "rollouts.db")
    played = [*taskapp, "rollout", ADDER, "--policy", "gold", "--seed", "3", "--store", store]
    subprocess.run(played, check=True, capture_output=True, timeout=120)
    log = tmp_path / "log"
    with log.open("w") as out:
        viewing = subprocess.Popen([*taskapp, "view", store, "--app", ADDER, "--port", "0"], stdout=out, stderr=out)
    try:
        link = until(lambda: re.search(r"(http\S+)(/ui/login\?code=\S+)", log.read_text()), what="the link")
        assert httpx.get(f"{link[1]}/ui/rollouts").status_code == 401
        assert httpx.get(f"{link[1]}/").headers["location"] == "/ui/"
        assert httpx.get(f"{link[1]}/rollouts").status_code == 404
        with httpx.Client(base_url=link[1], headers={"Origin": link[1]}, timeout=20) as browser:
            assert browser.get(link[2]).status_code == 200
            (row,) = browser.get("/ui/rollouts.json").json()["rollouts"]
            page = html.unescape(browser.get(f"/ui/rollouts/{row['rollout_id']}").text)
            assert f"taskapp replay {quote(ADDER)} {row['rollout_id']} --from" in page
            assert [scale["name"] for scale in browser.get("/ui/annotate.json").json()["scales"]] == [
                "reached",
                "brief",
            ]
            form = {"rollout_id": row["rollout_id"], "score:brief": "0.5"}
            assert browser.post("/ui/annotate", data=form).status_code == 303
            (made,) = browser.get("/ui/annotations.json").json()["annotations"]
            assert (made["criterion"], made["score"], made["annotator"]) == ("brief", 0.5, "local")
        assert httpx.get(link[1] + link[2]).status_code == 401, "a link works once"
    finally:
        viewing.terminate()
        viewing.wait(timeout=30)


@pytest.mark.ci(keep=1)
@pytest.mark.server
@pytest.mark.process
@pytest.mark.parametrize("judge_price", [1.0, None])
def test_costs_and_intervals_are_the_same_in_the_terminal_and_in_every_page(
    tmp_path: Path, judge_price: float | None
) -> None:
    taskapp = [sys.executable, "-m", "taskapp_kit"]
    (tmp_path / "judged.py").write_text(FORTY_ROWS)
    with MockModel(lambda request: "Clouds.") as model, MockModel(judge("polite")) as judging:
        prices = "usd_per_million_input_tokens = {0}\nusd_per_million_output_tokens = {0}\n"
        judges = "" if judge_price is None else f'[j]\nurl = "{judging.url}"\nmodel = "j"\n{prices.format(judge_price)}'
        (tmp_path / "models.toml").write_text(f'[m]\nurl = "{model.url}"\nmodel = "m"\n{prices.format(2.0)}{judges}')
        variables = {**os.environ, "TASKAPP_JUDGE_URL": judging.url, "TASKAPP_JUDGE_MODEL": "j"}

        def told(*args: str) -> Any:
            done = subprocess.run(
                [*taskapp, *args], cwd=tmp_path, env=variables, capture_output=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        summary = told(
            "eval", "judged.py", "--env", "judged", "--model", "m", "--seeds", "0-39", "--out", "e", "--json"
        )
    total, interval = summary["cost"]["total"], summary["interval"]
    assert total > summary["cost"]["policy"] if judge_price else total == summary["cost"]["policy"]
    uses = {use["role"]: use for use in summary["models"]}
    assert uses["judge"]["calls"] == 40 and uses["judge"]["tokens"] > 0
    assert uses["judge"]["unpriced_calls"] == (0 if judge_price else 40) and uses["policy"]["unpriced_calls"] == 0
    assert interval["method"] == "bootstrap"
    for source in ("e", "e/rollouts.db"):
        rows = told("show", source, "--limit", "100", "--json")["rollouts"]
        assert sum(row["cost"] for row in rows) == pytest.approx(total)
        whole = told("show", source, rows[0]["rollout_id"], "--json")
        assert whole["cost"] == pytest.approx(rows[0]["cost"])
        found = asyncio.run(_page_of(tmp_path / source))
        assert found["cost"] == pytest.approx(total)
        assert (found["reward"]["low"], found["reward"]["high"]) == (interval["low"], interval["high"])
        assert ("no price for j" in found["unpriced"]) is (judge_price is None and source == "e")


async def _page_of(place: Path) -> dict[str, Any]:
    """The figures of the only run of a directory or store, as the viewer's page has them."""
    source = ui_source(open_source(str(place)))
    rows = await source.rows(RolloutQuery(limit=NEWEST), "newest", Caller())
    return run_figures(rows, source)

"""`taskapp view`: what it opens, and what it refuses."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from shlex import quote

import httpx
import pytest
from click.testing import CliRunner

from taskapp_kit.cli.view import command
from taskapp_kit.errors import StoreError
from tests.waiting import until

ADDER = str(Path(__file__).parents[2] / "examples" / "adder.py")


def test_a_server_has_the_viewer_itself() -> None:
    ran = CliRunner().invoke(command, ["http://127.0.0.1:8001/"])
    assert ran.exit_code == 2 and "http://127.0.0.1:8001/ui" in ran.output


def test_nothing_is_created_where_nothing_is_stored(tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, [str(tmp_path / "none.db")])
    assert isinstance(ran.exception, StoreError) and list(tmp_path.iterdir()) == []


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

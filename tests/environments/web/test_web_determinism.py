"""The same episodes in five processes of other time zones, languages and hash seeds, two with others beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from environments.web.app import Web
from environments.web.sites.catalog import KINDS
from environments.web.tasks import WebTask

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("chromium_here")]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).parent / "determined_episodes.py"

PLACES = (
    ("Asia/Tokyo", "ja_JP.UTF-8", "1", 0),
    ("America/New_York", "de_DE.UTF-8", "2", 2),
    ("Pacific/Kiritimati", "C", "3", 0),
    ("UTC", "tr_TR.UTF-8", "4", 2),
    ("Asia/Kolkata", "", "5", 0),
)


def episodes(place: tuple[str, str, str, int]) -> list[list[str]]:
    zone, language, hash_seed, beside = place
    environ = {
        **os.environ, "TZ": zone, "LANG": language, "LC_ALL": language, "LANGUAGE": language[:2],
        "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), str(beside)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_whole_episodes_and_their_pictures_are_equal_in_five_processes() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, *others = pool.map(episodes, PLACES)
    for episode in first:
        assert len(episode) >= 2 * 4 + 1
    assert any(len(episode) >= 2 * 8 + 1 for episode in first[1:])
    pictures = [line for line in first[0] if line.startswith("PNG")]
    assert len(set(pictures)) > 5  # there is something to see
    for place, other in zip(PLACES[1:], others, strict=True):
        for episode, same in zip(first, other, strict=True):
            for step, (seen, again) in enumerate(zip(episode, same, strict=True)):
                assert again == seen, f"step {step} differs with {place}"


def test_the_versions_come_with_the_first_step_and_only_there() -> None:
    episode = Web()
    kind = sorted(KINDS)[0]
    episode.reset(WebTask(kind=kind, difficulty="easy", number=1, feasible=True, tags=[]))
    try:
        assert sorted(episode.noop().info) == ["chromium", "playwright"]
        assert episode.noop().info == {}
        assert episode.send_msg_to_user("x").info == {"message": "x"}
    finally:
        episode.close()

"""A person plays while the store fails: the page says that the episode was not stored, and can be left."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store.sqlite import SqliteStore
from tests.serve.running_server import KEY, opened
from tests.viewer import play_app
from tests.viewer.test_play import Game

pytestmark = pytest.mark.server


class Full(SqliteStore):
    """Its disk is full."""

    async def save(self, rollout: StoredRollout) -> None:
        raise StoreError("sentinel-words")


def test_a_save_that_fails_leaves_a_page_that_can_be_left(tmp_path: Path) -> None:
    settings = Settings(environment_api_key=KEY, ui=True)
    with opened(settings, serves=play_app.app, store=Full(tmp_path / "s.db")) as running:
        game = Game.begin(running, "walk")
        game.post(do="finish")
        assert game.page.status_code == 200 and "store_failed" in game.page.text, game.page.text
        assert "sentinel-words" not in game.page.text
        assert game.state["state"] == "over" and game.state["episode"]["failure"]["code"] == "store_failed"
        game.post(do="again")
        assert game.page.url.query == b"note=full" and "store_failed" in game.page.text
        game.post(do="close")
        assert game.page.url.path == "/ui/environment" and len(running.service.sessions) == 0
        assert Game.begin(running, "walk").page.status_code == 503 and len(running.service.sessions) == 0

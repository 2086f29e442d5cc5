"""With `screenshot`, each observation has a picture of the task's part of the window, and the text that it has without."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from environments.web.miniwob.environment import Miniwob
from tests.environments.web.miniwob.episodes import BROWSER, begun, task

pytestmark = BROWSER


def size_of(picture: Any) -> tuple[int, int]:
    """Width and height of a PNG."""
    width, height = struct.unpack(">II", picture.png[16:24])
    return width, height


@pytest.mark.parametrize("name", ["click-button", "click-pie", "use-autocomplete"])
def test_the_picture_is_of_the_task_and_the_text_is_the_same(name: str) -> None:
    seeing = Miniwob(screenshot=True)
    try:
        observation = seeing.reset(task(name))
        assert not isinstance(observation, str)
        text, picture = observation
        assert size_of(picture) == (160, 210)
        with begun(name) as (_, seen):
            assert text.text == seen
    finally:
        seeing.close()


def test_what_a_page_shows_beside_the_task_is_in_the_picture() -> None:
    seeing = Miniwob(screenshot=True)
    try:
        seeing.reset(task("click-button"))
        window = seeing.opened.window  # type: ignore[union-attr]
        note = "document.body.append(Object.assign(document.createElement('p'), {id: 'beside', textContent: '.'}))"
        place = (
            "document.getElementById('beside').style.cssText = 'position: absolute; left: 150px; top: 5px; width: 57px'"
        )
        seeing.browser.run(window.page.evaluate(f"{note}; {place}"))
        _, picture = seeing.noop().observation
        assert size_of(picture) == (210, 210)
    finally:
        seeing.close()

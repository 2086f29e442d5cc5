"""Pictures: any size, by day and by night, the same however often they are painted."""

from pathlib import Path
from typing import Any

import crafter
import numpy as np
import pytest

from environments.crafter.rules import CrafterGame

README = Path(__file__).resolve().parents[3] / "environments" / "crafter" / "README.md"


@pytest.mark.parametrize("size", [18, 64, 100, 288, (90, 70), (64, 128)])
def test_by_day_every_size_is_stocks(size: Any) -> None:
    env, game = crafter.Env(seed=3, size=size), CrafterGame(3)
    env.reset()
    picture = game.render(size)
    width, height = (size, size) if isinstance(size, int) else size
    assert picture.shape == (height, width, 3)
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, env.render())


def test_the_night_is_the_same_at_every_look() -> None:
    game = CrafterGame(21)
    game._player.health = 9
    while game.steps < 190 and not game.over:
        game.step("noop")
    assert game._world.daylight < 0.5
    small, large = game.render(64), game.render(576)
    assert np.array_equal(game.render(64), small)
    assert np.array_equal(game.render(576), large)
    again = CrafterGame(21)
    while again.steps < game.steps:
        again.step("noop")
    assert np.array_equal(again.render(576), large)


@pytest.mark.parametrize("size", [17, 2049, 0, -64, 64.0, True, (64,), (64, 17), None, "64"])
def test_invalid_sizes_are_rejected(size: Any) -> None:
    with pytest.raises(ValueError, match=r"\b18 .*\b2048\b"):
        CrafterGame(1).render(size)


def test_the_readmes_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    block = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(block, str(README), "exec"), {})
    with Image.open(tmp_path / "crafter.gif") as film:
        assert (film.size, film.n_frames > 50) == ((288, 288), True)  # type: ignore[attr-defined]

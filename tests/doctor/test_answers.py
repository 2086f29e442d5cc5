"""Nonsense is compared with good play, with chance and with idling."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.gallery import HUNT, fault
from tests.doctor.test_gallery import findings

GOLD = '''
@app.policy("gold")
def gold(observation: str, rng: random.Random) -> dict:
    """Guesses well."""
    return {"guess": {"number": 500}}
'''
STEP = "reward=float(right)"


@pytest.mark.parametrize(
    ("reward", "status"),
    [
        ("float(number == 500)", "ok"),
        ("1.0 if number == 500 else -0.1", "warning"),  # doing nothing earns more than chance
        ("-0.1 + right", "wrong"),  # and more than good play
    ],
)
def test_nonsense_that_earns_more_than_chance_is_reported_with_gold_too(
    reward: str, status: str, tmp_path: Path
) -> None:
    (tmp_path / "hunt.py").write_text(fault(HUNT, {STEP: f"reward={reward}"}, GOLD), encoding="utf-8")
    examined = findings(tmp_path / "hunt.py", processes=False)
    assert next(item.status for item in examined if item.name == "nonsense-pays") == status

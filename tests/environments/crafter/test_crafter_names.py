"""The tables written out in `names` are those of the installed package."""

from pathlib import Path

import pytest
from crafter import constants

from environments.crafter import names
from tests.programs import printed

ROOT = Path(__file__).resolve().parents[3]


def test_tables_are_the_packages() -> None:
    assert list(names.ACTIONS) == constants.actions
    assert list(names.ACHIEVEMENTS) == constants.achievements
    assert list(names.MATERIALS) == constants.materials
    assert [*names.VITALS, *names.ITEMS] == list(constants.items)
    assert {item["max"] for item in constants.items.values()} == {names.MAX_AMOUNT}


def test_costs_are_the_packages() -> None:
    costs = {f"place_{name}": entry["uses"] for name, entry in constants.place.items()}
    costs |= {f"make_{name}": entry["uses"] for name, entry in constants.make.items()}
    assert costs == names.COSTS


def test_prerequisites_follow_from_the_packages_tables() -> None:
    assert set(names.PREREQUISITES) == set(names.ACHIEVEMENTS)
    for tool, entry in constants.make.items():
        expected = {f"place_{place}" for place in entry["nearby"]} | {f"collect_{item}" for item in entry["uses"]}
        assert set(names.PREREQUISITES[f"make_{tool}"]) == expected
    for entry in constants.collect.values():
        for item in entry["receive"]:
            expected = {f"make_{tool}" for tool in entry["require"]}
            assert set(names.PREREQUISITES[f"collect_{item}"]) == expected
    for place, entry in constants.place.items():
        assert set(names.PREREQUISITES[f"place_{place}"]) <= {f"collect_{item}" for item in entry["uses"]} | {
            "collect_wood"
        }


@pytest.mark.process
def test_the_light_modules_do_not_load_the_game() -> None:
    code = (
        "import sys; import environments.crafter.names, environments.crafter.score\n"
        "import environments.crafter.view, environments.crafter.scripted\n"
        "print([name for name in ('crafter', 'numpy', 'numba') if name in sys.modules])"
    )
    assert printed(code, cwd=ROOT) == "[]\n"

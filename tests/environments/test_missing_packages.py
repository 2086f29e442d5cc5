"""Where the package of a bundled environment is not installed, its app is told of, and a rollout names the extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import printed

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, sys

app, seed, split, *packages = sys.argv[1:]

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())

from taskapp_kit.wire.rollout import RolloutRequest
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import KitError
from taskapp_kit.rollout.service import Service

async def main():
    service = Service(find_app(app))
    assert service.instance(app, None, int(seed)).split == split
    request = {"run_id": "test", "env": {"env_name": app, "seed": 7}, "policy": {"policy_name": "random"},
               "ops": [], "mode": "eval"}
    try:
        await service.rollout(RolloutRequest.model_validate(request))
    except KitError as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("app", "seed", "split", "packages"),
    [("crafter", 7, "train", ["crafter"]), ("math", 1_010_000, "test", ["reasoning_gym", "sympy"])],
)
def test_a_rollout_without_the_package_names_the_extra(app: str, seed: int, split: str, packages: list[str]) -> None:
    shown = printed(PROGRAM, app, str(seed), split, *packages, cwd=Path(__file__).parents[2])
    assert f"pip install 'taskapp-kit[{app}]'" in shown

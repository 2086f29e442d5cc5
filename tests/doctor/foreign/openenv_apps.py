"""OpenEnv's echo environments for the doctor, as `from_openenv` plays them at a server of OpenEnv's own package.

OPENENV_URL is the address that tests/interop/openenv_served.py serves. Each app is a global of this module, so that a second
process finds it as `openenv_apps.py:NAME`.
"""

from __future__ import annotations

import os
import random

from taskapp_kit import TaskApp, Trajectory
from taskapp_kit.interop.openenv import from_openenv

URL = os.environ.get("OPENENV_URL", "")
SPLITS = {"train": range(1000), "test": range(1000, 1100)}


def _message(rng: random.Random) -> dict[str, str]:
    return {"message": "".join(rng.choices("abcdefgh ", k=rng.randint(1, 12)))}


if URL:
    openenv_echo = TaskApp("openenv_echo")
    openenv_echo.environment("echo", splits=SPLITS, max_steps=4)(from_openenv(f"{URL}/echo", sample=_message))

    openenv_tools = TaskApp("openenv_tools")
    openenv_tools.environment("tools", splits=SPLITS, max_steps=4)(
        from_openenv(
            f"{URL}/tools",
            rewarded=False,
            sample={
                "echo_message": _message,
                "echo_with_length": _message,
                "divide": lambda rng: {"by": rng.randint(1, 9)},
            },
        )
    )

    @openenv_tools.rubric
    def echoed(trajectory: Trajectory) -> float:
        """The share of steps whose observation has the message that was sent."""
        steps = trajectory.steps
        return sum(str(step.args.get("message", "-")) in str(step.observation) for step in steps) / max(1, len(steps))

"""Environments that others wrote for verifiers, for the doctor, as `from_verifiers` makes them.

verifiers lives in an environment of its own (tests/interop/peers.py), so this file also is the program that examines them
there and prints what it found, one JSON line for each app:

    python verifiers_apps.py [NAME …]

verifiers' own ReasoningGymEnv asks the generators of reasoning-gym; staros-stardata 0.1.1 is a package of environments from
PyPI, whose third one imports a module that the package does not have.
Each app is a global of this module, so that a second process finds it as `verifiers_apps.py:NAME`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import random
import sys
import types
from typing import Any

from taskapp_kit import TaskApp

GENERATORS = ("chain_sum", "letter_counting", "spell_backward")
NAMES = (*(f"verifiers_{name}" for name in GENERATORS), "stardata_verse", "stardata_lipogram")


def _load(name: str) -> Any:
    """The `load_environment` of an app's environment."""

    def asked(**options: Any) -> Any:
        from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

        gym = name.removeprefix("verifiers_")
        return ReasoningGymEnv(gym=gym, num_train_examples=200, num_eval_examples=100, **options)

    def written(**options: Any) -> Any:
        from stardata.envs import constraint_gym

        load = constraint_gym.load_environment if name == "stardata_verse" else constraint_gym.load_lipogram_env
        return load(**options)

    return asked if name.startswith("verifiers_") else written


def _move(rng: random.Random) -> str:
    return f"<answer>{rng.choice(['U', 'D', 'L', 'R', str(rng.randrange(40))])}</answer>"


if importlib.util.find_spec("verifiers") is not None:
    from taskapp_kit.interop.verifiers import from_verifiers

    for _name in NAMES:
        _module = types.ModuleType(f"{_name}_module")  # as a package of the Environments Hub has it
        _module.load_environment = _load(_name)  # type: ignore[attr-defined]
        sys.modules[_module.__name__] = _module
        _app, _made = TaskApp(_name), from_verifiers(_module.__name__, sample=_move)
        _app.environment(_name, splits=getattr(_made, "splits", None), max_turns=None)(_made)
        globals()[_name] = _app


async def _found(name: str) -> list[str]:
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.doctor.doctor_options import DoctorOptions
    from taskapp_kit.doctor.examine import examine

    app = find_app(f"{__file__}:{name}")
    lines = [line async for line in examine(app, DoctorOptions())]
    for line in lines:
        if line.status in ("warning", "wrong"):
            print(f"{line.status} {line.name}: {line.found}", file=sys.stderr)
    return sorted({line.name for line in lines if line.status in ("warning", "wrong")})


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for _name in sys.argv[1:] or NAMES:
        print(json.dumps({"app": _name, "findings": asyncio.run(_found(_name))}), flush=True)

"""Tools for testing task apps: `play` for one rollout, and a local model server that can inject faults.

from taskapp_kit.testing import Faults, MockModel, play

assert play(app, seed=3, policy="gold").scorecard.reward == 1.0
with MockModel(latency_seconds=0.05, faults=Faults({"429": 0.02, "reset": 0.01})) as model:
    play(app, seed=3, policy=model)  # or set a policy's inference_url to model.url; model.requests lists the requests

These names are imported at first use, so that the pytest plugin does not slow down other test runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskapp_kit.testing.mock_model.behaviours import bad, by_name, echo, random_answers, scripted
    from taskapp_kit.testing.mock_model.chat_request import ChatRequest
    from taskapp_kit.testing.mock_model.faults import FAULTS, Faults
    from taskapp_kit.testing.mock_model.judges import judge, obedient_judge
    from taskapp_kit.testing.mock_model.process import MockProcess
    from taskapp_kit.testing.mock_model.reply import Call, Reply
    from taskapp_kit.testing.mock_model.request_log import Recorded
    from taskapp_kit.testing.mock_model.server import MockModel
    from taskapp_kit.testing.play_once import GlobalRandomnessWarning, Rollout, play

__all__ = [
    "FAULTS",
    "Call",
    "ChatRequest",
    "Faults",
    "GlobalRandomnessWarning",
    "MockModel",
    "MockProcess",
    "Recorded",
    "Reply",
    "Rollout",
    "bad",
    "by_name",
    "echo",
    "judge",
    "obedient_judge",
    "play",
    "random_answers",
    "scripted",
]

_MODULES = {
    "mock_model.behaviours": ("bad", "by_name", "echo", "random_answers", "scripted"),
    "mock_model.chat_request": ("ChatRequest",),
    "mock_model.faults": ("FAULTS", "Faults"),
    "mock_model.judges": ("judge", "obedient_judge"),
    "mock_model.server": ("MockModel",),
    "mock_model.process": ("MockProcess",),
    "play_once": ("GlobalRandomnessWarning", "Rollout", "play"),
    "mock_model.request_log": ("Recorded",),
    "mock_model.reply": ("Call", "Reply"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

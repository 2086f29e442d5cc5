"""The inspector: what authors test with. A real local model server that answers well, badly or not at all, on demand.

from taskapp_kit.testing import Faults, MockModel

with MockModel(latency_seconds=0.05, faults=Faults({"429": 0.02, "reset": 0.01})) as model:
    ...  # point a policy at model.url; model.requests is what arrived
"""

from taskapp_kit.testing.behaviours import bad, by_name, echo, random_answers, scripted
from taskapp_kit.testing.chat_request import ChatRequest
from taskapp_kit.testing.faults import FAULTS, Faults
from taskapp_kit.testing.judges import judge, obedient_judge
from taskapp_kit.testing.mock_model import MockModel
from taskapp_kit.testing.mock_process import MockProcess
from taskapp_kit.testing.records import Recorded
from taskapp_kit.testing.reply import Call, Reply

__all__ = [
    "FAULTS",
    "Call",
    "ChatRequest",
    "Faults",
    "MockModel",
    "MockProcess",
    "Recorded",
    "Reply",
    "bad",
    "by_name",
    "echo",
    "judge",
    "obedient_judge",
    "random_answers",
    "scripted",
]

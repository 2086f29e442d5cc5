"""taskapp-kit: declare an environment once, serve it to every trainer.

The stable names are in `__all__`; importing the package loads only the declarations.
"""

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.marks import action
from taskapp_kit.declare.private_fields import Private
from taskapp_kit.errors import (
    DeclarationError,
    InvalidAction,
    KitError,
    LateRegistration,
    RequestError,
    RolloutFailed,
    Unavailable,
)
from taskapp_kit.records.content import Image, Text
from taskapp_kit.records.protocols import RolloutRow as RolloutSummary
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.trajectory import PlayedStep, Step, Trajectory
from taskapp_kit.version import __version__

__all__ = [
    "Blend",
    "DeclarationError",
    "Image",
    "InvalidAction",
    "KitError",
    "LateRegistration",
    "PlayedStep",
    "Private",
    "RequestError",
    "RolloutFailed",
    "RolloutSummary",
    "Step",
    "TaskApp",
    "Text",
    "Trajectory",
    "Unavailable",
    "__version__",
    "action",
]

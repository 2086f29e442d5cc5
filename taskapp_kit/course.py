"""Old import path of `taskapp_kit.rollout.in_flight`, kept because the documentation named it."""

from taskapp_kit.rollout.in_flight import Finished
from taskapp_kit.rollout.in_flight import InFlightRollout as Course

__all__ = ["Course", "Finished"]

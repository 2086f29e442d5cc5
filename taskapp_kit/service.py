"""Old import path of `taskapp_kit.rollout.service`, kept because the documentation named it."""

from taskapp_kit.rollout.service import Service

__all__ = ["Service"]

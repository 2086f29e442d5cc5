"""Old import path of `taskapp_kit.rollout.models.access`, kept because the documentation named it."""

from taskapp_kit.rollout.models.access import model_access

__all__ = ["model_access"]

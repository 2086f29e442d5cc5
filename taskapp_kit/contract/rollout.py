"""Old import path of `taskapp_kit.contract.result`, kept because the documentation named it."""

from taskapp_kit.contract.result import Rollout

__all__ = ["Rollout"]

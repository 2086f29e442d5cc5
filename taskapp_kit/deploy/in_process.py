"""Old import path of `taskapp_kit.deploy.local.in_process`, kept because the documentation named it."""

from taskapp_kit.deploy.local.in_process import InProcessTaskApp

__all__ = ["InProcessTaskApp"]

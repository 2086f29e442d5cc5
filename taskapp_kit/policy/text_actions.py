"""Old import path of `taskapp_kit.rollout.policy.text.text_actions`, kept because the documentation named it."""

from taskapp_kit.rollout.policy.text.text_actions import parse_actions

__all__ = ["parse_actions"]

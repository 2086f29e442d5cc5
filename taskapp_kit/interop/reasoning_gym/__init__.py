"""reasoning-gym: generators of reasoning-gym as environments."""

from __future__ import annotations

from taskapp_kit.interop.reasoning_gym.importer import from_reasoning_gym

__all__ = ["from_reasoning_gym"]

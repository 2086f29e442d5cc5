"""Which policy a printed example names."""

from __future__ import annotations


def example_policy(policies: dict[str, str | None]) -> dict[str, str]:
    """A `policy.config` that can be tried at once: random, else the app's own, else constant words."""
    for name in ("random", *policies):
        if name in policies and policies[name] is None and name not in ("constant", "replay", "gold"):
            return {"policy": name}
    return {"policy": "constant", "action": "hello"}

"""Which policy a printed example names."""

from __future__ import annotations


def example_policy(policies: dict[str, str | None], *, words: bool = True) -> dict[str, str]:
    """A `policy.config` that can be tried at once: random, else the app's own, else constant words.

    words: whether an action takes plain words; where none does, `gold` stands before them.
    """
    for name in ("random", *policies):
        if name in policies and policies[name] is None and name not in ("constant", "replay", "gold"):
            return {"policy": name}
    if not words and policies.get("gold", "") is None:
        return {"policy": "gold"}
    return {"policy": "constant", "action": "hello"}

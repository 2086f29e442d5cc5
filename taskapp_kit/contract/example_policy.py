"""Which policy is tried when nobody named one: by a check, a deploy, and in a printed example."""

from __future__ import annotations

from collections.abc import Mapping

NEVER_FIRST = ("constant", "replay", "gold")
"""These need an action or a rollout, or are not offered to every caller."""


def example_policy(policies: Mapping[str, str | None], *, words: bool = True) -> dict[str, str]:
    """A `policy.config` that can be tried at once: random, else the app's own or noop, else constant words.

    policies: name to None, or to why it is unavailable. words: whether an action takes plain words; where none does,
    `gold` stands in for constant words. Empty where only a model can play.
    """
    for name in ("random", *policies):
        if name not in NEVER_FIRST and policies.get(name, "") is None:
            return {"policy": name}
    if words and policies.get("constant", "") is None:
        return {"policy": "constant", "action": "hello"}
    return {"policy": "gold"} if policies.get("gold", "") is None else {}

"""The policy to try if none was named: in a check, a deploy, or a printed example."""

from __future__ import annotations

from collections.abc import Mapping

NEVER_FIRST = ("constant", "replay", "gold")
"""Policies that need an action or a rollout, or are not available to every caller."""


def example_policy(policies: Mapping[str, str | None], *, words: bool = True) -> dict[str, str]:
    """Return a `policy.config` that works without further input: random, else the app's own or noop, else constant text.

    Returns an empty dict if only a model can play. policies: name to None, or to the reason why it is unavailable. words:
    whether an action takes plain text; otherwise `gold` replaces constant text.
    """
    for name in ("random", *policies):
        if name not in NEVER_FIRST and policies.get(name, "") is None:
            return {"policy": name}
    if words and policies.get("constant", "") is None:
        return {"policy": "constant", "action": "hello"}
    return {"policy": "gold"} if policies.get("gold", "") is None else {}

"""Chooses a policy for checks, deployments and printed examples if the user did not name one."""

from __future__ import annotations

from collections.abc import Mapping

NEVER_FIRST = ("constant", "replay", "gold")
"""Policies that need an action or a stored rollout, or that not every caller may use."""


def example_policy(policies: Mapping[str, str | None], *, words: bool = True) -> dict[str, str]:
    """Return a `policy.config` that works without further input, or an empty dict if only a model can play.

    `random` is preferred, then the other available policies in their order, and finally `constant` with a text.

    Args:
        policies: For each policy, None if it is available, and otherwise the reason why it is not.
        words: Whether an action takes plain text. If not, `gold` is used instead of `constant`.
    """
    for name in ("random", *policies):
        if name not in NEVER_FIRST and policies.get(name, "") is None:
            return {"policy": name}
    if words and policies.get("constant", "") is None:
        return {"policy": "constant", "action": "hello"}
    return {"policy": "gold"} if policies.get("gold", "") is None else {}

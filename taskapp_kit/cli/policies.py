"""Which policies can act in an environment, and why a built-in one cannot."""

from __future__ import annotations

import random

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import RequestError


def policies_of(app: AppSpec, environment: EnvironmentSpec) -> dict[str, str | None]:
    """Policy to None, or to the sentence why it is unavailable; the app's own first."""
    from taskapp_kit.policy.choose import policy_names
    from taskapp_kit.policy.local import noop_policy, random_policy

    own = {spec.name for spec in app.policies if spec.applies_to(environment.name)}
    found: dict[str, str | None] = {}
    for name in policy_names(app, environment.name):
        found[name] = None
        try:
            if name == "random" and name not in own:
                random_policy(environment, random.Random(0))
            elif name == "noop" and name not in own:
                noop_policy(environment)
        except RequestError as error:
            found[name] = error.message.partition("is unavailable: ")[2] or error.message
    return found


def example_policy(policies: dict[str, str | None]) -> dict[str, str]:
    """A `policy.config` that can be tried at once: random, else the app's own, else constant words."""
    for name in ("random", *policies):
        if name in policies and policies[name] is None and name not in ("constant", "replay", "gold"):
            return {"policy": name}
    return {"policy": "constant", "action": "hello"}

"""Checks that a task app has the environment, the policy, the seeds and the env_config fields that a job needs.

The checks use the lists in the task app's `GET /task_info`. If a list is absent, its check is skipped, because task
apps that are not built with this kit may describe themselves differently. Their responses to rollouts then report what
is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import closest
from taskapp_kit.jobs.server.rollout_plan import MAX_SPLIT_NAME, MAX_SPLITS, JobPlan, bounds_of

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

EVERY_APP = ("split", "index", "difficulty", "step_rewards")
"""Fields of env_config that every app of this kit accepts in addition to its schema.

Apps with rows also accept ROWS.
"""
ROWS = ("tags",)
MAX_SHOWN = 20
"""How many names, seeds or ranges one message lists."""
RANDOM = "random"
"""The default policy of a job."""


async def missing(plan: JobPlan, task_app: OpenedTaskApp) -> list[str]:
    """Return one sentence for each requirement that the task app does not meet.

    Raises TaskAppError if `GET /task_info` fails.
    """
    described = await task_app.task_info(())
    environments = _names(_table(described, "taskset", "dataset").get("environments"))
    if plan.env_name is not None and environments:
        if plan.env_name not in environments:
            return [_unknown("rollout.env_name", plan.env_name, "environments", environments, task_app.cleaned)]
        described = await task_app.task_info((), environment=plan.env_name)
    return [
        *_policy(plan, described, task_app.cleaned),
        *_seeds(plan, described, task_app.cleaned),
        *_env_config(plan, described, task_app.cleaned),
    ]


def playable_policies(described: Any) -> list[str]:
    """Return the names of the task app's own policies from `GET /task_info`."""
    return _names(_table(described, "inference").get("policies"))


def _policy(plan: JobPlan, described: Any, cleaned: Callable[[str], str]) -> list[str]:
    """Check the policy. If the job has a model's address, `rollout.policy_name` is only a label."""
    policies = playable_policies(described)
    if not plan.names_a_player:
        if RANDOM in policies:
            return []
        listed = f"; the policies are {_shown(policies, cleaned)}" if policies else ""
        found = (
            "The job sets neither rollout.policy_name nor policy.inference_url (a model's address), and the task app has no "
            f"policy `{RANDOM}`{listed}. Set one of them in the config."
        )
        return [found]
    path, named = "rollout.policy_config.policy", plan.policy_config.get("policy")
    if named is None and not plan.policy_config.get("inference_url"):
        path, named = "rollout.policy_name", plan.policy_name
    if named is None or not policies or named in policies:
        return []
    found = _unknown(path, str(named), "policies", policies, cleaned)
    return [found if path != "rollout.policy_name" else f"{found} For a language model, set policy.inference_url."]


def _seeds(plan: JobPlan, described: Any, cleaned: Callable[[str], str]) -> list[str]:
    dataset = _table(described, "taskset", "dataset")
    by_split = dataset.get("seeds")
    ranges = {name: bounds_of(by_split[name]) for name in _names(by_split)} if isinstance(by_split, Mapping) else {}
    known = {name: seeds for name, seeds in ranges.items() if seeds is not None}
    if not known or len(known) < len(ranges):
        return []
    split = plan.env_config.get("split")
    if isinstance(split, str) and split not in known:
        return [_unknown("rollout.env_config.split", split, "splits", known, cleaned)]
    if not isinstance(split, str) and dataset.get("kind") == "rows":
        split = dataset.get("default_split")  # a row's seed is its index in the split
    if isinstance(split, str) and split in known:
        known = {split: known[split]}
    found = []
    for path, seeds in (("data.seeds", plan.seeds), ("evaluation.seeds", plan.eval_seeds)):
        wrong = sorted({seed for seed in seeds or () if not any(seed in some for some in known.values())})
        if wrong:
            ways = [
                f"{cleaned(name)} {some[0]} to {some[-1]}" + (f" by {some.step}" if some.step != 1 else "")
                for name, some in list(known.items())[:MAX_SHOWN]
            ]
            more = f" and {len(wrong) - MAX_SHOWN} more" if len(wrong) > MAX_SHOWN else ""
            first = ", ".join(map(str, wrong[:MAX_SHOWN]))
            found.append(f"{path} has {first}{more}; the seeds are {', '.join(ways)}.")
    return found


def _env_config(plan: JobPlan, described: Any, cleaned: Callable[[str], str]) -> list[str]:
    schema = _table(described, "config_schema")
    members = schema.get("properties")
    if not isinstance(members, Mapping) or schema.get("additionalProperties") is not False:
        return []
    named = _names(members)
    if len(named) < len(members):  # some names are invalid here, and the requested one may be among them
        return []
    rows = _table(described, "taskset", "dataset").get("kind") == "rows"
    taken = [*named, *EVERY_APP, *(ROWS if rows else ())]
    return [
        _unknown("rollout.env_config", name, "members", taken, cleaned)
        for name in list(plan.env_config)[:MAX_SHOWN]
        if name not in taken
    ]


def _unknown(path: str, given: str, what: str, known: Collection[str], cleaned: Callable[[str], str]) -> str:
    close = closest(given, known)
    meant = f" Did you mean {cleaned(close)!r}?" if close else ""
    return f"{path} names {given[:MAX_SPLIT_NAME]!r}; the {what} are {_shown(known, cleaned)}.{meant}"


def _shown(names: Collection[str], cleaned: Callable[[str], str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(cleaned(name) for name in list(names)[:MAX_SHOWN]) + more


def _table(described: Any, *names: str) -> Mapping[str, Any]:
    """Return the first field of the task app's description that has one of these names and is an object."""
    members = described if isinstance(described, Mapping) else {}
    return next((members[path] for path in names if isinstance(members.get(path), Mapping)), {})


def _names(listed: Sequence[Any] | Mapping[Any, Any] | Any) -> list[str]:
    """Return the names in a list or an object.

    Task apps are untrusted, so return [] if it contains anything else or too much.
    """
    if not isinstance(listed, list | Mapping) or len(listed) > MAX_SPLITS:
        return []
    names = list(listed)
    fits = all(isinstance(name, str) and 0 < len(name) <= MAX_SPLIT_NAME and name.isprintable() for name in names)
    return names if fits else []

"""What `taskapp check APP` finds: the declarations of an app, then one rollout in each of its environments.

    for finding in check_app(find_app("adder.py")):
        print(finding.part, finding.ok, finding.found, finding.do)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from taskapp_kit.client.checks import Finding
from taskapp_kit.contract.example_policy import example_policy
from taskapp_kit.contract.rollout import Rollout
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.declare.taskapp import TaskApp
from taskapp_kit.errors import DeclarationError, RolloutFailed, TaskappError
from taskapp_kit.policy.choose import policies_of
from taskapp_kit.run import global_random
from taskapp_kit.testing.play_once import GlobalRandomnessWarning, play

MOST_TURNS = 1000
"""A rollout of a check ends after so many turns, in an environment that declares no limit too."""


def check_app(app: TaskApp) -> Iterator[Finding]:
    """Each problem of the declarations; where there is none, one rollout of a cheap policy in each environment.

    The rollouts are played in this process, one after the other, from the first seed. Nothing is stored, and no judge
    is asked. The order is the declarations', and each finding is there once its rollout is over.
    """
    try:
        spec = app.freeze()
    except DeclarationError as error:
        for problem in error.problems:
            yield Finding("app", False, _sentence(f"{problem.place}: {problem.found}; expected {problem.expected}"), problem.fix)
        return
    count = "1 environment" if len(spec.environments) == 1 else f"{len(spec.environments)} environments"
    yield Finding(
        "app", True, f"{spec.name} {spec.version} declares {count}; one rollout is played in each, here, and not stored."
    )
    for warning in spec.warnings:
        yield Finding("app", True, _sentence(warning))
    global_random.load()
    for environment in spec.environments.values():
        yield from _try(app, spec, environment)


def _try(app: TaskApp, spec: AppSpec, environment: EnvironmentSpec) -> Iterator[Finding]:
    """One rollout, and whether it changed a random state that rollouts share."""
    name, seed = environment.name, environment.first_seed
    policy = example_policy(policies_of(spec, environment), words=environment.text_action is not None)
    if not policy:
        found = f"Environment {name}: no rollout was tried, because without a model no policy can act there."
        yield Finding("rollout", True, found, "Give its actions bounds or @action(sample=fn), and random plays it.")
        return
    asked = f"Environment {name}: policy {policy['policy']}, seed {seed}"
    before = global_random.states()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GlobalRandomnessWarning)  # it becomes a finding below
            rollout = play(app, environment=name, seed=seed, policy=policy, ops=MOST_TURNS, judges="skip")
    except RolloutFailed as error:
        failed = f"{asked}: failed at boundary {error.boundary} ({error.failure.code}): {error.message}"
        do = f"{error.hint} `taskapp rollout` with --env {name} --seed {seed} shows where.".strip()
        yield Finding("rollout", False, _sentence(failed), do)
    except TaskappError as error:
        yield Finding("rollout", False, _sentence(f"{asked}: not played: {error.message}"), error.hint or TRY_AGAIN)
    else:
        yield Finding("rollout", True, f"{asked}: {_outcome(rollout)}.")
        for warning in rollout.warnings:
            yield Finding("rollout", True, _sentence(f"Environment {name}: {warning}"))
    change = global_random.changed(before, name)
    if change is not None:
        yield Finding("rollout", False, _sentence(change), _sentence(global_random.REMEDY))


TRY_AGAIN = "`taskapp rollout` with that environment and seed says more."


def _outcome(rollout: Rollout) -> str:
    steps = rollout.numbers.length
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    count = "1 step" if steps == 1 else f"{steps} steps"
    return f"{rollout.numbers.status} ({rollout.trajectory.stop_reason}) after {count}, {reward}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."

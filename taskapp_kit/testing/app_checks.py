"""The checks of `taskapp check APP`: the declarations of an app, then one rollout in each of its environments.

for finding in check_app(find_app("adder.py")):
    print(finding.part, finding.ok, finding.found, finding.do)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from taskapp_kit.client.checks import Finding
from taskapp_kit.contract.example_policy import example_policy
from taskapp_kit.contract.result import Rollout
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import DeclarationError, RolloutFailed, TaskappError
from taskapp_kit.rollout.episode import global_random
from taskapp_kit.rollout.policy.select import policies_of
from taskapp_kit.testing.play_once import GlobalRandomnessWarning, play

PLAYED = "each is played once in this process, nothing is stored, and no judge is asked"
TRY_AGAIN = "`taskapp rollout` with that environment and seed says more."
MOST_TURNS = 1000
"""The limit on turns of a check's rollout, also in an environment that declares none."""


def check_app(app: TaskApp) -> Iterator[Finding]:
    """Yields each problem of the declarations; without one, the result of one rollout of a cheap policy per environment.

    The rollouts are played in this process, one after the other, from the first seed. Nothing is stored, and no judge is
    called. The order is that of the declarations, and each finding is yielded when its rollout has ended.
    """
    try:
        spec = app.freeze()
    except DeclarationError as error:
        for problem in error.problems:
            found = f"{problem.place}: {problem.found}; expected {problem.expected}."
            yield Finding("task app", False, found, problem.fix)
        return
    count = "1 environment" if len(spec.environments) == 1 else f"{len(spec.environments)} environments"
    yield Finding("task app", True, f"{spec.name} {spec.version} declares {count}; {PLAYED}.")
    for warning in spec.warnings:
        yield Finding("task app", True, f"{_capital(warning).rstrip('.')}.")
    for environment in spec.environments.values():
        yield from _try(app, spec, environment)


def _try(app: TaskApp, spec: AppSpec, environment: EnvironmentSpec) -> Iterator[Finding]:
    """Plays one rollout, and reports whether it changed a random state that rollouts share."""
    name = environment.name
    policy = example_policy(policies_of(spec, environment), words=environment.text_action is not None)
    if not policy:
        found = f"Environment {name}: no rollout was tried, because without a model no policy can act there."
        yield Finding("rollout", True, found, "Give its actions bounds or @action(sample=fn), and random plays it.")
        return
    for _ in range(
        2
    ):  # repeated where something was imported: then the first rollout does not show whether the episode draws
        global_random.draw()
        watch = global_random.GlobalRandomWatch()
        tried = _rollout(app, environment, policy)
        if not watch.imported:
            break
    yield tried
    change = watch.changed(name)
    if change is not None:
        yield Finding("rollout", False, f"{_capital(change)}.", f"{_capital(global_random.REMEDY)}.")


def _rollout(app: TaskApp, environment: EnvironmentSpec, policy: dict[str, str]) -> Finding:
    name, seed = environment.name, environment.first_seed
    asked = f"Environment {name}: policy {policy['policy']}, seed {seed}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GlobalRandomnessWarning)  # reported as a finding of its own
            rollout = play(app, environment=name, seed=seed, policy=policy, ops=MOST_TURNS, judges="skip")
    except RolloutFailed as error:
        failed = f"{asked}: failed at boundary {error.boundary} ({error.failure.code}): {error.message.rstrip('.')}."
        do = f"{error.hint} `taskapp rollout` with --env {name} --seed {seed} shows where.".strip()
        return Finding("rollout", False, failed, do)
    except TaskappError as error:
        return Finding("rollout", False, f"{asked}: not played: {error.message.rstrip('.')}.", error.hint or TRY_AGAIN)
    return Finding("rollout", True, f"{asked}: {'; '.join([_outcome(rollout), *rollout.warnings])}.")


def _outcome(rollout: Rollout) -> str:
    steps = rollout.length
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    count = "1 step" if steps == 1 else f"{steps} steps"
    return f"{rollout.status} ({rollout.trajectory.stop_reason}) after {count}, {reward}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]

"""Turns environments of verifiers into ours: `Env = from_verifiers("my_env")`.

Written against verifiers 0.3.1 (`load_environment`: SingleTurnEnv, MultiTurnEnv, ToolEnv) and 0.4.0 (`verifiers.v1`:
tasksets of one agent without tools or a container), PyPI; github.com/PrimeIntellect-ai/verifiers, Apache-2.0. verifiers and
the environment's package have to be installed beside taskapp-kit. Guarantees:

- A row's `answer` and `info`, and verifiers' state, are in no observation and no info.
- Reward functions are called here: one that raises fails the rollout, where verifiers 0.3.1 goes on with 0.0. So does an
  environment that raises, or leaves an error in its state.
- The reward is verifiers' own, the weighted sum, in the step that ends the rollout; a rollout that something else ends
  before has none, and fails.
- What cannot be played is refused by name when the app is declared.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from taskapp_kit.errors import DeclarationError, Unavailable
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.verifiers.episode import SAY, VerifiersEnvironment, say

Sample = Callable[[random.Random], Any]


def from_verifiers(
    module: str,
    *,
    sample: Sample | Mapping[str, Sample] | None = None,
    rewarded: bool = True,
    **arguments: Any,
) -> type[VerifiersEnvironment]:
    """Return a class for `app.environment(...)` that plays an environment of verifiers.

        Env = from_verifiers("my_env", difficulty="hard")
        app.environment("my-env", splits=Env.splits, max_turns=None)(Env)

    module: the installed package, as verifiers names it ("my-env", "owner/my-env"). It has `load_environment`, or exports a
    Taskset. arguments: those of `load_environment`, or of the taskset's config. `splits` has a seed for each row: `train`,
    and `eval` where the environment has one.

    sample: `fn(rng) -> text`, what the policy `random` writes, or a mapping from tools, and "say", to functions. rewarded:
    False where no function has a weight and the author's rubrics score.

    An environment that cannot be played is a problem of the app that declares the class. Raises Unavailable: verifiers, or
    the module, is not installed.
    """
    name = module.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if importlib.util.find_spec("verifiers") is None:
        raise Unavailable(
            "from_verifiers needs verifiers, which is not installed.", hint="pip install 'verifiers==0.3.1', or 0.4."
        )
    parts = ClassParts("from_verifiers", module, sys._getframe(1))
    samples: Mapping[str, Any] = sample if isinstance(sample, Mapping) else {} if sample is None else {SAY: sample}
    try:
        found = _imported(name)
        base, members = _class_parts(parts, name, found, arguments, rewarded, samples)
    except DeclarationError as error:
        return parts.without_environment(error, VerifiersEnvironment)
    members |= {
        "__doc__": f"{name.replace('_', ' ').capitalize()}, an environment of verifiers. Answer as its prompt asks.",
        "__module__": parts.module,
        "__init__": parts.constructor({}, lambda environment, options: None),
        "say": say(samples.get(SAY)),
        "rewarded": rewarded,
    }
    return type(re.sub(r"\W", "_", name), (base,), members)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"from_verifiers needs the module {error.name or name}, which is not installed.",
            hint="Install its package.",
        ) from error


def _class_parts(
    parts: ClassParts,
    name: str,
    module: ModuleType,
    arguments: dict[str, Any],
    rewarded: bool,
    samples: Mapping[str, Any],
) -> tuple[type[VerifiersEnvironment], dict[str, Any]]:
    """The base of the class and its members: `load_environment` is of the first API, a Taskset of the second."""
    load = getattr(module, "load_environment", None)
    try:
        if callable(load):
            from taskapp_kit.interop.verifiers import classic_episode as classic

            env = load(**arguments)
            members = classic.members_of(parts, env, rewarded, samples)
            return classic.ClassicEnvironment, {"system_prompt": getattr(env, "system_prompt", None), **members}
        from taskapp_kit.interop.verifiers import taskset_episode as taskset

        return taskset.TasksetEnvironment, taskset.members_of(parts, name, arguments, rewarded)
    except DeclarationError:
        raise
    except Exception as error:  # the environment's code may raise anything
        raise parts.wrong(
            f"cannot load {parts.name!r}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            "a module with load_environment, or one that exports a Taskset",
            "fix the module, or its arguments",
        ) from error

"""`from_verifiers`: an environment of verifiers as an environment of an app.

Written against verifiers 0.3.1 (`load_environment`: SingleTurnEnv, MultiTurnEnv, ToolEnv) and 0.4.0 (`verifiers.v1`:
tasksets of one agent without tools or a container), PyPI; github.com/PrimeIntellect-ai/verifiers, Apache-2.0. verifiers and
the environment's package must be installed. Guarantees:

- No observation and no info contains a row's `answer` and `info`, or verifiers' state.
- A reward function that raises fails the rollout, where verifiers 0.3.1 continues with 0.0. An environment that raises, or
  leaves an error in its state, also fails the rollout.
- The reward is verifiers' weighted sum, in the step that ends the rollout. A rollout that anything else ends earlier has an
  undefined reward and fails.
- An environment that cannot be played is rejected with the reason when the app is declared.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
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

    An environment that cannot be played is a problem of the app that declares the class.

    Args:
        module: The installed package as verifiers names it ("my-env", "owner/my-env"). It has `load_environment`, or exports a
            Taskset.
        sample: `fn(rng) -> text` for the policy `random`, or a mapping from tools and "say" to functions.
        rewarded: False if no function has a weight and the author's rubrics score the episode.
        **arguments: Arguments of `load_environment`, or of the taskset's config.

    Returns:
        A subclass of `VerifiersEnvironment`. Its `splits` `train` and, if it exists, `eval` have a seed per row.

    Raises:
        Unavailable: verifiers or the module is not installed.
    """
    name = module.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if importlib.util.find_spec("verifiers") is None:
        raise Unavailable(
            "from_verifiers needs verifiers, which is not installed.", hint="pip install 'verifiers==0.3.1', or 0.4."
        )
    parts = ClassParts("from_verifiers", module, sys._getframe(1))
    samples: Mapping[str, Any] = sample if isinstance(sample, Mapping) else {} if sample is None else {SAY: sample}
    try:
        base, members = _class_parts(parts, name, importlib.import_module(name), arguments, rewarded, samples)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"from_verifiers needs the module {error.name or name}, which is not installed.",
            hint="Install its package.",
        ) from error
    except DeclarationError as error:
        return parts.without_environment(error, VerifiersEnvironment)
    members |= {
        "__doc__": f"{name.replace('_', ' ').capitalize()}, an environment of verifiers. Answer as its prompt asks.",
        "__init__": parts.constructor({}, lambda environment, options: None),
        "say": say(samples.get(SAY)),
        "rewarded": rewarded,
    }
    return parts.made(base, name, members)


def _class_parts(
    parts: ClassParts,
    name: str,
    module: ModuleType,
    arguments: dict[str, Any],
    rewarded: bool,
    samples: Mapping[str, Any],
) -> tuple[type[VerifiersEnvironment], dict[str, Any]]:
    """Return the class's base and members: `load_environment` is the first API, a Taskset the second."""
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
            "a module that has load_environment or exports a Taskset",
            "fix the module, or its arguments",
        ) from error

"""`from_verifiers` declares an environment of verifiers as an environment of an app.

Written against verifiers 0.3.1 (`load_environment`: SingleTurnEnv, MultiTurnEnv, ToolEnv) and 0.4.0 (`verifiers.v1`:
tasksets with one agent, without tools or a container), PyPI; github.com/PrimeIntellect-ai/verifiers, Apache-2.0.
verifiers and the environment's package must be installed. Guarantees:

- Observations and info never contain a row's `answer` and `info`, or verifiers' state.
- If a reward function raises an exception, the rollout fails. verifiers 0.3.1 itself continues with 0.0. The rollout
  also fails if the environment raises an exception or stores an error in its state.
- The step that ends the rollout has verifiers' weighted sum as its reward. If a limit of the kit ends the rollout
  earlier, the reward is undefined and the rollout fails.
- An environment that cannot be played is rejected when the app is declared, with the reason.
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

    If the environment cannot be played, freezing the app that declares the class raises DeclarationError.

    Args:
        module: The name that verifiers uses for the installed package, such as "my-env" or "owner/my-env". The package
            must have `load_environment` or export a Taskset.
        sample: `fn(rng) -> text` for the policy `random`, or a mapping from the names of tools and "say" to functions.
        rewarded: Pass False if no function has a weight and the author's rubrics score the episode.
        **arguments: Arguments of `load_environment`, or of the taskset's config.

    Returns:
        A subclass of `VerifiersEnvironment`. Its `splits` are `train` and, if it exists, `eval`, with one
        seed for each row.

    Raises:
        Unavailable: verifiers or the module is not installed.
    """
    name = module.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if importlib.util.find_spec("verifiers") is None:
        raise Unavailable(
            "from_verifiers needs verifiers 0.3.1 or 0.4.", hint="Run: pip install 'verifiers==0.3.1' (or 0.4)"
        )
    parts = ClassParts("from_verifiers", module, sys._getframe(1))
    samples: Mapping[str, Any] = sample if isinstance(sample, Mapping) else {} if sample is None else {SAY: sample}
    try:
        base, members = _class_parts(parts, name, importlib.import_module(name), arguments, rewarded, samples)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"from_verifiers needs the module {error.name or name}, which is not installed.",
            hint="Install the package that contains it.",
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
    """Return the base class and the attributes of the class.

    A module with `load_environment` uses verifiers' first API, and a module with a Taskset the second API.
    """
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
    except Exception as error:  # the environment's code may raise any exception
        raise parts.wrong(
            f"cannot load {parts.name!r}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            "a module with load_environment or a Taskset",
            "fix the module or its arguments",
        ) from error

"""Global random state: an episode that seeds it, or draws from it, is another one beside others, or in another order."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import suppress

REMEDY = "draw from context.rng, or from a generator that reset makes of the seed"
"""What an author does about a change."""


def load() -> None:
    """Imports the generators that are installed, so that `states` has them before an environment imports them."""
    with suppress(ImportError):
        importlib.import_module("numpy.random")


def states() -> dict[str, int]:
    """A hash of the state of each global generator that is loaded, by its name: `random`, `numpy.random`.

    Compare two of one process; other threads that draw meanwhile count, so nothing else may play.
    """
    found = {"random": hash(random.getstate())}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        parts = state["state"]  # its members are those of the generator: `key` and `pos` of the default one
        known = [(name, part.tobytes() if hasattr(part, "tobytes") else part) for name, part in sorted(parts.items())]
        found["numpy.random"] = hash((*known, state["has_gauss"]))
    return found


def changed(before: dict[str, int], environment: str) -> str | None:
    """The sentence about an environment whose episode changed a global state since `before`; None when none changed.

    A generator that was loaded meanwhile has no state to compare with.
    """
    after = states()
    names = [name for name, state in before.items() if after[name] != state]
    if not names:
        return None
    return (
        f"an episode of environment {environment!r} changed the global state of {' and '.join(names)}, which all episodes "
        "of a process share, so the same seed gives another episode when others run beside it"
    )

"""Detects the use of global random state, which makes an episode depend on the other episodes in its process."""

from __future__ import annotations

import random
import sys

REMEDY = "draw from context.rng, or from a generator that reset creates from the seed"
"""The fix that the warning suggests."""


class GlobalRandomWatch:
    """Compares the states of the global generators with their states at this object's creation.

    Draws in other threads also count, so run only one episode between the creation and the comparison.
    """

    def __init__(self) -> None:
        self._states = _states()
        self._modules = len(sys.modules)

    @property
    def imported(self) -> bool:
        """Whether a module was imported since this object's creation. Its import may have drawn, so `changed` returns None."""
        return len(sys.modules) != self._modules

    def changed(self, environment: str) -> str | None:
        """Return a warning, without a full stop, if the environment's episode changed a global state.

        Returns None if no state changed, or if a module was imported.
        """
        after = _states()
        names = [name for name, state in self._states.items() if after[name] != state]
        if not names or self.imported:
            return None
        return (
            f"an episode of environment {environment!r} changed the global state of {' and '.join(names)}, which all "
            "episodes in a process share, so other episodes in the process can change the outcome of a seed"
        )


def draw() -> None:
    """Draw from each loaded global generator.

    Call this before you create a GlobalRandomWatch. Otherwise, an episode that seeds a generator with the seed that the
    generator already had would not change the state.
    """
    random.random()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.random()


def _states() -> dict[str, int]:
    """Return a hash of the state of each loaded global generator, under the names `random` and `numpy.random`."""
    found = {"random": hash(random.getstate())}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        parts = state["state"]  # the keys depend on the generator: `key` and `pos` for the default generator
        known = [(name, part.tobytes() if hasattr(part, "tobytes") else part) for name, part in sorted(parts.items())]
        found["numpy.random"] = hash((*known, state["has_gauss"]))
    return found

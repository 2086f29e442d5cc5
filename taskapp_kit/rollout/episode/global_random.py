"""Detects use of global random state, which makes an episode depend on others in the process and on their order."""

from __future__ import annotations

import random
import sys

REMEDY = "draw from context.rng, or from a generator that reset creates from the seed"
"""The fix that the warning proposes."""


class GlobalRandomWatch:
    """Compares the global generators' states with those at its creation.

    Draws of other threads also count, so only one episode may run between the two.
    """

    def __init__(self) -> None:
        self._states = _states()
        self._modules = len(sys.modules)

    @property
    def imported(self) -> bool:
        """Return whether a module was imported since. Some packages draw on import, so `changed` is then None."""
        return len(sys.modules) != self._modules

    def changed(self, environment: str) -> str | None:
        """Return the sentence, without full stop, about an environment whose episode changed a state; None if none did."""
        after = _states()
        names = [name for name, state in self._states.items() if after[name] != state]
        if not names or self.imported:
            return None
        return (
            f"an episode of environment {environment!r} changed the global state of {' and '.join(names)}, which all "
            "episodes in a process share, so other episodes in the process can change the outcome of a seed"
        )


def draw() -> None:
    """Draw from each loaded global generator: an episode that seeds one as the last episode did is then a change."""
    random.random()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.random()


def _states() -> dict[str, int]:
    """Return a hash of the state of each loaded global generator by name: `random`, `numpy.random`."""
    found = {"random": hash(random.getstate())}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        parts = state["state"]  # the members depend on the generator: `key` and `pos` for the default one
        known = [(name, part.tobytes() if hasattr(part, "tobytes") else part) for name, part in sorted(parts.items())]
        found["numpy.random"] = hash((*known, state["has_gauss"]))
    return found

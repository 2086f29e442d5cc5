"""Global random state: an episode that seeds it, or draws from it, is another one beside others, or in another order."""

from __future__ import annotations

import random
import sys

REMEDY = "draw from context.rng, or from a generator that reset makes of the seed"
"""What an author does about a change."""


class GlobalRandomWatch:
    """Compares the global generators' states with those when it was made.

    Draws of other threads count, too: between the two nothing but one episode may be played.
    """

    def __init__(self) -> None:
        self._states = _states()
        self._modules = len(sys.modules)

    @property
    def imported(self) -> bool:
        """Whether a module was imported since. Some packages draw when they are imported, so `changed` is None then."""
        return len(sys.modules) != self._modules

    def changed(self, environment: str) -> str | None:
        """The sentence, without its full stop, about an environment whose episode changed a state; None when none did."""
        after = _states()
        names = [name for name, state in self._states.items() if after[name] != state]
        if not names or self.imported:
            return None
        return (
            f"an episode of environment {environment!r} changed the global state of {' and '.join(names)}, which all "
            "episodes of a process share, so the same seed gives another episode when others run beside it"
        )


def draw() -> None:
    """Draws from each global generator that is loaded: an episode that seeds one as the last episode did is a change then."""
    random.random()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.random()


def _states() -> dict[str, int]:
    """A hash of the state of each global generator that is loaded, by its name: `random`, `numpy.random`."""
    found = {"random": hash(random.getstate())}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        parts = state["state"]  # its members are those of the generator: `key` and `pos` of the default one
        known = [(name, part.tobytes() if hasattr(part, "tobytes") else part) for name, part in sorted(parts.items())]
        found["numpy.random"] = hash((*known, state["has_gauss"]))
    return found

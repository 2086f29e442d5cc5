"""What a machine may lack, and the skips of tests that need it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from taskapp_kit.errors import SandboxTooWeak
from taskapp_kit.sandbox import capabilities

MATH = "needs taskapp-kit[math]; one of its packages needs a C compiler (Debian: apt-get install gcc python3-dev)"


needs_sympy = pytest.mark.skipif(find_spec("sympy") is None, reason=MATH)
REASONING_GYM = find_spec("reasoning_gym") is not None
"""Whether it is installed. It is not imported here, which takes two seconds of each process."""


def skip_if_it_cannot_play(app: str) -> None:
    """Skip the running test where a bundled app cannot play: `math` without its extra, those that run code without a sandbox."""
    if app == "math":
        pytest.importorskip("sympy", reason=MATH)
        pytest.importorskip("reasoning_gym", reason=MATH)
    if app in ("python_sandbox", "fix_the_function"):
        try:
            confined = capabilities().safe
        except SandboxTooWeak:
            confined = False
        if not confined:
            pytest.skip("needs bubblewrap (Debian: apt-get install bubblewrap), or root")

"""What does not change while the tests run, and what each plan of a deploy reads anew: half a second of processor time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata

import pytest

from taskapp_kit.deploy.packaging.wheel import kit_wheel


@contextmanager
def installed_packages_read_once() -> Iterator[None]:
    """Plans in this process read the installed packages and pack the kit's wheel once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metadata, "packages_distributions", cache(metadata.packages_distributions))
        patched.setattr("taskapp_kit.deploy.modal.plan.kit_wheel", cache(kit_wheel))
        yield

"""The fixtures of the sandbox's tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.boxes import LEVELS, WarmLevel

NONE = pytest.param(0, marks=pytest.mark.skip("needs bubblewrap (Debian: apt-get install bubblewrap), or root"))


@pytest.fixture(scope="session", autouse=True)
def boxes_of_others_are_elsewhere() -> Iterator[None]:
    """A place for the folders of our boxes alone, which tests count: others on this machine may have boxes, too."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    place = Path(tempfile.mkdtemp(prefix="taskapp-tests-"))
    place.chmod(0o711)  # as the folders in it: boxes with a user id of their own pass through
    tempfile.tempdir = os.environ["TMPDIR"] = str(place)
    yield
    tempfile.tempdir = before[0]
    if before[1] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[1]
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(
    params=[
        *LEVELS[:1],
        *map(WarmLevel, LEVELS[:1]),
        *(pytest.param(kind(level), marks=pytest.mark.ci) for level in LEVELS[1:] for kind in (int, WarmLevel)),
    ]
    or [NONE],
    ids=lambda level: f"level{level}{'-warm' * isinstance(level, WarmLevel)}",
)
def level(request: pytest.FixtureRequest) -> int:
    """Each level that confines untrusted code on this machine, in boxes that are started early, too; CI alone runs all."""
    return request.param  # type: ignore[no-any-return]

"""Tests marked `train` are skipped where the train extra is missing; a module whose `pytestmark` has it isn't imported.

They compute on one thread, so that results don't follow from the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "transformers", "peft", "matplotlib", "tensorboardX") if find_spec(name) is None]
REASON = "needs the train extra: make test-train"


class SkippedModule(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip(REASON, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    marked = re.search(r"^pytestmark = .*pytest\.mark\.train\b", module_path.read_text(encoding="utf-8"), re.MULTILINE)
    return SkippedModule.from_parent(parent, path=module_path) if MISSING and marked else None


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("train") is None:
        yield
        return
    if MISSING:
        pytest.skip(REASON)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def anyio_backend() -> str:
    """The kit's own code runs on asyncio's loop."""
    return "asyncio"

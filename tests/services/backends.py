"""The two backends of services, as parameters of tests; Ray's need the extra `ray`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from taskapp_kit.services import Actor

BACKENDS = [
    pytest.param("local", marks=pytest.mark.process),
    pytest.param(
        "ray",
        marks=[
            pytest.mark.process,
            pytest.mark.server,
            pytest.mark.interop,
            pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray: pip install 'taskapp-kit[ray]'"),
        ],
    ),
]
both = pytest.mark.parametrize("backend", BACKENDS)


def of(cls: type[Actor], backend: Any, replicas: int = 1, **options: Any) -> Any:
    return cls.options(num_replicas=replicas, backend=backend, **options)

"""The two backends of services, as parameters of tests; Ray's need the extra `ray`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

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

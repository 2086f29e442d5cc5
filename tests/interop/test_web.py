"""Unchanged clients of others play tasks of `web` in a real Chromium, as in `test_matrix.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from environments.web import chromium
from tests.environments.web import needs
from tests.interop.matrix import Matrix, served
from tests.interop.matrix_clients import MCP_2, OPENENV_CORE, Client

pytestmark = [
    pytest.mark.interop,
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.server,
    pytest.mark.skipif(not needs.is_met(), reason=needs.SENTENCE),
]
AT_ONCE = 4
"""As many episodes as one browser lets act at one moment."""


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with served("web", **{chromium.VARIABLE: str(chromium.find())}) as running:
        yield running


@pytest.mark.parametrize("client", [OPENENV_CORE, MCP_2], ids=lambda client: client.name)
def test_other_clients_act_in_a_browser(matrix: Matrix, client: Client) -> None:
    """To the end and its reward, with an element that is not there, with a wrong key, and several at once."""
    seen = matrix.run(replace(client, at_once=AT_ONCE), ["web"], failures=False)
    assert {cell: problem for cell, problem in seen.cells.items() if problem is not None} == {}
    (played,) = seen.items["web/play"]
    assert played["rewards"][-1] == 1.0
    assert len(played["observations"]) > 2

"""Each client of the matrix drives adder, Crafter, math and the failing environments of a served app.

`make interop` runs all of it, prints the matrix and writes docs/connect/clients.md (TASKAPP_WRITE_INTEROP_PAGE). Without the
exhaustive repetitions, the light clients play adder and the failing environments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.interop.matrix import Matrix, served
from tests.interop.matrix_clients import CLIENTS, ENVIRONMENTS, Client
from tests.interop.matrix_page import PAGE, table_of, written

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]
WRITE = "TASKAPP_WRITE_INTEROP_PAGE"
Results = dict[str, dict[tuple[str, str], str | None]]

RUNS = [
    pytest.param(client, environments, id=f"{client.name}-{'-'.join(environments)}", marks=marks)
    for client in CLIENTS
    for environments, marks in (
        (ENVIRONMENTS[:1], () if client.light else (pytest.mark.exhaustive,)),
        (ENVIRONMENTS[1:], (pytest.mark.exhaustive,)),
    )
]


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """Collect the cells, print the matrix, and write the page if every cell is as expected."""
    found: Results = {}
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print("\n" + table_of(found))
    whole = all(
        {environment for environment, _ in found.get(client.name, ())} >= {*ENVIRONMENTS, "failures"}
        for client in CLIENTS
    )
    right = not any(problem for cells in found.values() for problem in cells.values())
    if os.environ.get(WRITE) and whole and right:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


@pytest.mark.parametrize(("client", "environments"), RUNS)
def test_every_cell(matrix: Matrix, results: Results, client: Client, environments: tuple[str, ...]) -> None:
    if client.needs is not None:
        pytest.importorskip(client.needs, reason=f"needs {client.needs}: make test-train")
    failures = ("crafter" if client.slow_failures else "adder") in environments
    seen = matrix.run(client, environments, failures=failures)
    results.setdefault(client.name, {}).update(seen.cells)
    assert {cell: problem for cell, problem in seen.cells.items() if problem is not None} == {}
    for call, environment in client.calls:
        if f"{environment}/{call}" in seen.items:
            client.checks[call](seen.more(environment, call))

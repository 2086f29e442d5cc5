"""docs/connect/clients.md shows the clients and columns of the matrix in tests/interop, which `make interop` runs."""

from __future__ import annotations

from tests.interop.matrix_clients import AT_ONCE, CLIENTS, COLUMNS, FAILURES
from tests.interop.matrix_page import PAGE, written
from tests.interop.peers import REQUIREMENTS

PROGRAMS = PAGE.parents[2] / "tests" / "interop" / "clients"


def test_the_page_shows_the_clients_and_columns_of_the_matrix() -> None:
    page = PAGE.read_text("utf-8")
    assert written(page) == page, "run: make interop"


def test_every_client_has_a_program_and_pins_and_explains_what_it_cannot() -> None:
    for client in CLIENTS:
        assert (PROGRAMS / client.program).is_file(), client.name
        assert not client.peer or (REQUIREMENTS / f"{client.peer}.txt").is_file(), client.name
        assert {*client.cannot, *client.notes} <= {*COLUMNS, *FAILURES}
        assert all(sentence.endswith(".") for sentence in (*client.cannot.values(), *client.notes.values()))
        assert client.at_once == 20 or AT_ONCE in client.notes, "another number is explained"

"""docs/connect/clients.md: what stands between its markers is made of the clients and columns of the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.matrix_clients import CLIENTS, COLUMNS, ENVIRONMENTS, FAILURES, Client

PAGE = Path(__file__).parents[2] / "docs/connect/clients.md"
BEGIN, END = "<!-- matrix: written by make interop -->", "<!-- end of matrix -->"
WAYS = {"wire": "On the wire", "adapter": "Through adapters"}
Results = Mapping[str, Mapping[tuple[str, str], str | None]]


def table_of(results: Results) -> str:
    """Return the matrix of a run as text: `yes`, `NO`, `-` for a cell that cannot be, and nothing for one that did not run."""

    def word(client: Client, row: str, column: str) -> str:
        if column in client.cannot:
            return "-"
        if (row, column) not in results[client.name]:
            return ""
        return "yes" if results[client.name][row, column] is None else "NO"

    parts = []
    for rows, columns in ((ENVIRONMENTS, COLUMNS), (("failures",), tuple(FAILURES))):
        table = [("client", "", *columns)]
        for client in CLIENTS:
            if client.name in results:
                table += [(client.name, row, *(word(client, row, column) for column in columns)) for row in rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        parts.append("\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in table))
    return "\n\n".join(parts)


def written(page: str) -> str:
    """Return the page with what stands between its markers made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def tables() -> str:
    """Return the tables and their footnotes."""
    notes: dict[str, int] = {}

    def cell(client: Client, column: str) -> str:
        sentence = client.cannot.get(column) or client.notes.get(column)
        if sentence is None:
            return "yes"
        number = notes.setdefault(sentence, len(notes) + 1)
        return f"{'–' if column in client.cannot else 'yes'} [{number}]"

    parts = []
    for way, title in WAYS.items():
        rows = [
            [
                client.name if environment == ENVIRONMENTS[0] else "",
                environment,
                *(cell(client, name) for name in COLUMNS),
            ]
            for client in CLIENTS
            if client.way == way
            for environment in ENVIRONMENTS
        ]
        parts += [f"## {title}", _table(("client", "environment", *COLUMNS), rows)]
    failing = [(client.name, *(_failure(client, name) for name in FAILURES)) for client in CLIENTS]
    words: dict[tuple[str, str], list[str]] = {}
    for client in CLIENTS:
        words.setdefault((client.shows, client.masks), []).append(client.name)
    telling = [(", ".join(names), shows, masks) for (shows, masks), names in words.items()]
    parts += [
        "## Failures",
        "What a client raises or reports, and the boundary that it names. None of them has a reward.",
        _table(("client", *FAILURES), failing),
        _table(("client", "what its user's code sees", "what its trainer makes of it"), telling),
    ]
    parts.insert(4, "\n".join(f"- [{number}] {sentence}" for sentence, number in notes.items()))
    return "\n\n".join(parts)


def _failure(client: Client, name: str) -> str:
    boundary = FAILURES[name].boundary
    if name in client.cannot:
        return "–"
    if boundary is None:
        return "truncated, scored"
    error = client.error if isinstance(client.error, str) else client.error[name]
    return f"`{error}`, {boundary}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

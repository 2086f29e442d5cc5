"""The committed hashes, and how what was played differs from them.

`hashes.txt`: a line `# SERVER.ENVIRONMENT.POLICY`, below it a line for each rollout: its number, then a hash for each of
`canonical.KINDS`, `-` where there is none.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

import canonical
from plan import ROOT, SERVERS, Server, matches
from play import Texts, missing, play

HASHES = Path(__file__).parent / "hashes.txt"
Hashes = dict[str, tuple[str, ...]]
"""Name to one hash for each kind."""


def play_all(
    scratch: Path, only: str = "*", *, servers: int, share: int | None, concurrency: int, workers: int = 0
) -> tuple[dict[str, Texts], list[str]]:
    """Texts by name of the rollouts that `only` matches, and why servers were left out."""
    wanted = [server for server in SERVERS if _may_match(server, only)]
    skipped = [reason for reason in map(missing, wanted) if reason is not None]
    playable = [server for server in wanted if missing(server) is None]
    played: dict[str, Texts] = {}
    with ThreadPoolExecutor(servers) as pool:
        for texts in pool.map(
            lambda server: play(server, scratch, only, share=share, concurrency=concurrency, workers=workers), playable
        ):
            played |= texts
    return played, skipped


def _may_match(server: Server, only: str) -> bool:
    return any(fnmatchcase(server.name, pattern.partition(".")[0]) for pattern in only.split(","))


def hashes_of(played: dict[str, Texts]) -> Hashes:
    """A hash for each text."""
    return {
        name: tuple(canonical.short_hash(texts[kind]) if kind in texts else "-" for kind in canonical.KINDS)
        for name, texts in played.items()
    }


def committed() -> Hashes:
    """What `hashes.txt` has."""
    found: Hashes = {}
    group = ""
    for line in HASHES.read_text("utf-8").splitlines() if HASHES.exists() else ():
        first, *rest = line.split()
        if first == "#":
            group = rest[0]
        else:
            found[f"{group}.{first}"] = tuple(rest)
    return found


def update(played: dict[str, Texts], *, whole: bool) -> None:
    """Writes the hashes of what was played. whole: it was everything, so that others are forgotten."""
    hashes = ({} if whole else committed()) | hashes_of(played)
    lines = []
    for group, names in groupby(sorted(hashes, key=_order), key=lambda name: name.rpartition(".")[0]):
        lines += [f"# {group}", *(f"{name.rpartition('.')[2]} {' '.join(hashes[name])}" for name in names)]
    HASHES.write_text("\n".join(lines) + "\n", "utf-8")


def _order(name: str) -> tuple[str, int]:
    group, _, number = name.rpartition(".")
    return group, int(number)


def differences(played: dict[str, Texts], *, whole: bool, only: str = "*", skipped: bool = False) -> list[str]:
    """A line for each rollout that differs: its name, and which kinds. whole: what is committed and was not played counts."""
    known, now = committed(), hashes_of(played)
    problems = []
    for name, hashes in now.items():
        if name not in known:
            problems.append(f"{name}: it is not in hashes.txt")
        elif hashes != known[name]:
            pairs = list(zip(canonical.KINDS, known[name], hashes, strict=True))
            changed = [kind for kind, before, after in pairs if before != after]
            same = [kind for kind, before, after in pairs if before == after != "-"]
            problems.append(f"{name}: {', '.join(changed)} changed; the same: {', '.join(same) or 'nothing'}")
    if whole:
        servers = {name.split(".")[0] for name in now} if skipped else {server.name for server in SERVERS}
        gone = [name for name in known if name not in now and name.split(".")[0] in servers and matches(name, only)]
        problems += [f"{name}: it is in hashes.txt and was not played" for name in gone]
    return problems


def how_to_see(problems: list[str]) -> str:
    """The commands that show the first difference."""
    name = problems[0].split(":")[0]
    python = sys.executable
    return (
        f"Names are SERVER.ENVIRONMENT.POLICY.NUMBER. To see what changed since COMMIT, for the first of them:\n"
        f"  git worktree add /tmp/before COMMIT\n"
        f"  (cd /tmp/before && PYTHONPATH=/tmp/before {python} tests/golden --only '{name}' --write /tmp/golden-before)\n"
        f"  (cd {ROOT} && {python} tests/golden --only '{name}' --write /tmp/golden-after)\n"
        f"  diff -r /tmp/golden-before /tmp/golden-after\n"
        f"Where the change is meant: {python} tests/golden --update, and say in the commit what changed and why."
    )


def write_texts(folder: Path, played: dict[str, Texts]) -> None:
    """A file for each rollout, each member of JSON on a line of its own."""
    for name, texts in played.items():
        server, environment, rollout = name.split(".", 2)
        file = folder / f"{server}.{environment}" / f"{rollout}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        parts = [f"== {kind}\n{canonical.readable(texts[kind])}\n" for kind in canonical.KINDS if kind in texts]
        file.write_text("\n".join(parts), "utf-8", errors="surrogatepass")

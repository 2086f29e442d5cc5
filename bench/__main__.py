"""`make bench`, or `python -m bench [PART…]`: measure and write docs/operate/performance.md (with parts named: print only)."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import (
    coder_programs,
    crafter_episodes,
    fault_run,
    gateway_calls,
    miniwob_episodes,
    model_turns,
    openenv_sessions,
    ors_calls,
    service_calls,
    startup,
    training_steps,
    trivial_rollout,
    ways_of_asking,
    web_episodes,
    workers,
)
from bench.processes import ROOT, BenchFailed
from bench.tables import Table

PARTS: dict[str, Callable[[int, Path], Table]] = {
    "crafter": crafter_episodes.measure,
    "trivial": trivial_rollout.measure,
    "ways": ways_of_asking.measure,
    "workers": workers.measure,
    "models": model_turns.measure,
    "faults": fault_run.measure,
    "startup": startup.measure,
    "sessions": openenv_sessions.measure,
    "ors": ors_calls.measure,
    "gateway": gateway_calls.measure,
    "training": training_steps.measure,
    "web": web_episodes.measure,
    "miniwob": miniwob_episodes.measure,
    "services": service_calls.measure,
    "coder": coder_programs.measure,
}
REPETITIONS = {
    "crafter": 3,
    "trivial": 5,
    "ways": 5,
    "workers": 3,
    "models": 2,
    "faults": 1,
    "startup": 5,
    "sessions": 5,
    "ors": 5,
    "gateway": 5,
    "training": 5,
    "web": 3,
    "miniwob": 3,
    "services": 3,
    "coder": 1,
}
PAGE = ROOT / "docs/operate/performance.md"
INTRODUCTION = """# Performance

Written by `make bench`; do not edit. Every comparison is a ratio from one run on one machine, in which the programs
were measured alternately. Absolute figures depend on the machine. Each section ends with its budgets and whether they
were met. No test asserts these figures. "Median (range)" is the median of the repetitions, with the lowest and the
highest value. CPU is the server process's CPU time; the load generator runs on the same machine and is not counted.

Machine: {cores} cores, {architecture}, {system}, Python {python}; load average before the run {load:.1f}.
"""


def machine(load_average: float) -> str:
    """The page's introduction, without the machine's name."""
    return INTRODUCTION.format(
        cores=os.cpu_count(),
        architecture=platform.machine(),
        system=platform.system(),
        python=platform.python_version(),
        load=load_average,
    )


def main() -> int:
    """Returns exit status 1 when a part could not be measured; the page is then left unchanged."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the budgets, beside peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these, printed: {', '.join(PARTS)}")
    parser.add_argument("--repetitions", type=int, help="instead of each part's own number")
    parser.add_argument(
        "--seconds", type=float, default=fault_run.SECONDS, help="of `faults`, at least 10 (%(default)s)"
    )
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    parts = {**PARTS, "faults": partial(fault_run.measure, seconds=max(10.0, given.seconds))}
    page = [machine(os.getloadavg()[0])]
    with tempfile.TemporaryDirectory(prefix="taskapp-bench-") as scratch:
        for part in given.parts or PARTS:
            if part == "training" and not given.parts and training_steps.missing():
                print("bench training: left out, for the train extra or trl is not installed", file=sys.stderr)
                continue
            if part in ("web", "miniwob") and (lacking := web_episodes.missing()):
                print(f"bench {part}: left out, for {lacking}", file=sys.stderr)
                continue
            begun = time.monotonic()
            try:
                table = parts[part](given.repetitions or REPETITIONS[part], Path(scratch))
            except BenchFailed as error:
                print(f"bench {part}: {error}", file=sys.stderr)
                return 1
            print(f"bench {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
            page.append(table.markdown())
    text = "\n".join(page)
    if given.parts:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"Written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

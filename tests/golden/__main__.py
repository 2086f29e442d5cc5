"""The golden comparison: 200 rollouts of every environment, compared byte by byte with committed hashes.

make golden                                 compare (GOLDEN="…" gives options)
python tests/golden --only 'adder.*'        a part of it, by the rollouts' names
python tests/golden --write DIR             write the whole texts, a file for each rollout
python tests/golden --update                take what is now as what is to be

To see a difference: write both trees, each with its own code, and compare them.

    git worktree add /tmp/before COMMIT
    (cd /tmp/before && PYTHONPATH=/tmp/before python tests/golden --only NAME --write /tmp/a)
    python tests/golden --only NAME --write /tmp/b
    diff -r /tmp/a /tmp/b

Only documented commands, imports and tables are used, so that packages may move. To play a commit that has not this
folder, copy it there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import compare
from plan import ROOT

import taskapp_kit


def main() -> int:
    parser = argparse.ArgumentParser("python tests/golden", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", default="*", metavar="GLOBS", help="rollouts by their names, SERVER.ENVIRONMENT.POLICY.N"
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the whole texts there")
    parser.add_argument("--update", action="store_true", help="write the hashes of what was played, and do not compare")
    parser.add_argument("--share", type=int, metavar="N", help="about N of each environment and policy")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests at once, 16 when absent")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that play, as in taskapp serve")
    parser.add_argument("--servers", type=int, default=2, metavar="N", help="servers at once, 2 when absent")
    given = parser.parse_args()
    code = Path(taskapp_kit.__file__).resolve()
    if not code.is_relative_to(ROOT):  # as in a worktree that has no environment of its own
        parser.error(f"taskapp_kit is {code.parent}, not of {ROOT}; set PYTHONPATH={ROOT}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        played, skipped = compare.play_all(
            Path(scratch), given.only, servers=given.servers, share=given.share,
            concurrency=given.concurrency, workers=given.workers,
        )  # fmt: skip
    for reason in skipped:
        print(f"skipped: {reason}")
    if given.write is not None:
        compare.write_texts(given.write, played)
        print(f"written: {given.write}")
    if given.update:
        compare.update(played, whole=given.only == "*" and given.share is None and not skipped)
        problems = []
    else:
        problems = compare.differences(
            played, whole=given.share is None and not given.workers, only=given.only, skipped=bool(skipped)
        )
    for problem in problems[:40]:
        print(problem, file=sys.stderr)
    if problems:
        print(compare.how_to_see(problems), file=sys.stderr)
    print(f"{len(played)} answers, {len(problems)} differ, {time.monotonic() - begun:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

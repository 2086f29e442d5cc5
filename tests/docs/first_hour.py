#!/usr/bin/env python3
"""Paste every console block of the pages into one shell, in page order, as a newcomer would.

usage: first_hour.py [--suite-options OPTIONS] [PAGE ...]     (in a fresh clone; default: README.md and the tutorial)

Blocks with a title are saved in the shell's working directory first. A server runs in the background until the next one of
its kind starts, where a person would open a second terminal. Nothing is added to PATH. Fails if a command fails, if it
doesn't print what the page shows, or if it prints a number that no reward can be. Needs only Python, bash, make and git.

OPTIONS: pytest's options for `make test` alone.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from pages import KEY_PLACEHOLDER, MINTED_KEY, blocks, commands, first_missing

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/start/tutorial.md")
SERVERS = ("taskapp serve", "taskapp mock-model", "uvicorn")
END = "===end-of-command==="
SECONDS, SECONDS_OF_MAKE = 120.0, 1800.0
"""How long a command may take."""
IMPOSSIBLE = re.compile(r"(?<![\w.])(?:nan|-?inf|[-\u2212]\d+\.\d+)(?![\w.])", re.I)
"""All rewards on these pages are between 0 and 1, and so are their means and intervals."""


class Shell:
    """One bash. A server that it starts writes to a file."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.servers: dict[str, int] = {}
        self.key = ""

    def run(self, command: str, *, echo: bool = True) -> tuple[int, str]:
        """Return the exit status, and what was printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n_status=$?; echo; echo {END} $_status\n")
        self.process.stdin.flush()
        printed = []
        deadline = time.monotonic() + (SECONDS_OF_MAKE if " make " in f" {command}" else SECONDS)
        for line in self.process.stdout:
            if line.startswith(END):
                return int(line.split()[1]), "".join(printed)
            printed.append(line)
            if echo:
                print(line, end="", flush=True)
            if time.monotonic() > deadline:
                break
        raise SystemExit(f"first_hour.py: `{command}` did not end in time")

    def directory(self) -> Path:
        return Path(self.run("pwd", echo=False)[1].strip())

    def serve(self, kind: str, command: str) -> str:
        """Start a server, and return what it printed once it waits for requests."""
        self.stop(kind)
        log = self.directory() / f"server-{time.monotonic_ns()}.log"
        log.touch()
        _, printed = self.run(f"{command} >{shlex.quote(str(log))} 2>&1 </dev/null & echo pid $!; disown", echo=False)
        self.servers[kind] = int(printed.split("pid ")[1].split()[0])
        deadline = time.monotonic() + 60
        while not re.search(r"Ctrl-C|CTRL\+C", log.read_text()) and time.monotonic() < deadline:
            os.kill(self.servers[kind], 0)  # it has ended: ProcessLookupError
            time.sleep(0.2)
        started = log.read_text()
        if minted := MINTED_KEY.search(started):
            self.key = minted[1]
        return started

    def stop(self, kind: str) -> None:
        if (server := self.servers.pop(kind, None)) is not None:
            os.kill(server, 15)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    os.kill(server, 0)
                except ProcessLookupError:
                    return
                time.sleep(0.1)
            raise SystemExit(f"first_hour.py: the server of `{kind}` did not stop")

    def close(self) -> None:
        for kind in list(self.servers):
            self.stop(kind)
        self.process.kill()


def paste(page: Path, shell: Shell, suite_options: str) -> list[str]:
    """Paste a page; return what went wrong."""
    problems = []
    for block in blocks(page):
        if block.title:
            block.save(shell.directory())
        if block.language != "console":
            continue
        for command, expected in commands(block.text):
            print(f"\n{block}: $ {command}", flush=True)
            kind = next((kind for kind in SERVERS if command.startswith(kind)), None)
            typed = command.replace(KEY_PLACEHOLDER, shell.key)
            if command.startswith("make test") and suite_options:
                typed = f"PYTEST_ADDOPTS={shlex.quote(suite_options)} {typed}"
            status, printed = (0, shell.serve(kind, typed)) if kind else shell.run(typed)
            if status != 0:
                problems.append(f"{block}: `{command}` ended with {status}")
            wanted = [line.replace(KEY_PLACEHOLDER, shell.key) for line in expected]
            if missing := first_missing(wanted, printed):
                problems.append(f"{block}: `{command}` did not print {missing!r}")
            if not command.startswith("make") and (number := IMPOSSIBLE.search(printed)):
                problems.append(f"{block}: `{command}` printed {number[0]!r}, which no reward can be")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--suite-options", default="")
    options = parser.parse_args()
    begun = time.monotonic()
    shell = Shell()
    problems = []
    try:
        for page in options.pages:
            problems += paste(ROOT / page, shell, options.suite_options)
    finally:
        shell.close()
    for problem in problems:
        print(f"first_hour.py: {problem}", file=sys.stderr)
    print(f"\nfirst_hour.py: {len(options.pages)} pages, {len(problems)} problems, {time.monotonic() - begun:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

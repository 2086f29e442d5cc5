"""Virtual environments for peers: pinned packages of others, separate from ours and from one another.

A peer is a file `requirements/<peer>.txt`, or `<peer>.json`, a package.json of npm packages. Its environment is built once per
content of that file and Python version, and then reused:

    python tests/interop/peers.py synth-ai-0.3.9     # builds if necessary; the last line is the path of its Python
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
CACHE_VARIABLE = "TASKAPP_PEERS_CACHE"
MARKER = "peer.json"
BUILD_TIMEOUT_SECONDS = 1800.0


class PeerUnavailable(RuntimeError):
    """A peer's environment could not be built. The message names it, the failed command, and what to do."""


@dataclass(frozen=True)
class Peer:
    """A peer's finished environment.

    python: does not exist in an environment of npm packages, whose programs are in `bin`.
    """

    name: str
    python: Path


def cache_directory() -> Path:
    """Return the directory of the environments: `TASKAPP_PEERS_CACHE`, or in the user's cache directory."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "taskapp-kit" / "peers"


def environment_directory(name: str, requirements: Path) -> Path:
    """Return `<cache>/<peer>-<hash of pins and Python>`. A changed pin or interpreter is another environment."""
    content = requirements.read_bytes() + b"\0" + platform.python_version().encode()
    return cache_directory() / f"{name}-{hashlib.sha256(content).hexdigest()[:20]}"


def peer(name: str) -> Peer:
    """Return the environment of peer `name`, which is built if necessary. Raises PeerUnavailable."""
    requirements_of = {path.stem: path for path in sorted(REQUIREMENTS.iterdir()) if path.suffix in (".txt", ".json")}
    if name not in requirements_of:
        names = ", ".join(requirements_of)
        raise PeerUnavailable(
            f"The peer {name!r} does not exist; the peers are {names}. Add requirements/{name}.txt with its pins."
        )
    directory = environment_directory(name, requirements_of[name])
    if not (directory / MARKER).is_file():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with directory.with_name(directory.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one builder at a time; the lock ends with its process
            if not (directory / MARKER).is_file():
                _build(requirements_of[name], directory)
    return Peer(name, _python_of(directory))


def _python_of(directory: Path) -> Path:
    return directory / "bin" / "python"


def _build(requirements: Path, directory: Path) -> None:
    """Build in place and mark the end. Scripts of a virtual environment contain its path, so it cannot be moved.

    The result of an interrupted build has no marker and is removed here. uv is tried first (seconds). If it is absent or fails
    (it does not read pip's configuration, so it may use another registry), pip is used.
    """
    complaints: list[str] = []
    for tool, commands in _recipes(requirements, directory):
        shutil.rmtree(directory, ignore_errors=True)
        complaint = _run_all(commands)
        if complaint is None:
            (directory / MARKER).write_text(f'{{"built_with": "{tool}"}}')
            return
        complaints.append(f"with {tool}: {complaint}")
    shutil.rmtree(directory, ignore_errors=True)
    raise PeerUnavailable(
        f"The environment of {requirements.name} (Python {platform.python_version()}) could not be built "
        f"{'; '.join(complaints)}. The pins need a package registry, as pip is configured on this machine; "
        f"build it where there is one, and point {CACHE_VARIABLE} at the result."
    )


def _recipes(requirements: Path, directory: Path) -> Iterator[tuple[str, list[list[str]]]]:
    if requirements.suffix == ".json":
        yield from _npm_recipe(requirements, directory)
        return
    python = str(_python_of(directory))
    if (uv := _uv()) is not None:
        yield (
            "uv",
            [
                [uv, "venv", "--quiet", "--python", sys.executable, str(directory)],
                [uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "-r", str(requirements)],
            ],
        )
    yield (
        "pip",
        [
            [sys.executable, "-m", "venv", str(directory)],
            [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "-r", str(requirements)],
        ],
    )


def _npm_recipe(requirements: Path, directory: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the commands for npm. The package.json names every package, so no lock file with registry URLs is needed."""
    if (npm := shutil.which("npm")) is None:
        raise PeerUnavailable(f"npm is not installed: it builds the environment of {requirements.stem}.")
    install = [npm, "install", "--prefix", str(directory), "--no-package-lock", "--no-audit", "--no-fund"]
    yield (
        "npm",
        [
            ["mkdir", "-p", str(directory)],
            ["cp", str(requirements), str(directory / "package.json")],
            install,
            ["ln", "-s", "node_modules/.bin", str(directory / "bin")],
        ],
    )


def _uv() -> str | None:
    """Return the uv program: on the path, or the `uv` package next to our Python."""
    own = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(own) if importlib.util.find_spec("uv") is not None and own.is_file() else None)


def _run_all(commands: list[list[str]]) -> str | None:
    """Return None if every command succeeded, or the end of the failing command's output."""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=BUILD_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
    return None


def main() -> int:
    """Build or find a peer, and print its Python's path as the last line."""
    parser = argparse.ArgumentParser(description="Build or find the virtual environment of a peer.")
    parser.add_argument("peer", help="a file of requirements/, without .txt")
    try:
        print(peer(parser.parse_args().peer).python)
    except PeerUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

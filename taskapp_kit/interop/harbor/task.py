"""Parses a task directory in Harbor's format: `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`.

The format is schema 1.0 and 1.1 at harborframework.com/docs/tasks, read on 2026-11-23. The base image of a Dockerfile
is not used: a task uses the programs of this machine. All other requirements are either set up in the sandbox or
rejected with a reason. Tasks are untrusted: each file must be a regular file of limited size, and its real path must be
in the task's directory.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from taskapp_kit.errors import KitError
from taskapp_kit.sandbox.layers import TAKEN
from taskapp_kit.system.foreign_files import ForeignFileRefused, files_inside, inside, read_inside

MB = 2**20
WORKDIR = "/app"
"""The default working directory."""
TESTS, LOGS = "/tests", "/logs"
VERIFIER_SECONDS = 600.0
"""Harbor's default."""
MEMORY_MB = 2048
MAX_FILES = 10_000
MAX_BYTES = 256 * MB
"""The limit on the total size of a task's files."""
MAX_TEXT_BYTES = 256 * 1024
"""The limit on the size of the instruction, of the test script and of the Dockerfile."""
MAX_SETTINGS_BYTES = 16 * 1024
"""The limit on the size of task.toml. The time to parse a dotted TOML key is quadratic in the number of its parts."""
MAX_INSTRUCTIONS = 200
MAX_COMPARED = 200_000
"""The limit on the number of COPY arguments times the number of files, because each argument may match each file."""
MAX_SHOWN = 200
"""How many characters of a Dockerfile instruction are quoted in a message."""
MAX_VALUE = 32 * 1024
"""The maximum length of a variable's value. It is limited because each ENV line can double a value."""
MAX_MEMORY_MB = 64 * 1024
MAX_VERIFIER_SECONDS = 6 * 3600.0

BARE_IMAGES = re.compile(r"(docker\.io/|library/)*(ubuntu|debian|alpine|busybox|python|buildpack-deps)(:[\w.-]+)?$")
"""Images that only contain an operating system and perhaps Python."""
NO_EFFECT = frozenset({"CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL"})
"""Dockerfile instructions that do not affect commands."""
INSTALLS = re.compile(
    r"(?:^|[;&|({]|\b(?:sudo|then|do|exec)\b)[ \t]*"
    r"(?:(?:python3?|python3?\.\d+) -m )?"
    r"(apt-get|apt|apk|yum|dnf|pip3?|pipx|uv|uvx|conda|mamba|npm|npx|yarn|pnpm|gem|cargo|curl|wget|git clone)\b",
    re.MULTILINE,
)
"""Commands that download something. A sandbox has no network."""


class TaskRefused(KitError):
    """A task cannot be played in a sandbox. The message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step of the Dockerfile.

    Attributes:
        line: The line number in the Dockerfile.
        command: The shell command to run.
        files: Maps the sandbox path of each copied file to the file's source.
    """

    line: int
    workdir: str
    command: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task that can be played.

    Attributes:
        files: The paths of all files, relative to `folder`.
        places: The top-level directories in the sandbox that belong to the task.
        variables: The environment variables for all commands.
        verifier_variables: Additional environment variables for the tests.
        digest: The SHA-256 of all files, in hex.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    instruction: str
    workdir: str
    places: tuple[str, ...]
    steps: tuple[BuildStep, ...]
    variables: Mapping[str, str]
    verifier_variables: Mapping[str, str]
    verifier_seconds: float
    memory_bytes: int
    difficulty: str
    tags: tuple[str, ...]
    digest: str

    @property
    def tests(self) -> dict[str, Path]:
        """A mapping from the sandbox path of each test file to the file's source."""
        return {f"/{name}": self.folder / name for name in self.files if name.startswith("tests/")}


def task_folders(path: Path) -> list[Path]:
    """Return the task directories at a path, sorted by name. Raises TaskRefused if no task is found.

    path: a task directory, or a directory that contains task directories.
    """
    if (path / "task.toml").is_file():
        return [path]
    folders = sorted(file.parent for file in path.glob("*/task.toml"))
    if not folders:
        raise TaskRefused(f"neither {path} nor a directory in it contains task.toml")
    for folder in folders:
        try:
            inside(path, f"{folder.name}/task.toml")
        except OSError as error:
            raise _unreadable(f"{folder.name}/task.toml", error) from error
    return folders


def read_task(folder: Path) -> HarborTask:
    """Read the task in a directory. Raises TaskRefused if the task is invalid or cannot be played."""
    try:
        files = files_inside(folder, MAX_FILES)
        digest = _digest(folder, files)
    except OSError as error:
        raise _unreadable(folder.name, error) from error
    settings = _settings(folder, files)
    environment, verifier, metadata = (_table(settings, name) for name in ("environment", "verifier", "metadata"))
    instruction = _text(folder, "instruction.md").strip()
    script = _text(folder, "tests/test.sh")
    if found := INSTALLS.search(script):
        raise TaskRefused(f"tests/test.sh runs {found[1]}, but a sandbox has no network")
    if not isinstance(tags := metadata.get("tags", []), list):
        raise TaskRefused(f"task.toml has metadata.tags = {tags!r}; expected a list")
    steps, variables, workdir = _dockerfile(folder, files)
    tops = {f"/{PurePosixPath(path).parts[1]}" for step in steps for path in step.files} | {_top(workdir)}
    return HarborTask(
        name=folder.name,
        folder=folder,
        files=tuple(files),
        instruction=instruction,
        workdir=workdir,
        places=tuple(sorted({*tops, TESTS, LOGS})),
        steps=steps,
        variables={**variables, **_variables(environment, "environment")},
        verifier_variables=_variables(verifier, "verifier"),
        verifier_seconds=_number(verifier, "verifier", "timeout_sec", VERIFIER_SECONDS, MAX_VERIFIER_SECONDS),
        memory_bytes=int(_number(environment, "environment", "memory_mb", MEMORY_MB, MAX_MEMORY_MB) * MB),
        difficulty=str(metadata.get("difficulty", "")),
        tags=tuple(map(str, tags)),
        digest=digest,
    )


def _settings(folder: Path, files: list[str]) -> dict[str, Any]:
    try:
        settings = tomllib.loads(_text(folder, "task.toml", MAX_SETTINGS_BYTES))
    except (ValueError, RecursionError) as error:
        raise TaskRefused(f"task.toml is not valid TOML: {error}") from error
    environment, verifier = _table(settings, "environment"), _table(settings, "verifier")
    for refused, what in (
        ("steps" in settings, "[[steps]]"),
        (bool(environment.get("docker_image")), "environment.docker_image"),
        (bool(environment.get("gpus")), "environment.gpus"),
        (bool(environment.get("mcp_servers")), "environment.mcp_servers"),
        (str(environment.get("os") or "linux").lower() != "linux", "environment.os other than Linux"),
        (
            verifier.get("environment_mode", "shared") != "shared" or "environment" in verifier,
            "a separate container for the tests (verifier.environment)",
        ),
        ("collect" in verifier, "[[verifier.collect]]"),
    ):
        if refused:
            raise TaskRefused(f"task.toml has {what}, which needs a container engine")
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if f"environment/{name}" in files:
            raise TaskRefused(f"environment/{name} needs a container engine")
    return settings


def _dockerfile(folder: Path, files: list[str]) -> tuple[tuple[BuildStep, ...], dict[str, str], str]:
    """Return the steps of the Dockerfile, its variables and its final working directory.

    Raises TaskRefused if an instruction is invalid or needs a container engine.
    """
    if "environment/Dockerfile" not in files:
        return (), {}, WORKDIR
    steps: list[BuildStep] = []
    variables: dict[str, str] = {}
    names = [PurePosixPath(name).relative_to("environment") for name in files if name.startswith("environment/")]
    workdir, stages, arguments = WORKDIR, 0, 0
    for number, (line, word, rest) in enumerate(_instructions(_text(folder, "environment/Dockerfile"))):
        where = f"environment/Dockerfile, line {line}: {word} {rest[:MAX_SHOWN]}".rstrip()
        if number == MAX_INSTRUCTIONS:
            raise TaskRefused(f"{where}: the Dockerfile has more than {MAX_INSTRUCTIONS} instructions")
        if word == "FROM":
            stages += 1
            if stages > 1 or not BARE_IMAGES.match(rest.partition(" ")[0]):
                raise TaskRefused(f"{where}: the programs and files in this image are not available")
        elif word == "WORKDIR":
            workdir = _inside(workdir, _plain(rest, variables, where), where)
        elif word == "ENV":
            variables |= _environment(rest, variables, where)
        elif word in ("COPY", "ADD"):
            arguments += len(words := _words(rest, where))
            if arguments * len(names) > MAX_COMPARED:
                raise TaskRefused(
                    f"{where}: the COPY instructions have too many arguments: {arguments} for {len(names)} files"
                )
            steps.append(BuildStep(line, workdir, files=_copied(folder / "environment", names, words, workdir, where)))
        elif word == "RUN":
            command = shlex.join(_words(rest, where)) if rest.startswith("[") else rest
            if found := INSTALLS.search(command):
                raise TaskRefused(f"{where}: {found[1]} needs a network and privileges that a sandbox does not have")
            steps.append(BuildStep(line, workdir, command=command))
        elif word == "USER" and rest in ("root", "0"):
            continue
        elif word not in NO_EFFECT:
            raise TaskRefused(f"{where}: this instruction needs a container engine")
    if sum(len(step.files) for step in steps) > MAX_FILES:
        raise TaskRefused(f"environment/Dockerfile copies more than {MAX_FILES} files")
    return tuple(steps), variables, workdir


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each instruction's first line number, its name in upper case, and its arguments as one line."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not parts and not line.strip()):
            continue
        begun = begun if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            word, _, rest = "\n".join(parts).strip().partition(" ")
            yield begun, word.upper(), " ".join(rest.split("\n")).strip()
            parts = []


def _plain(value: str, variables: Mapping[str, str], where: str) -> str:
    """Replace the variables of earlier ENV instructions in a value. Raises TaskRefused for an unknown variable."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in variables:
            raise TaskRefused(f"{where}: no earlier ENV sets ${name}")
        return variables[name]

    plain = re.sub(r"\$(?:\{(\w+)\}|(\w+))", replaced, value.strip().strip('"'))
    if len(plain) > MAX_VALUE:
        raise TaskRefused(f"{where}: the value has more than {MAX_VALUE} characters")
    return plain


def _environment(rest: str, variables: Mapping[str, str], where: str) -> dict[str, str]:
    pairs = _words(rest, where)
    if "=" not in pairs[0]:
        name, _, value = rest.partition(" ")
        return {name: _plain(value, variables, where)}
    return {name: _plain(value, variables, where) for name, _, value in (pair.partition("=") for pair in pairs)}


def _copied(context: Path, names: list[PurePosixPath], words: list[str], workdir: str, where: str) -> dict[str, Path]:
    """Return a mapping from the sandbox path of each file of a COPY instruction to the file's source.

    names: all files in the build context.
    """
    if any(word.startswith("--") for word in words):
        raise TaskRefused(f"{where}: options of COPY need a container engine")
    *sources, target = words
    found: dict[str, Path] = {}
    for source in sources:
        if "://" in source:
            raise TaskRefused(f"{where}: a sandbox has no network")
        parts = PurePosixPath(source.lstrip("/")).parts
        matching = [
            name
            for name in names
            if len(name.parts) >= len(parts) and all(map(fnmatchcase, name.parts[: len(parts)], parts))
        ]
        if not matching:
            raise TaskRefused(f"{where}: environment/ has no {source}")
        tops = {name.parts[: len(parts)] for name in matching}
        for name in matching:
            of_folder = len(name.parts) > len(parts)
            to_folder = of_folder or target.endswith(("/", ".")) or len(sources) + len(tops) > 2
            if str(name) in ("Dockerfile", ".dockerignore"):
                continue
            below = PurePosixPath(*name.parts[len(parts) :]) if of_folder else name.name
            found[_inside(workdir, f"{target}/{below}" if to_folder else target, where)] = context / name
    return found


def _words(rest: str, where: str) -> list[str]:
    """Parse an instruction's arguments, a JSON array or shell words. Raises TaskRefused for invalid arguments."""
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except (ValueError, RecursionError):
        words = None
    if not words or not all(isinstance(word, str) for word in words):
        raise TaskRefused(f"{where}: the arguments cannot be parsed")
    return list(words)


def _inside(workdir: str, path: str, where: str) -> str:
    """Return an absolute path in the sandbox. Raises TaskRefused if it is in a directory that a task must not use."""
    parts: list[str] = []
    for part in PurePosixPath(workdir, path).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    if not parts or parts[0] in TAKEN:
        raise TaskRefused(f"{where}: /{'/'.join(parts)} is not in a directory that a task may use")
    return "/" + "/".join(parts)


def _top(path: str) -> str:
    return f"/{PurePosixPath(path).parts[1]}"


def _variables(table: Mapping[str, Any], where: str) -> dict[str, str]:
    variables = {str(name): str(value) for name, value in _table(table, "env").items()}
    for name, value in variables.items():
        if "${" in value:
            raise TaskRefused(
                f"task.toml has {where}.env.{name} = {value!r}, but tasks cannot read this machine's variables"
            )
    return variables


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, Mapping):
        raise TaskRefused(f"task.toml has {name} = {table!r}; expected a table")
    return table


def _number(table: Mapping[str, Any], where: str, name: str, default: float, most: float) -> float:
    value = table.get(name) or default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise TaskRefused(f"task.toml has {where}.{name} = {value!r}; expected a number above 0 and at most {most:g}")
    return value


def _text(folder: Path, name: str, most_bytes: int = MAX_TEXT_BYTES) -> str:
    try:
        return read_inside(folder, name, most_bytes).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, error) from error


def _digest(folder: Path, files: list[str]) -> str:
    digest = hashlib.sha256()
    left = MAX_BYTES
    for name in files:
        data = read_inside(folder, name, left)
        left -= len(data)
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _unreadable(name: str, error: OSError | UnicodeDecodeError) -> TaskRefused:
    if isinstance(error, ForeignFileRefused):
        return TaskRefused(f"{error.filename} {error.strerror}")
    return TaskRefused(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")

"""Imports an app in a process in which only the modules of its container are available.

If the import fails in this process, it would also fail in a container. The check also records the files that the app
declares (`app.path` and the files that contain its rows) or opens, and the models that the app's judges and
environments call.

`rehearse` runs this module as a child process. The child reads a request as JSON from stdin and writes the response as
JSON to a file, because the author's code may print to stdout.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.config import child_environment
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.source_location import shown_path
from taskapp_kit.deploy.packaging.source_files import KIT_DIR
from taskapp_kit.errors import DiscoveryError, KitError
from taskapp_kit.records.example_policy import example_policy
from taskapp_kit.rollout.policy.options import offered, policies_of
from taskapp_kit.rollout.score.judges import needed_roles
from taskapp_kit.system.child_python import python_command
from taskapp_kit.wire.chat.conversation import role_variable, role_variables

if TYPE_CHECKING:
    from taskapp_kit.declare.app import TaskApp


SECONDS = 300.0
"""The time limit of an import, in seconds."""
GRACE_SECONDS = 2.0
"""How many seconds the child process may take to end after its response."""


@dataclass(frozen=True, slots=True)
class ImportCheck:
    """The result of importing an app.

    Attributes:
        name: The app's name.
        version: The app's version.
        files: Absolute paths of files that the app declares.
        opened: Absolute paths of files in the app's directory that the app opens for reading and does not declare.
        roles: Maps each environment variable that a judge with a weight above 0 requires to the judge's name.
        optional: Other environment variables that configure the models of judges and environments.
        context: Whether an environment may call models that it does not declare: its `reset` has the parameter
            `context`, but its declaration names no models.
        policy: A `policy.config` for a first rollout.
        environment: The environment for the first rollout.
        seed: The seed for the first rollout.
    """

    name: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    context: bool = False
    policy: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    seed: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ImportCheck:
        """Create an ImportCheck from JSON."""
        members: dict[str, Any] = {
            name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()
        }
        return cls(**members)


def rehearse(address: str, *, allowed: Sequence[str], folder: Path | None, own: Sequence[str]) -> ImportCheck:
    """Import the app at `address` in a child process, whose environment does not contain the server's API keys.

    Args:
        address: The app's reference.
        allowed: The top-level modules that the child process may import.
        folder: The directory of the author's files, or None for a bundled app.
        own: The files in `folder` that would be uploaded.

    Raises:
        ImportCheckFailed: The app cannot be imported. If a module is missing, the message contains the module and the
            line that imports it.
    """
    question = {
        "address": address,
        "allowed": sorted(allowed),
        "folder": str(folder) if folder else "",
        "own": sorted(own),
    }
    # In a separate process, because an import cannot be undone.
    with tempfile.TemporaryDirectory(prefix="taskapp-") as scratch, tempfile.TemporaryFile() as said:
        answer = Path(scratch) / "answer.json"
        try:
            done = subprocess.run(  # noqa: S603  runs this module
                python_command("taskapp_kit.deploy.packaging.import_check", str(answer)),
                input=json.dumps(question).encode(),
                stdout=subprocess.DEVNULL,
                stderr=said,  # a file, because a process that the app started could keep a pipe open
                timeout=SECONDS,
                check=False,
                env=child_environment(),
            )
        except subprocess.TimeoutExpired:
            raise ImportCheckFailed(
                f"The import of {address} took longer than {SECONDS:.0f} s.",
                hint="Make the import faster, because every container imports the app.",
            ) from None
        if not answer.is_file():
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").splitlines()
            last = next((line for line in reversed(lines) if line.strip()), "")
            raise ImportCheckFailed(
                f"The process that imported {address} ended with status {done.returncode}{f': {last[:200]}' if last else '.'}",
                hint="To see the error, run the app's file: python FILE",
            )
        result = json.loads(answer.read_text("utf-8"))
    if "error" in result:
        raise (
            MissingModule(result["error"], result["module"])
            if result["module"]
            else ImportCheckFailed(result["error"], hint=result["hint"])
        )
    return ImportCheck.of(result)


class ImportCheckFailed(DiscoveryError):
    """The app was found but cannot be imported."""

    exit_status = 1


class MissingModule(ImportCheckFailed):
    """The app imports a module that would be missing in its container. `module` is the name of the top-level module."""

    def __init__(self, message: str, module: str) -> None:
        super().__init__(message)
        self.module = module


class _OnlyAllowed(importlib.abc.MetaPathFinder):
    """An import finder that rejects top-level modules that are neither allowed nor in the standard library."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self.allowed = allowed | sys.stdlib_module_names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return None for an allowed module, so that the next finder is used. Raises ModuleNotFoundError otherwise."""
        if "." in fullname or fullname in self.allowed or fullname.startswith("_sysconfigdata"):
            return None
        raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    folder = Path(question["folder"]).resolve() if question["folder"] else None
    opened: set[str] = set()
    if folder is not None:
        _note_opened(folder, opened)
    # A module that is installed on this machine but not in the image must fail to import, as in a container.
    sys.meta_path.insert(0, _OnlyAllowed(frozenset(question["allowed"])))
    try:
        app = find_app(question["address"])
        facts = _import_check_of(app)
    except KitError as error:
        cause = error.__cause__
        missing = _missing(error)
        if cause is not None and missing is not None:
            return {
                "error": f"{_place(cause)} imports {missing}",
                "module": missing.partition(".")[0],
                "hint": "",
            }
        return {"error": error.message, "hint": error.hint, "module": ""}
    uploaded = {str((folder / name).resolve()) for name in question["own"]} if folder is not None else set()
    left = _left_behind(folder, uploaded) if folder is not None else []
    if left:
        return {
            "error": f"{question['address']} imports {', '.join(left)} dynamically, which would fail in a container.",
            "hint": "Use an import statement, or add the file to data_files.",
            "module": "",
        }
    known = uploaded | {str(Path(path).resolve()) for path in facts.files}
    return dataclasses.asdict(dataclasses.replace(facts, opened=tuple(sorted(opened - known))))


def _missing(error: BaseException) -> str | None:
    """Return the missing module that the error or one of its causes names, or None if none of them names a module."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return cause.name
        cause = cause.__cause__
    return None


def _place(error: BaseException) -> str:
    """Return `file:line` of the innermost failed statement outside the kit, or "The app" if only the kit failed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
        and (not Path(frame.filename).is_relative_to(KIT_DIR) or "_bundled" in frame.filename)
    ]
    return f"{shown_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else "The app"


def _note_opened(folder: Path, opened: set[str]) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str) or not arguments[0]:
            return
        mode = arguments[1]
        if isinstance(mode, str) and set(mode) & set("wax+"):
            return
        path = Path(arguments[0])
        path = path if path.is_absolute() else Path.cwd() / path
        inside = path.is_relative_to(folder)
        if inside and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts and path.is_file():
            opened.add(str(path))

    # An audit hook is called for every `open`. It cannot be removed, which does not matter in this short-lived process.
    sys.addaudithook(hook)


def _left_behind(folder: Path, uploaded: set[str]) -> list[str]:
    """Return the imported modules in the author's directory that would not be uploaded."""
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder) and str(Path(file).resolve()) not in uploaded:
            parts = Path(file).relative_to(folder).parts
            if not {"site-packages", "taskapp_kit", ".venv"} & set(parts):
                found.append("/".join(parts))
    return sorted(found)


def _import_check_of(app: TaskApp) -> ImportCheck:
    spec = app.freeze()
    named = {item.target: os.path.normpath(app.file.parent / item.name) for item in app.declared if item.kind == "path"}
    files = list(named.values())  # unresolved, because the target of a link may be in another directory
    for environment in spec.environments.values():
        if environment.tasks is not None:
            files += [os.path.normpath(path) for path in environment.tasks.files if path.resolve() not in named]
    first = spec.default_environment
    needs = needed_roles(spec)
    roles = {role_variable(need.role): need.judge for need in needs if need.must}
    policies = policies_of(offered(spec, exposure="public", gold=None), first)
    return ImportCheck(
        name=spec.name,
        version=spec.version,
        files=tuple(sorted(set(files))),
        roles=roles,
        optional=tuple(variable for need in needs for variable in role_variables(need.role) if variable not in roles),
        context=any("context" in item.reset_parameters and not item.models for item in spec.environments.values()),
        policy=example_policy(policies, words=first.text_action is not None),
        environment=first.name,
        seed=first.first_seed,
    )


def main() -> None:
    """Run as the child process."""
    question = json.loads(sys.stdin.read())
    Path(sys.argv[1]).write_text(json.dumps(_answer(question)), "utf-8")
    end = threading.Timer(GRACE_SECONDS, os._exit, (0,))  # exits even if the app has started threads
    end.daemon = True
    end.start()


if __name__ == "__main__":
    main()

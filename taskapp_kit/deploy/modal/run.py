"""Runs `modal deploy` and `modal serve`: writes their entry module, reads their output, and stops them.

Modal's command line runs in a child process, so that the kit does not depend on Modal's internals. The entry module is
in a temporary directory, with a file that contains its options. Neither file contains a key. The child process ends
when this process ends, because a running app costs money.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Literal

from taskapp_kit.config import child_environment
from taskapp_kit.deploy.modal.account import ModalRefused, require_client
from taskapp_kit.deploy.modal.deployment import ASKED_FILE
from taskapp_kit.deploy.modal.modal_settings import WEB_FUNCTION, ModalSettings
from taskapp_kit.deploy.modal.plan import DeployPlan
from taskapp_kit.system.child import OwnedProcess
from taskapp_kit.system.child_python import python_command

ENTRY = '''"""Made by `taskapp deploy`: the modal_app.py of one deployment."""

import sys

import modal

if modal.is_local():  # Modal puts the working directory first, but a taskapp_kit there must not replace this kit
    sys.path[:] = [place for place in sys.path if place]

from taskapp_kit.deploy.modal import Deployment
from taskapp_kit.errors import KitError

try:
    DEPLOYMENT = Deployment.asked(beside=__file__)
except KitError as error:  # such as an edit that breaks the app while it is served
    raise SystemExit(f"Error: {error}") from None
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    """One container's server."""
    return DEPLOYMENT.serve()
'''
PATIENCE_SECONDS = 6.0
"""How many seconds Modal's client may take to end before the next signal is sent."""
_MADE = re.compile(rf"\bCreated Function {WEB_FUNCTION}\b")
_ADDRESS = re.compile(r"\W*(https?://[^\s│'\"]+)")


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """Options of a deployment.

    Attributes:
        environment: The Modal environment, or "" for the account's default environment.
        tag: A label for this version, which Modal shows.
        strategy: With `rolling`, old containers finish their requests. With `recreate`, they are stopped first.
    """

    environment: str = ""
    tag: str = ""
    strategy: Literal["rolling", "recreate"] = "rolling"


@contextmanager
def entry(plan: DeployPlan, said: ModalSettings, *, beside: Path, rehearsed: bool) -> Iterator[Path]:
    """Write the entry module of a plan to a temporary directory, and yield the module's path.

    The directory is removed at the end of the block.

    Args:
        plan: The plan.
        said: The settings of the plan.
        beside: The directory in which a relative path to the app starts.
        rehearsed: Whether to use the plan's import check instead of importing the app again.
    """
    asked = {
        "target": plan.target,
        "beside": str(beside),
        "said": {**said.said(), "app_name": plan.app_name},
        "rehearsal": dataclasses.asdict(plan.rehearsal) if rehearsed and plan.rehearsal is not None else None,
    }
    with TemporaryDirectory(prefix="taskapp-") as folder:
        Path(folder, ASKED_FILE).write_text(json.dumps(asked), "utf-8")
        module = Path(folder, "modal_app.py")
        module.write_text(ENTRY, "utf-8")
        yield module


def deploy(module: Path, how: DeployOptions, *, report: Callable[[str], None]) -> None:
    """Run `modal deploy`.

    Args:
        module: Path of the entry module.
        how: The options.
        report: Function that is called with each line that Modal prints.

    Raises:
        ModalRefused: The command failed or was interrupted.
        Unavailable: Modal's client is not installed.
    """
    more = ["--strategy", how.strategy, *(["--tag", how.tag] if how.tag else [])]
    status, interrupted = _modal(["deploy", str(module), *_environment(how), *more], report)
    if interrupted:
        raise ModalRefused(
            "`modal deploy` was interrupted.", hint="To see whether the app was published, run: modal app list"
        )
    if status != 0:
        raise ModalRefused(
            f"`modal deploy` failed with status {status}, and nothing was published.",
            hint="See the output above.",
        )


def serve(module: Path, how: DeployOptions, *, report: Callable[[str], None], answering: Callable[[str], None]) -> None:
    """Run `modal serve` until Ctrl-C.

    Args:
        module: Path of the entry module.
        how: The options.
        report: Function that is called with each line that Modal prints.
        answering: Function that is called once with the address of the app.

    Raises:
        ModalRefused: The command failed.
        Unavailable: Modal's client is not installed.
    """
    status, interrupted = _modal(["serve", str(module), *_environment(how)], report, answering)
    if status != 0 and not interrupted:
        raise ModalRefused(f"`modal serve` failed with status {status}.", hint="See the output above.")


def _environment(how: DeployOptions) -> list[str]:
    return ["--env", how.environment] if how.environment else []


def _modal(
    arguments: list[str], report: Callable[[str], None], answering: Callable[[str], None] | None = None
) -> tuple[int, bool]:
    """Run Modal's command line. Return the exit status, and whether Ctrl-C ended the command."""
    require_client()
    lines: SimpleQueue[str | None] = SimpleQueue()
    interrupted, before = False, ""
    process: OwnedProcess[None] = OwnedProcess(
        python_command("modal", *arguments),
        env={**child_environment(), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        name="modal",
        on_line=lines.put,
        on_exit=lambda _: lines.put(None),
    )
    try:
        while True:
            try:
                while (line := lines.get()) is not None:
                    report(line)
                    url, before = address_in(line, before), line
                    if url is not None and answering is not None:
                        answer, answering = answering, None
                        answer(url)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                process.signal(signal.SIGINT, group=False)
                threading.Thread(target=_insist, args=(process,), daemon=True).start()
            else:
                assert process.status is not None, "the queue ends when the process has ended"
                return process.status, interrupted
    finally:
        process.kill()  # also kills the child that watches files


def _insist(process: OwnedProcess[None]) -> None:
    """Repeat signals, because Modal's client misses signals while it starts to watch files."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.ended.wait(PATIENCE_SECONDS):
            return
        process.signal(number)


def address_in(line: str, before: str) -> str | None:
    """Return the web function's address if `line` contains it and the previous line reports that it was created.

    Other addresses, such as those that are printed while an image is built, must not match, because a key is sent to
    the returned address.
    """
    found = _ADDRESS.match(line) if _MADE.search(before) else None
    return found[1] if found is not None else None

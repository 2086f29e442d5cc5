"""Runs `modal deploy` and `modal serve`: writes their entry module, reads their output, and ends them.

Modal's own command line does the work in a child process, so that the kit does not depend on Modal's internals. The entry is
a module in a temporary directory, with its options in a file next to it. Neither contains a key. The child ends with this
process, because an app that keeps running costs money.
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
"""How long Modal's client may take to end after a signal, before the next signal."""
_MADE = re.compile(rf"\bCreated Function {WEB_FUNCTION}\b")
_ADDRESS = re.compile(r"\W*(https?://[^\s│'\"]+)")


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """Options of a deployment.

    Attributes:
        environment: The Modal environment; "" for the account's default.
        tag: A label of this version, which Modal shows.
        strategy: `rolling` lets old containers finish, `recreate` stops them first.
    """

    environment: str = ""
    tag: str = ""
    strategy: Literal["rolling", "recreate"] = "rolling"


@contextmanager
def entry(plan: DeployPlan, said: ModalSettings, *, beside: Path, rehearsed: bool) -> Iterator[Path]:
    """Write the entry module for a plan to a directory that is removed at the end of the block.

    said: The settings of the plan. rehearsed: Reuse the plan's import check instead of importing the app again.
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
    """Run `modal deploy`. report: called with each line that Modal prints. Raises ModalRefused, Unavailable."""
    more = ["--strategy", how.strategy, *(["--tag", how.tag] if how.tag else [])]
    status, interrupted = _modal(["deploy", str(module), *_environment(how), *more], report)
    if interrupted:
        raise ModalRefused(
            "`modal deploy` was interrupted.", hint="`modal app list` shows whether the app was already published."
        )
    if status != 0:
        raise ModalRefused(
            f"`modal deploy` failed with status {status}, and nothing was published.",
            hint="See its output above.",
        )


def serve(module: Path, how: DeployOptions, *, report: Callable[[str], None], answering: Callable[[str], None]) -> None:
    """Run `modal serve` until Ctrl-C. answering: called once with the address. Raises ModalRefused, Unavailable."""
    status, interrupted = _modal(["serve", str(module), *_environment(how)], report, answering)
    if status != 0 and not interrupted:
        raise ModalRefused(f"`modal serve` failed with status {status}.", hint="See its output above.")


def _environment(how: DeployOptions) -> list[str]:
    return ["--env", how.environment] if how.environment else []


def _modal(
    arguments: list[str], report: Callable[[str], None], answering: Callable[[str], None] | None = None
) -> tuple[int, bool]:
    """Run Modal's command line; return its exit status, and whether Ctrl-C ended it."""
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
                assert process.status is not None, "it has ended"
                return process.status, interrupted
    finally:
        process.kill()  # and its child that watches the files


def _insist(process: OwnedProcess[None]) -> None:
    """Repeat signals, because Modal's client misses a signal that arrives while it starts to watch the files."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.ended.wait(PATIENCE_SECONDS):
            return
        process.signal(number)


def address_in(line: str, before: str) -> str | None:
    """Return the web function's address if `before` reports its creation and `line` contains it.

    A key will be sent to this address, and building an image also prints addresses.
    """
    found = _ADDRESS.match(line) if _MADE.search(before) else None
    return found[1] if found is not None else None

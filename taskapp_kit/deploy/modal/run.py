"""Running `modal deploy` and `modal serve`: the entry module that they are given, their words, their end.

Modal's own command line does the work in a child process, so that none of its internals is relied on. The entry is a
module in a temporary folder; what it deploys stands in a file beside it, and neither holds a key. Where the kernel
allows it the child dies with us (`system/die_with_parent.py`): an app that is served for nobody costs money.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from taskapp_kit.config import child_environment
from taskapp_kit.deploy.modal.account import ModalRefused, require_client
from taskapp_kit.deploy.modal.deployment import ASKED_FILE
from taskapp_kit.deploy.modal.plan import DeployPlan
from taskapp_kit.deploy.modal.settings import WEB_FUNCTION, ModalSettings
from taskapp_kit.system import die_with_parent
from taskapp_kit.system.child_python import python_command

ENTRY = '''"""Made by `taskapp deploy`: what modal_app.py is, for one deploy."""

import sys

import modal

if modal.is_local():  # Modal puts the working directory first; the kit that was asked is to answer, not a folder there
    sys.path[:] = [place for place in sys.path if place]

from taskapp_kit.deploy.modal import Deployment
from taskapp_kit.errors import TaskappError

try:
    DEPLOYMENT = Deployment.asked(beside=__file__)
except TaskappError as error:  # an edit broke the app while it is served, say
    raise SystemExit(f"Error: {error}") from None
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    """One container's server."""
    return DEPLOYMENT.serve()
'''
LEASH = Path(die_with_parent.__file__)
PATIENCE_SECONDS = 6.0
"""How long Modal's client may take to end after a signal, before the next one."""
_MADE = re.compile(rf"\bCreated Function {WEB_FUNCTION}\b")
_ADDRESS = re.compile(r"\W*(https?://[^\s│'\"]+)")


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """Options of a deploy. environment: of Modal, "" for the account's own. tag: a label of this version, shown by Modal.

    strategy: `rolling` lets old containers finish, `recreate` stops them first.
    """

    environment: str = ""
    tag: str = ""
    strategy: Literal["rolling", "recreate"] = "rolling"


@contextmanager
def entry(plan: DeployPlan, said: ModalSettings, *, beside: Path, rehearsed: bool) -> Iterator[Path]:
    """The entry module for a plan, in a folder that goes at the end.

    said: what the plan was made with. rehearsed: take over what the plan learnt of the app, and do not import it again.
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


def deploy(module: Path, how: DeployOptions, *, tell: Callable[[str], None]) -> None:
    """`modal deploy`. tell: gets each line that Modal prints. Raises ModalRefused, Unavailable."""
    more = ["--strategy", how.strategy, *(["--tag", how.tag] if how.tag else [])]
    status, interrupted = _modal(["deploy", str(module), *_environment(how), *more], tell)
    if interrupted:
        raise ModalRefused(
            "The deploy was stopped.", hint="`modal app list` shows whether it had been published before."
        )
    if status != 0:
        raise ModalRefused(
            f"`modal deploy` ended with status {status}; nothing was published.",
            hint="What it said stands above.",
        )


def serve(module: Path, how: DeployOptions, *, tell: Callable[[str], None], answering: Callable[[str], None]) -> None:
    """`modal serve`, until Ctrl-C. answering: called once with the address. Raises ModalRefused, Unavailable."""
    status, interrupted = _modal(["serve", str(module), *_environment(how)], tell, answering)
    if status != 0 and not interrupted:
        raise ModalRefused(f"`modal serve` ended with status {status}.", hint="What it said stands above.")


def _environment(how: DeployOptions) -> list[str]:
    return ["--env", how.environment] if how.environment else []


def _modal(
    arguments: list[str], tell: Callable[[str], None], answering: Callable[[str], None] | None = None
) -> tuple[int, bool]:
    """Runs Modal's command line; its exit status, and whether Ctrl-C ended it."""
    require_client()
    process = subprocess.Popen(  # noqa: S603 — this Python, Modal's module
        python_command(LEASH, str(os.getpid()), *python_command("modal", *arguments)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches it once, from here: a second one would cut its clean-up short
        env={**child_environment(), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    interrupted, before = False, ""
    try:
        while True:
            try:
                for line in process.stdout:
                    if line.strip():
                        tell(line.rstrip())
                    url, before = address_in(line, before), line
                    if url is not None and answering is not None:
                        answer, answering = answering, None
                        answer(url)
                return process.wait(), interrupted
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                process.send_signal(signal.SIGINT)
                threading.Thread(target=_insist, args=(process,), daemon=True).start()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # and what it started to follow the files
            process.wait()


def _insist(process: subprocess.Popen[str]) -> None:
    """Modal's client overhears a signal that comes while it starts to follow the files."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def address_in(line: str, before: str) -> str | None:
    """The address of the web function in a line of Modal's, which stands below the one that says that it was made.

    No other is taken: what builds an image prints addresses, too, and a key is sent to this one.
    """
    found = _ADDRESS.match(line) if _MADE.search(before) else None
    return found[1] if found is not None else None

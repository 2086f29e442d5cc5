"""Import an app that a command plays in this process, run it as a service, and report its failures."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taskapp_kit
from taskapp_kit.cli.options import command_with
from taskapp_kit.cli.output.terminal import clean, echo
from taskapp_kit.config import export
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import RolloutFailed, Unavailable
from taskapp_kit.evaluate.own_directories import check_own
from taskapp_kit.rollout.models.access import role_endpoint
from taskapp_kit.rollout.score.judges import check_judges
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store

if TYPE_CHECKING:
    from taskapp_kit.config import Settings
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.records.protocols import Store


def open_app(reference: str, settings: Settings) -> TaskApp:
    """Import the app that an APP argument names.

    The app's code can read the settings from environment variables. Only the app's log is printed on stderr, not
    taskapp-kit's log.

    Raises DiscoveryError if the app is not found or its import fails.
    """
    export(settings)
    only_authors_log()
    return find_app(reference)


def app_named(option: str | None, directory: str, config: Mapping[str, Any]) -> str | None:
    """Return the value of --app, or else the app that an evaluation's config names, or None if neither is set.

    Raises ConfigError if --app is not set and the evaluation comes from another user, whose app could run any code.
    """
    stored = config.get("app_reference")
    if option is None and isinstance(stored, str):
        check_own(Path(directory), config, command_with(["--app", stored]))
        return stored
    return option


def store_of(url: str | None) -> Store | None:
    """Open the store at an address, or return None if the address is None or `none`.

    Raises ConfigError for an invalid address, and StoreError if the store cannot be opened.
    """
    return None if url is None or url == "none" else open_store(url)


@contextlib.asynccontextmanager
async def local_service(
    app: TaskApp,
    settings: Settings,
    *,
    store: str | None = None,
    skip_judges: bool = False,
    concurrency: int = 1,
    **more: Any,
) -> AsyncIterator[Service]:
    """Run a service that plays or scores up to `concurrency` rollouts at a time. Judges use the models in the settings.

    The store at the address `store` is opened, and closed together with the service. `more` contains other fields of
    ServiceSettings. Raises ConfigError and StoreError if the store cannot be opened, and Unavailable if a judge has no
    model.
    """
    if not skip_judges:  # before `store_of`, which creates a file
        check_judges(app.freeze(), lambda role: role_endpoint(settings, role) is not None)
    limits = {"max_concurrent": concurrency, "threads": concurrency, "skip_judges": skip_judges, **more}
    service = Service.of(app, settings, store=store_of(store), **limits)
    try:
        yield service
    finally:
        await service.close()


@contextlib.contextmanager
def failure_shown() -> Iterator[None]:
    """If a rollout fails in the block, print the author's traceback and raise a more detailed RolloutFailed.

    Its message contains the boundary where the rollout failed, and its hint contains the ids of the rollout and error.
    """
    try:
        yield
    except RolloutFailed as failed:
        show_traceback(failed.__cause__)
        failure = failed.failure
        names = {"rollout": failed.rollout_id, "error id": failure.error_id}
        ids = ", ".join(f"{name} {value}" for name, value in names.items() if value)
        shown = RolloutFailed(failure, rollout_id=failed.rollout_id)
        shown.message = (
            f"The rollout failed at boundary {failure.boundary} ({failure.code}): {failure.message.rstrip('.')}."
        )
        shown.hint = f"{failure.hint} ({ids})".strip() if ids else failure.hint
        raise shown from failed


def only_authors_log() -> None:
    """Silence the kit's log, because the command reports failures itself. Environments still log to stderr."""
    logger = logging.getLogger("taskapp_kit")
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    author = logging.getLogger("taskapp_kit.environment")
    author.handlers, author.propagate = [handler], False
    author.setLevel(logging.INFO)


def show_traceback(cause: BaseException | None) -> None:
    """Print a traceback to stderr without the kit's frames.

    If the author's code is not in the traceback, the whole traceback is printed. Nothing is printed for missing packages
    and for errors that the kit raises itself, such as an observation that is not JSON, because their message suffices.
    """
    if cause is None or isinstance(cause, Unavailable):
        return
    kit = str(Path(taskapp_kit.__file__).parent / "_")[:-1]
    shown = traceback.TracebackException.from_exception(cause)
    link: traceback.TracebackException | None = shown
    while link is not None:
        frames = [item for item in link.stack if not item.filename.startswith(kit) or "_bundled" in item.filename]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    if not shown.stack:
        if type(cause).__module__.startswith("taskapp_kit."):
            return
        shown = traceback.TracebackException.from_exception(cause)
    echo(clean("".join(shown.format())), err=True, nl=False)

"""A rollout that broke in this process: the author's traceback, then one paragraph."""

from __future__ import annotations

import logging

import click

from taskapp_kit.cli.terminal import clean
from taskapp_kit.errors import RolloutFailed, Unavailable


def failure_told(failed: RolloutFailed) -> RolloutFailed:
    """The failure with its boundary and ids in the sentence."""
    failure = failed.failure
    ids = ", ".join(
        f"{name} {value}" for name, value in (("rollout", failed.rollout_id), ("error id", failure.error_id)) if value
    )
    shown = RolloutFailed(failure, rollout_id=failed.rollout_id)
    shown.message = (
        f"The rollout failed at boundary {failure.boundary} ({failure.code}): {failure.message.rstrip('.')}."
    )
    shown.hint = f"{failure.hint} ({ids})".strip() if ids else failure.hint
    return shown


def only_authors_log() -> None:
    """Commands that tell a failure themselves keep the kit's log quiet; what an environment logs goes to stderr."""
    logger = logging.getLogger("taskapp_kit")
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    author = logging.getLogger("taskapp_kit.environment")
    author.handlers, author.propagate = [handler], False
    author.setLevel(logging.INFO)


def show_traceback(cause: BaseException | None) -> None:
    """The traceback on stderr without the kit's frames; whole when the author's code has no part in it.

    Nothing is shown of the kit's own findings (an observation that is not JSON, say), nor of a package that is not
    installed: their sentence says it all.
    """
    import traceback
    from pathlib import Path

    import taskapp_kit

    if cause is None or isinstance(cause, Unavailable):
        return
    kit = str(Path(taskapp_kit.__file__).parent / "_")[:-1]
    told = traceback.TracebackException.from_exception(cause)
    link: traceback.TracebackException | None = told
    while link is not None:
        frames = [item for item in link.stack if not item.filename.startswith(kit) or "_bundled" in item.filename]
        link.stack = traceback.StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    if not told.stack:
        if type(cause).__module__.startswith("taskapp_kit."):
            return
        told = traceback.TracebackException.from_exception(cause)
    click.echo(clean("".join(told.format())), err=True, nl=False)

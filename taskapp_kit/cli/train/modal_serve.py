"""`taskapp modal-serve`: run an app on Modal while the command runs, and redeploy it when its files change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.output.terminal import clean, complain, echo, example
from taskapp_kit.cli.train.deploy import (
    deploy_options,
    end_on_signals,
    look_at,
    planned,
    print_line,
    ready,
    settings_of,
)
from taskapp_kit.deploy.modal import run as modal_run
from taskapp_kit.errors import KitError


@click.command(epilog=example("taskapp modal-serve adder.py --name adder --store none --env-file .env --create-secret"))
@deploy_options
def command(app: str, modal_environment: str | None, **flags: Any) -> None:
    """Run an app on Modal until Ctrl-C, with live reload.

    The command works like `deploy`, but uses a separate address that ends in -dev. When the command ends, the app is
    removed.
    """
    said = settings_of(flags)
    plan = planned(app, said)
    how = modal_run.DeployOptions(modal_environment or "")
    key = ready(plan, how, {**flags, "take_over": True})

    def answering(url: str) -> None:
        echo(f"{clean(plan.app_name)} is running at {clean(url)} until Ctrl-C. It reloads when its files change.")
        if flags["wait"]:
            try:
                look_at(plan, url.rstrip("/"), key)
            except KitError as error:  # the user can fix the app while it is being served
                complain(error)

    end_on_signals()
    with modal_run.entry(plan, said, beside=Path.cwd(), rehearsed=False) as module:
        modal_run.serve(module, how, report=print_line, answering=answering)
    echo("\nStopped.", err=True)

"""`taskapp deploy`: an app on Modal, from what it declares, with its Secret, and one rollout to see that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.options import json_option
from taskapp_kit.cli.output import deploy_output
from taskapp_kit.cli.output.terminal import echo, example, print_json
from taskapp_kit.cli.train import deploy_steps
from taskapp_kit.cli.train.deploy_options import deploy_options, planned, settings_of
from taskapp_kit.deploy.modal import run as modal_run


@click.command(
    epilog=example(
        "taskapp deploy adder.py --name adder --dry-run",
        "taskapp deploy adder.py --name adder --env-file .env --create-secret",
        "taskapp deploy crafter --name crafter --store postgres-secret --min-containers 1 --tag v3",
    )
)
@deploy_options
@click.option("--tag", default="", show_default=False, metavar="T", help="A label of this version, shown by Modal.")
@click.option(
    "--strategy",
    type=click.Choice(["rolling", "recreate"]),
    default="rolling",
    help="Let the old containers finish, or stop them first.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and its cost; needs no account.")
@json_option("Print the plan, or what was deployed, as JSON.")
def command(
    app: str,
    modal_environment: str | None,
    tag: str,
    strategy: Any,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Deploy an app to Modal.

    What the app needs is read from its # /// script block or pyproject.toml, with [tool.taskapp.modal]; flags win. The
    app is imported here first, with only what would be installed there. Keys reach it through a named Secret alone.
    """
    said = settings_of(flags)
    plan = planned(app, said, env_files=flags["env_files"])
    if dry_run:
        if as_json:
            print_json(deploy_output.plan_json(plan))
            return
        deploy_output.show_plan(plan)
        echo("\nNothing was sent to Modal. Without --dry-run this is deployed.")
        return
    how = modal_run.DeployOptions(modal_environment or "", tag, strategy)
    deploy_steps.end_on_signals()
    key = deploy_steps.ready(plan, how, flags)
    with modal_run.entry(plan, said, beside=Path.cwd(), rehearsed=True) as module:
        modal_run.deploy(module, how, report=deploy_steps.print_line)
    deploy_steps.after(plan, how, key, wait=flags["wait"], as_json=as_json)

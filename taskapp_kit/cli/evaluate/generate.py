"""`taskapp generate`: generate a package that makes an app available to another library."""

from __future__ import annotations

from pathlib import Path

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import ENV_FILES
from taskapp_kit.cli.output.terminal import clean, echo, example
from taskapp_kit.config import load
from taskapp_kit.deploy.packaging import verifiers_package


@click.group(epilog=example("taskapp generate verifiers examples/adder.py --out taskapp-adder"))
def command() -> None:
    """Generate a package that makes an app available to another library."""


@command.command(
    epilog=example(
        "taskapp generate verifiers examples/adder.py --out taskapp-adder",
        "taskapp generate verifiers my_app.py --data train.jsonl --package 'sympy>=1.13' --out taskapp-mine",
    )
)
@click.argument("app")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="DIR", help="The new directory."
)
@click.option("--data", "data_files", multiple=True, metavar="FILE", help="A file that the app reads; may be repeated.")
@click.option("--package", "packages", multiple=True, metavar="P", help="A package to require; may be repeated.")
@ENV_FILES
def verifiers(
    app: str, out: Path, data_files: tuple[str, ...], packages: tuple[str, ...], env_files: tuple[str, ...]
) -> None:
    """Generate an installable package with load_environment (for verifiers up to 0.3.1) and a taskset (from 0.4).

    The package contains the app's file and the modules that this file imports from its directory. A bundled app is not
    copied, because the package requires taskapp-kit, which contains the app.
    """
    target = local_app.open_app(app, load(env_files=env_files))
    package = verifiers_package.write_verifiers_package(
        target, app, out, beside=Path.cwd(), data_files=data_files, packages=packages
    )
    echo(f"Created {out} ({package.name}):")
    for file in package.files:
        echo(f"  {out / file}")
    echo(
        clean(
            f"\nNext:\n  pip install {out}\n"
            f'  python -c "import verifiers; verifiers.load_environment({package.name!r})"   # up to 0.3.1\n'
            f"  {package.command}   # from 0.4"
        )
    )

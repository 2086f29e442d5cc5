"""`taskapp init`: a new project from a template."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from taskapp_kit.cli.author import templates
from taskapp_kit.cli.output.terminal import console, example


@click.command(epilog=example("taskapp init my_game --template multi-turn-game"))
@click.argument("name")
@click.option("--template", default="questions", metavar="T", help="What to start from; `taskapp list` names them.")
def command(name: str, template: str) -> None:
    """Make a new project in the directory NAME.

    NAME begins with a letter and holds letters, digits, '-' and '_'. The directory must not exist, or be empty.
    """
    templates.identifier(name)
    chosen = templates.find_template(template)
    target = Path(name)
    files = templates.instantiate(chosen, target, name)
    out = console()
    out.print(f"Made {name} from the template {chosen.name}:", style="bold")
    for file in files:
        out.print(f"  {target / file}")
    out.print("\nNext:", style="bold")
    out.print(f"  cd {name}")
    if any(file.parts[0] == "tests" or file.name.startswith("test_") for file in files):
        out.print(f"  python -m pytest{'' if find_spec('pytest') else '   # needs: pip install pytest'}")
    app = templates.app_file(target, files)
    if app is not None:
        out.print(f"  taskapp info {app}")
        out.print(f"  taskapp play {app}")
        out.print(f"  taskapp serve {app}")

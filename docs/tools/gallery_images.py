"""Draw an episode of each app of the gallery: `python docs/tools/gallery_images.py` writes docs/images/gallery.

A terminal's output becomes an SVG; the first observation of the app with images is a PNG.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from taskapp_kit import Image
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.testing import play

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images" / "gallery"
EPISODES = {
    "unit_prices": "--seed 2 --policy gold",
    "library_desk": "--seed 0 --policy gold",
    "kind_refusal": "--seed 0 --action 'I am sorry, it is being repaired.' --judges skip",
    "table_for_two": "--seed 1 --policy gold",
    "fix_the_function": "--seed 1 --policy gold",
    "balance": "--seed 1 --policy random",
    "mastermind": "--seed 6 --policy gold",
}
COLUMNS = 96


def terminal(app: str, options: str) -> str:
    """Return the SVG of what a command prints, without the lines that differ from run to run."""
    command = f"taskapp rollout {app}.py {options}"
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    program = [
        sys.executable,
        "-m",
        "taskapp_kit",
        *shlex.split(command)[1:],
        "--store",
        "none",
        "--width",
        str(COLUMNS),
    ]
    printed = subprocess.run(  # noqa: S603 - our own arguments
        program, cwd=ROOT / "examples" / "gallery", env=environment, capture_output=True, text=True, check=True
    ).stdout
    printed = re.split(r"^(?:\x1b\[[\d;]*m)*parts ", printed, flags=re.M)[0].rstrip()
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {command}\n"))
    console.print(Text.from_ansi(printed))
    svg = console.export_svg(title=app.replace("_", " "), unique_id=app)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)  # they would be fetched from elsewhere


def main() -> None:
    """Write every image."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for app, options in EPISODES.items():
        (IMAGES / f"{app}.svg").write_text(terminal(app, options), "utf-8")
    observation = play(
        find_app(str(ROOT / "examples/gallery/odd_square.py")), seed=4, policy="random"
    ).trajectory.initial
    image = next(part for part in observation if isinstance(part, Image))
    (IMAGES / "odd_square.png").write_bytes(image.png)


if __name__ == "__main__":
    main()

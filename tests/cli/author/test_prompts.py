"""What a model reads first does not change unnoticed: it is in digests and in the prompts that trainers store.

Each file of `data/prompts` is the output of `taskapp info APP --prompt --output-mode MODE`, byte for byte. After a change
that is meant: delete the files, run this twice, and look at the difference.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from environments.web import chromium
from taskapp_kit.cli.author.init import find_template, instantiate, templates
from taskapp_kit.declare.discovery import bundled_apps
from tests.cli.conftest import ROOT, Run
from tests.sandbox.boxes import LEVELS

NEEDS = {"gymnasium": "gymnasium", "math": "reasoning_gym", "web": "playwright", "rl/clicks.py": "playwright"}

DATA = Path(__file__).parents[1] / "data" / "prompts"
MODES = ("tool_calls", "text", "structured")
BUNDLED = ("crafter", "math", "python_sandbox", "web")
TEMPLATES = ("customer-service", "gymnasium", "multi-turn-game", "questions")
EXAMPLES = (
    "adder.py",
    "capitals.py",
    "rl/clicks.py",
    "rl/keys.py",
    "rl/lists.py",
    "rl/rooms.py",
    "rl/task_app.py",
    "rl/words.py",
)
APPS = (*BUNDLED, *TEMPLATES, *EXAMPLES)
IN_A_BROWSER = {"web", "rl/clicks.py"}


def reference(app: str, folder: Path) -> str:
    """What names the app on the command line; a template becomes a project in `folder`."""
    if app in EXAMPLES:
        return str(ROOT / "examples" / app)
    if app in TEMPLATES:
        instantiate(find_template(app), folder / "my-app", "my-app")
        return str(folder / "my-app" / "my_app.py")
    return app


def golden(app: str, mode: str) -> Path:
    return DATA / f"{app.removesuffix('.py').replace('/', '-')}.{mode}.txt"


def test_every_app_is_compared() -> None:
    assert {item.name for item in bundled_apps()} == set(BUNDLED)
    assert {item.name for item in templates()} == {*TEMPLATES, "package"}  # of two apps like these
    declaring = {
        str(path.relative_to(ROOT / "examples"))
        for path in (ROOT / "examples").rglob("*.py")
        if "= TaskApp(" in path.read_text() and path.parent.name != "gallery"  # eight apps like these
    }
    assert declaring == set(EXAMPLES)


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "app", [pytest.param(app, marks=pytest.mark.browser if app in IN_A_BROWSER else ()) for app in APPS]
)
def test_a_prompt_is_the_same_byte_for_byte(run: Run, tmp_path: Path, app: str, mode: str) -> None:
    package = NEEDS.get(app)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    if app == "python_sandbox" and not LEVELS:
        pytest.skip("needs bubblewrap (Debian: apt-get install bubblewrap), or root")
    if app in IN_A_BROWSER and not chromium.HEADLESS_SHELL.exists():
        pytest.skip("needs a Chromium (Debian: apt-get install chromium-headless-shell)")
    told = run("info", reference(app, tmp_path), "--prompt", "--output-mode", mode, status=0)
    file = golden(app, mode)
    if not file.exists():
        file.write_bytes(told.stdout.encode())
        pytest.fail(f"{file.name} was not there and is written: look at it")
    assert told.stdout.encode() == file.read_bytes()

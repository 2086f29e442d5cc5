"""What a model reads first does not change unnoticed: it is in digests and in the prompts that trainers store.

Each file of `data/prompts` is the output of `taskapp info APP --prompt --output-mode MODE`, byte for byte. After a change
that is meant: `python -m tests.cli.test_prompts` writes them again; look at the difference.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskapp_kit.cli.template import find_template, instantiate, templates
from taskapp_kit.declare.discovery import bundled_apps

from .conftest import ROOT, Run

DATA = Path(__file__).parent / "data" / "prompts"
MODES = ("tool_calls", "text", "structured")
BUNDLED = ("crafter", "math", "python_sandbox")
TEMPLATES = ("customer-service", "gymnasium", "multi-turn-game", "questions")
EXAMPLES = ("adder.py", "capitals.py", "rl/task_app.py")
APPS = (*BUNDLED, *TEMPLATES, *EXAMPLES)


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
    assert {item.name for item in templates()} == set(TEMPLATES)
    declaring = {
        str(path.relative_to(ROOT / "examples"))
        for path in (ROOT / "examples").rglob("*.py")
        if "= TaskApp(" in path.read_text()
    }
    assert declaring == set(EXAMPLES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("app", APPS)
def test_a_prompt_is_the_same_byte_for_byte(run: Run, tmp_path: Path, app: str, mode: str) -> None:
    if app == "gymnasium" and importlib.util.find_spec("gymnasium") is None:
        pytest.skip("needs the package gymnasium")
    told = run("info", reference(app, tmp_path), "--prompt", "--output-mode", mode)
    assert told.exit_code == 0, told.stderr
    assert told.stdout.encode() == golden(app, mode).read_bytes()


def write() -> None:
    """Writes every file again."""
    from taskapp_kit.cli.main import main

    for app in APPS:
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                args = ["info", reference(app, Path(folder)), "--prompt", "--output-mode", mode]
                told = CliRunner().invoke(main, args, env={"COLUMNS": "100"}, catch_exceptions=False)
            assert told.exit_code == 0, told.stderr
            golden(app, mode).write_bytes(told.stdout.encode())


if __name__ == "__main__":
    write()

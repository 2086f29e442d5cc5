from __future__ import annotations

import subprocess
import sys

import click
import pytest

from taskapp_kit.cli.main import GROUPS, main
from taskapp_kit.version import __version__

from .conftest import ADDER, Run

COMMANDS = [name for names in GROUPS.values() for name in names]
MAY_BE_IMPORTED = {"click", "taskapp_kit", "orjson"}


def test_help_shows_every_command_under_its_group(run: Run) -> None:
    shown = run("--help").stdout
    for group, names in GROUPS.items():
        section = shown.split(f"\n{group}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines() if line[:3].strip()] == list(names)


@pytest.mark.process
def test_no_help_imports_anything_heavy() -> None:
    """Neither the root's nor a command's: what a command runs is loaded when it runs."""
    code = (
        "import sys\n"
        "from taskapp_kit.cli.main import GROUPS, main\n"
        "for name in ['', *(name for names in GROUPS.values() for name in names)]:\n"
        "    main([*filter(None, [name]), '--help'], standalone_mode=False)\n"
        "own = set(sys.stdlib_module_names)\n"
        "loaded = {name for name, module in sys.modules.items() if type(module) is type(sys)}\n"
        "print('IMPORTED', *sorted({m.split('.')[0] for m in loaded if not m.startswith('_')} - own))\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", _with_path(code)], capture_output=True, text=True, check=True)
    assert set(done.stdout.rpartition("IMPORTED ")[2].split()) <= MAY_BE_IMPORTED


def _with_path(code: str) -> str:
    """Without `site` no plugin of the environment is imported behind our back."""
    return f"import sys\nsys.path[:0] = {sys.path!r}\n" + code


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", [80, 120])
def test_each_help_ends_with_an_example_and_fits(run: Run, name: str, width: int) -> None:
    shown = run(name, "--help", width=width)
    assert shown.exit_code == 0
    lines = shown.stdout.rstrip().splitlines()
    assert lines[-1].strip().startswith(("taskapp ", "printf "))
    assert any(line.strip() in ("Example:", "Examples:") for line in lines)
    told = lines[: next(i for i, line in enumerate(lines) if line.strip().startswith("Example"))]
    assert max(map(len, told)) <= width


def test_the_root_says_what_each_command_says_of_itself() -> None:
    context = click.Context(main)
    own = {name: command.get_short_help_str(90) for name in COMMANDS if (command := main.get_command(context, name))}
    assert own == {name: said for commands in GROUPS.values() for name, said in commands.items()}


def test_the_root_help_ends_with_an_example(run: Run) -> None:
    assert run("--help").stdout.rstrip().splitlines()[-1].strip().startswith("taskapp ")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["serv"], 2, "Did you mean 'serve'?"),
        (["zzzz"], 2, "The commands are init, list"),
        (["info", "nosuch.py"], 2, "there is no file nosuch.py"),
        (["info", "crafte"], 2, "Did you mean 'crafter'?"),
        (["info"], 2, "Missing argument"),
        (["rollout", ADDER, "--seed", "-1"], 2, "is no seed"),
        (["rollout", ADDER, "--seed", str(2**63)], 2, "is no seed"),
        (["rollout", ADDER, "--config", "{low: 3}"], 2, "mind the shell's quotes"),
        (["rollout", ADDER, "--action", "{add: 3}"], 2, """as in '{"add": {"amount": 3}}'"""),
        (["rollout", ADDER, "--config", "[1]"], 2, "expected a JSON object"),
        (["rollout", ADDER, "--config", '{"low": NaN}'], 2, "NaN is no JSON number"),
        (["rollout", ADDER, "--seed", "5000"], 2, "seed 5000 is outside the seeds of environment 'adder'"),
        (["info", ADDER, "--seed", "3"], 2, "they belong to --prompt"),
    ],
)
def test_mistakes_are_told_on_stderr(run: Run, args: list[str], status: int, words: str) -> None:
    told = run(*args)
    assert told.exit_code == status
    assert words in told.stderr
    assert "Traceback" not in told.stderr
    assert told.stdout == ""


def test_version(run: Run) -> None:
    assert run("--version").stdout.split()[-1] == __version__


@pytest.mark.process
def test_python_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "taskapp_kit", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: taskapp ")


def test_an_app_that_breaks_while_it_is_imported_is_a_failure_with_its_place(run: Run, tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "broken.py"
    file.write_text("import taskapp_kit\n1 / 0\n")
    told = run("info", "broken.py")
    assert told.exit_code == 1
    assert "broken.py:2: ZeroDivisionError" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_declaration_that_does_not_hold_is_a_failure_with_its_place(run: Run, tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "wrong.py"
    file.write_text(Path(ADDER).read_text().replace("max_steps=20", "max_steps=-20"))
    told = run("info", "wrong.py")
    assert told.exit_code == 1
    assert "wrong.py:10" in told.stderr
    assert "expected:" in told.stderr


def test_a_usage_error_does_not_steer_the_terminal(run: Run) -> None:
    name = "r\x1b[2J\x9b31m\u202e"
    assert run("eval", ADDER, "--policy", "gold", "--seeds", "0", "--out", name).exit_code == 0
    told = run("eval", name, "--seeds", "1")
    assert (told.exit_code, set(told.output) & set(name[1:2] + "\x9b\u202e")) == (2, set())

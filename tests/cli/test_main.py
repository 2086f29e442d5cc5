from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from taskapp_kit.cli.main import GROUPS, main
from taskapp_kit.version import __version__

from .conftest import ADDER, Run

COMMANDS = [name for names in GROUPS.values() for name in names]
NESTED = [("keys", name) for name in ("mint", "list", "rotate", "revoke", "upload")]
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


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS), *NESTED], ids=" ".join)
@pytest.mark.parametrize("width", [80, 120])
def test_each_help_ends_with_an_example_and_fits(run: Run, words: tuple[str, ...], width: int) -> None:
    shown = run(*words, "--help", width=width, status=0)
    lines = shown.stdout.rstrip().splitlines()
    assert lines[-1].strip().startswith(("taskapp ", "printf "))
    assert any(line.strip() in ("Example:", "Examples:") for line in lines)
    told = lines[: next(i for i, line in enumerate(lines) if line.strip().startswith("Example"))]
    assert max(map(len, told)) <= width


def test_the_root_says_what_each_command_says_of_itself() -> None:
    context = click.Context(main)
    own = {name: command.get_short_help_str(90) for name in COMMANDS if (command := main.get_command(context, name))}
    assert own == {name: said for commands in GROUPS.values() for name, said in commands.items()}


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["serv"], 2, "Did you mean 'serve'?"),
        (["keys", "mnit", "ci"], 2, "mint"),
        (["zzzz"], 2, "The commands are init, list"),
        (["info", "nosuch.py"], 2, "nosuch.py does not exist"),
        (["info", "crafte"], 2, "Did you mean 'crafter'?"),
        (["info", "--prompt"], 2, "Pass an APP or a URL"),
        (["rollout", ADDER, "--seed", "-1"], 2, "is not a valid seed"),
        (["rollout", ADDER, "--seed", str(2**63)], 2, "is not a valid seed"),
        (["rollout", ADDER, "--config", "{low: 3}"], 2, "Quote it for the shell"),
        (["rollout", ADDER, "--action", "{add: 3}"], 2, """Quote it for the shell: '{"add": {"amount": 3}}'"""),
        (["rollout", ADDER, "--config", "[1]"], 2, "expected a JSON object"),
        (["rollout", ADDER, "--config", '{"low": NaN}'], 2, "NaN is not a JSON number"),
        (["rollout", ADDER, "--seed", "5000"], 2, "Seed 5000 is outside the seeds of the environment 'adder'"),
        (["info", ADDER, "--seed", "3"], 2, "need --prompt"),
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


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import taskapp_kit\n1 / 0\n", "broken.py:2"),
        (Path(ADDER).read_text().replace("max_steps=20", "max_steps=-20"), "broken.py:10"),
    ],
    ids=["breaks while it is imported", "a declaration that does not hold"],
)
def test_an_app_that_cannot_be_loaded_is_a_failure_with_its_place(
    run: Run, tmp_path: Path, source: str, place: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    told = run("info", "broken.py", status=1)
    assert place in told.stderr
    assert "Traceback" not in told.stderr


def test_a_usage_error_does_not_steer_the_terminal(run: Run) -> None:
    name = "r\x1b[2J\x9b31m\u202e"
    assert run("eval", ADDER, "--policy", "gold", "--seeds", "0", "--out", name).exit_code == 0
    told = run("eval", name, "--seeds", "1")
    assert (told.exit_code, set(told.output) & set(name[1:2] + "\x9b\u202e")) == (2, set())

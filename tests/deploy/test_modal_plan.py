"""The plan: what would travel and be installed, and what is refused before anything is sent.

The rehearsal in it is real: a child process imports the app with nothing but what the container would have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.cli.output.deploy_output import plan_json
from taskapp_kit.deploy.modal.modal_settings import ModalSettings
from taskapp_kit.deploy.modal.plan import make_plan
from taskapp_kit.errors import ConfigError, DiscoveryError
from tests.deploy.read_once import installed_packages_read_once
from tests.programs import printed

pytestmark = pytest.mark.process

HEAD = """from taskapp_kit import Step, TaskApp, action
app = TaskApp("mine", version="1.0.0")
"""
BODY = """
@app.environment("mine", splits={"train": range(5, 9)}, max_steps=3)
class Mine:
    def reset(self, seed: int) -> str:
        return "start"

    @action
    def go(self) -> Step:
        \"\"\"Go.\"\"\"
        return Step(observation="end", reward=1.0, terminated=True)
"""
JUDGED = """
@app.judge(weight=1)
def kind(answer_text: str) -> str:
    \"\"\"Is it kind?\"\"\"
    return answer_text
"""


def plan(folder: Path, target: str = "mine.py", **said: Any):  # type: ignore[no-untyped-def]
    return make_plan(target, ModalSettings(**{"app_name": "mine", "store": "none", **said}), beside=folder)


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    with installed_packages_read_once():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return tmp_path


def write(folder: Path, head: str = "", tail: str = "", **files: str) -> None:
    (folder / "mine.py").write_text(head + HEAD + tail + BODY)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def travelling(made: Any) -> set[str]:
    return {path.removeprefix("/root/task_app/") for path, _ in made.files()}


def test_an_app_is_learnt_by_importing_it(folder: Path) -> None:
    write(
        folder,
        tail='WORDS = app.path("words.txt").read_text()\nimport rules\n',
        words__txt="a",
        rules__py="",
        notes__txt="",
    )
    made = plan(folder)
    assert travelling(made) == {"mine.py", "rules.py", "words.txt"}
    told = made.rehearsal
    assert (told.name, told.environment, told.seed, told.policy) == ("mine", "mine", 5, {"policy": "random"})
    assert made.left == (".git/", "notes.txt")
    assert made.settings.python_version == f"3.{sys.version_info.minor}"
    assert "pydantic" in " ".join(made.requirements)
    assert not [line for line in made.requirements if line.startswith("numpy")]


def test_what_the_container_is_told_has_no_path_and_no_value_of_this_machine(folder: Path) -> None:
    write(folder)
    told = json.dumps(plan(folder).for_container())
    assert str(folder) not in told
    assert '"target": "mine.py"' in told


def test_a_missing_import_is_found_here_with_where_to_declare_it(folder: Path) -> None:
    write(folder, head="import os\nimport numpy\n")  # installed here, and not declared
    with pytest.raises(DiscoveryError) as caught:
        plan(folder)
    told = str(caught.value)
    assert "mine.py:2 imports numpy, which is not declared in" in told
    assert 'dependencies = ["numpy"]' in told
    assert caught.value.exit_status == 1  # type: ignore[attr-defined]
    write(folder, head='# /// script\n# dependencies = ["numpy"]\n# ///\nimport numpy\n')
    assert any(line.startswith("numpy==") for line in plan(folder).requirements)


def test_an_import_that_the_kit_makes_for_the_author_is_reported_at_the_authors_line(folder: Path) -> None:
    write(
        folder,
        tail='from taskapp_kit.interop.gymnasium import from_gymnasium\nfrom_gymnasium("FrozenLake-v1")\n',
    )
    line = (folder / "mine.py").read_text().splitlines().index('from_gymnasium("FrozenLake-v1")') + 1
    with pytest.raises(DiscoveryError) as caught:
        plan(folder)
    assert f"mine.py:{line} imports gymnasium" in str(caught.value)
    assert "# /// script" in str(caught.value) and "installed" not in caught.value.message


def test_a_judge_with_a_weight_requires_its_models_address_and_lists_its_other_variables(folder: Path) -> None:
    write(folder, tail=JUDGED)
    made = plan(folder)
    assert made.required_keys == ("ENVIRONMENT_API_KEY", "TASKAPP_JUDGE_URL")
    assert made.rehearsal is not None
    listed = {*made.required_keys, *made.rehearsal.optional}
    assert {"TASKAPP_JUDGE_URL", "TASKAPP_JUDGE_MODEL", "TASKAPP_JUDGE_KEY"} <= listed


@pytest.mark.ci
def test_an_environment_that_takes_a_context_may_ask_models_of_further_roles(folder: Path) -> None:
    write(folder)
    plain = plan(folder)
    assert plain.rehearsal is not None and not plain.rehearsal.context
    assert plan_json(plain)["undeclared_roles"] == ""
    (folder / "mine.py").write_text((folder / "mine.py").read_text().replace("seed: int)", "seed: int, context)"))
    asking = plan(folder)
    assert asking.rehearsal is not None and asking.rehearsal.context
    for part in ("URL", "MODEL", "KEY"):
        assert f"TASKAPP_{{ROLE}}_{part}" in plan_json(asking)["undeclared_roles"]
    assert "TASKAPP_{ROLE}_URL" in plan_json(plan(folder, rehearse=False))["undeclared_roles"]
    (folder / "mine.py").write_text(
        (folder / "mine.py").read_text().replace('environment("mine", ', 'environment("mine", models=("member",), ')
    )
    declared = plan(folder)
    assert {f"TASKAPP_MEMBER_{part}" for part in ("URL", "MODEL", "KEY")} <= set(plan_json(declared)["optional_keys"])
    assert plan_json(declared)["undeclared_roles"] == ""


def test_what_an_import_needs_in_turn_is_found_too(folder: Path) -> None:
    write(folder, tail="import rules\n", rules__py="\n\nimport yaml, numpy.random\n")
    with pytest.raises(DiscoveryError, match=r"rules\.py:3 .*\bnumpy\b"):
        plan(folder)


def test_an_optional_import_that_the_author_guards_is_no_fault(folder: Path) -> None:
    write(folder, head="try:\n    import numpy\nexcept ImportError:\n    numpy = None\n")
    assert plan(folder).warnings == ()


def test_an_import_inside_a_function_is_warned_of(folder: Path) -> None:
    write(folder, tail="def later():\n    import numpy, json, yaml\n")
    (warning,) = plan(folder).warnings
    assert "mine.py:4 imports numpy in a function" in warning
    assert 'dependencies = ["numpy"]' in warning


def test_what_is_declared_and_not_installed_here_cannot_be_tried(folder: Path) -> None:
    head = '# /// script\n# dependencies = ["no-such-package-here"]\n# ///\nimport no_such_package_here\n'
    write(folder, head=head)
    with pytest.raises(DiscoveryError, match="no_such_package_here") as caught:
        plan(folder)
    assert "rehearse = false" in caught.value.hint
    made = plan(folder, rehearse=False)
    assert made.rehearsal is None and "no-such-package-here" in made.requirements


@pytest.mark.ci
def test_a_package_of_the_authors_own_is_not_looked_for_on_an_index(folder: Path) -> None:
    """Its file imports it by its name, which holds only where that package is a package."""
    package = folder / "my_games"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("")
    write(package, head="from my_games import words\n")
    program = (
        "from taskapp_kit.deploy.modal.plan import make_plan\n"
        "from taskapp_kit.deploy.modal.modal_settings import ModalSettings\n"
        "from taskapp_kit.errors import KitError\n"
        "said = ModalSettings(app_name='mine', store='none')\n"
        "for target in 'my_games/mine.py', 'my_games.mine:app':\n"
        "  try: print(sorted(path for path, _ in make_plan(target, said, beside='.').files()))\n"
        "  except KitError as error: print(str(error).replace('\\n', ' '))\n"
    )
    told, taken = printed(program, cwd=folder).splitlines()
    assert "mine.py:1 imports my_games, the package that contains the app" in told
    assert "taskapp deploy my_games.mine:app" in told
    assert "/root/my_games/words.py" in taken


def test_names_may_have_spaces_and_any_letters(folder: Path) -> None:
    place = folder / "meine Spiele ✓"
    place.mkdir()
    write(place, tail='import wörter\napp.path("große liste.txt").read_text()\n')
    (place / "mine.py").rename(place / "mein spiel.py")
    (place / "wörter.py").write_text("")
    (place / "große liste.txt").write_text("a")
    assert travelling(plan(folder, "meine Spiele ✓/mein spiel.py")) == {"mein spiel.py", "wörter.py", "große liste.txt"}


@pytest.mark.parametrize(
    "name", ["random.py", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("calendar.py", "queue.py"))]
)
def test_a_file_with_the_name_of_one_of_pythons_modules_is_an_app_as_any(folder: Path, name: str) -> None:
    write(folder)
    (folder / "mine.py").rename(folder / name)
    program = (
        "from taskapp_kit.deploy.modal.plan import make_plan\n"
        "from taskapp_kit.deploy.modal.modal_settings import ModalSettings\n"
        "import sys; sys.path.pop(0)\n"
        f"print(make_plan({name!r}, ModalSettings(app_name='mine', store='none'), beside='.').rehearsal.name)\n"
    )
    assert printed(program, cwd=folder, flags=("-P",)) == "mine\n"


@pytest.mark.ci
@pytest.mark.parametrize(
    "tail",
    [
        "import subprocess, sys, threading, time\nthreading.Thread(target=time.sleep, args=(90,)).start()\n"
        'subprocess.Popen(["sleep", "20"])\n',
        pytest.param(
            "import atexit\n@atexit.register\ndef last():\n    raise SystemExit(9)\n", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_what_an_app_leaves_running_is_not_waited_for(folder: Path, tail: str) -> None:
    write(folder, tail=tail)
    begun = time.monotonic()
    assert plan(folder).rehearsal.name == "mine"
    assert time.monotonic() - begun < 18


def test_an_app_behind_a_link_brings_what_lies_beside_the_real_file(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere, tail='import rules\napp.path("words.txt").read_text()\n', rules__py="", words__txt="")
    (folder / "linked.py").symlink_to(elsewhere / "mine.py")
    made = plan(folder, "linked.py")
    assert travelling(made) == {"mine.py", "rules.py", "words.txt"}
    assert made.address == "/root/task_app/mine.py" and made.for_container()["target"] == "mine.py"


def test_a_module_that_is_imported_by_name_alone_is_asked_for(folder: Path) -> None:
    write(folder, head="import importlib\n", tail='importlib.import_module("rules")\n', rules__py="")
    with pytest.raises(DiscoveryError, match=r"mine\.py:4 .*\brules\b"):
        plan(folder)


@pytest.mark.parametrize(
    "how",
    [
        '__import__("pathlib").Path("{0}/words.txt").read_text()',
        pytest.param('open("{0}/words.txt")', marks=pytest.mark.exhaustive),
    ],
)
def test_a_file_that_is_opened_and_not_named_is_asked_for(folder: Path, how: str) -> None:
    write(folder, tail=how.format(folder) + "\n", words__txt="a")
    with pytest.raises(ConfigError, match=r"words\.txt") as caught:
        plan(folder)
    assert "app.path" in caught.value.hint


def test_a_file_that_is_opened_and_named_as_data_travels(folder: Path) -> None:
    write(folder, tail=f'open("{folder}/words.txt")\n', words__txt="a")
    assert "words.txt" in travelling(plan(folder, data_files=("words.txt",)))


def test_a_private_file_stays_and_is_warned_of(folder: Path) -> None:
    write(folder, tail=f'open("{folder}/.env").read()\n')
    (folder / ".env").write_text("KEY=canary-5c1f")
    made = plan(folder)
    assert travelling(made) == {"mine.py"}
    assert "reads .env" in made.warnings[0] and "canary" not in made.warnings[0]
    write(folder, tail='app.path(".env")\n')
    with pytest.raises(ConfigError, match=r"'\.env'"):
        plan(folder)


def test_a_named_file_outside_the_apps_folder_is_refused(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "words.txt").write_text("")
    write(inner, tail='app.path("../words.txt")\n')
    with pytest.raises(ConfigError, match="outside"):
        plan(inner)


def test_a_file_behind_a_link_travels_under_the_name_that_the_author_gave(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "big.txt").write_text("content")
    write(folder, tail='app.path("words.txt").read_text()\n')
    (folder / "words.txt").symlink_to("data/big.txt")
    assert travelling(plan(folder)) == {"mine.py", "words.txt"}


def test_a_link_out_of_the_apps_folder_is_refused(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "big.txt").write_text("content")
    write(folder, tail='app.path("words.txt").read_text()\n')
    (folder / "words.txt").symlink_to(elsewhere / "big.txt")
    with pytest.raises(ConfigError, match=r"words\.txt"):
        plan(folder)


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("def (\n", "SyntaxError"),
        ('app.policy("a")(lambda o: {})\napp.policy("a")(lambda o: {})\n', "'a'"),
        ("import os; os._exit(3)\n", "status 3"),
    ],
)
def test_an_app_that_cannot_be_made_is_told_in_a_sentence(folder: Path, tail: str, words: str) -> None:
    write(folder, tail=tail)
    with pytest.raises(DiscoveryError, match=words) as caught:
        plan(folder)
    assert "Traceback" not in str(caught.value)


def test_an_app_may_print_what_it_likes_and_sees_no_key_of_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "canary-5c1f")
    prints = 'print("{not json")\nimport sys; print("more", file=sys.stderr)\n'
    write(folder, tail=prints + 'import os\nassert "canary-5c1f" not in os.environ.values()\n')
    assert plan(folder).rehearsal.name == "mine"


@pytest.mark.parametrize(
    ("said", "coordinator"),
    [({}, "dict"), ({"max_containers": 1}, "memory"), ({"store": "postgres-secret"}, "store")],
)
def test_idempotency_holds_over_containers_or_there_is_one(
    folder: Path, said: dict[str, Any], coordinator: str
) -> None:
    write(folder)
    assert plan(folder, rehearse=False, **said).coordinator == coordinator


def test_a_store_in_postgres_brings_its_driver(folder: Path) -> None:
    write(folder)
    assert any(
        line.startswith("psycopg") for line in plan(folder, store="postgres-secret", rehearse=False).requirements
    )


def test_an_app_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"nothing\.py"):
        plan(folder, "nothing.py")

"""Tasks in Harbor's format through the adapter: real boxes, real shells."""

import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError, RolloutFailed, TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.interop.harbor import HarborRow, from_harbor
from taskapp_kit.interop.harbor.task import INSTALLS, TaskRefused, read_task, task_folders
from taskapp_kit.testing import Rollout, play
from tests.interop.harbor.harbor_tasks import TASKS, write_task, write_tasks
from tests.interop.shared.adapted_apps import wrong_findings
from tests.sandbox.boxes import LEVELS

needs_box = [
    pytest.mark.process,
    pytest.mark.skipif(3 not in LEVELS, reason="needs bubblewrap (Debian: apt-get install bubblewrap)"),
]
NAMES = sorted(TASKS)
APP = """
    from taskapp_kit import TaskApp
    from taskapp_kit.interop.harbor import HarborRow, from_harbor

    app = TaskApp("terminal")
    Terminal = from_harbor("tasks")
    app.environment("terminal", tasks={"train": Terminal.rows}, row=HarborRow, max_steps=6)(Terminal)
    app.rubric(environment="terminal")(Terminal.reward)
    app.policy("gold", environment="terminal")(Terminal.gold)
"""


def app_of(folder: Path, **options: Any) -> TaskApp:
    app = TaskApp("terminal")
    made = from_harbor(folder, **options)
    app.environment("terminal", tasks={"train": made.rows}, row=HarborRow, max_steps=6)(made)
    app.rubric(environment="terminal")(made.reward)
    app.policy("gold", environment="terminal")(made.gold)
    return app


def one(folder: Path, files: dict[str, str]) -> TaskApp:
    return app_of(write_task(folder / "task", files))


def after(app: TaskApp, *commands: str, seed: int = 0, **options: Any) -> Rollout:
    """A rollout of these commands, then words."""
    left = list(commands)

    @app.policy("commands")
    def scripted(observation: str) -> Any:
        return {"run": {"command": left.pop(0)}} if left else "done"

    return play(app, seed=seed, policy="commands", **options)


# -- playing ------------------------------------------------------------------------------------------------------


class TestInABox:
    pytestmark = needs_box

    @pytest.mark.ci(keep=2)
    @pytest.mark.parametrize("name", NAMES)
    def test_solution_scores_and_idling_does_not(self, name: str, tmp_path: Path) -> None:
        app = app_of(write_tasks(tmp_path))
        seed = NAMES.index(name)
        gold = play(app, seed=seed, policy="gold")
        assert gold.reward == 1.0, gold.trajectory.steps
        assert gold.trajectory.status == "terminated"
        idle = play(app, seed=seed, policy="noop")
        assert idle.reward == 0.0 and idle.trajectory.stop_reason == "max_steps"  # a limit: the tests also run
        assert gold.trajectory.initial == TASKS[name]["instruction.md"].strip()

    @pytest.mark.ci
    def test_the_doctor_finds_nothing_wrong(self, tmp_path: Path) -> None:
        write_tasks(tmp_path / "tasks")
        (tmp_path / "terminal.py").write_text(textwrap.dedent(APP))

        assert wrong_findings(find_app(str(tmp_path / "terminal.py"))) == {}

    def test_command_shows_its_status_and_only_files_persist(self, tmp_path: Path) -> None:
        rollout = after(
            app_of(write_tasks(tmp_path)),
            "echo out; echo err >&2; exit 3",
            "sleep 100 & echo x > left",
            "cat left; pwd",
        )
        texts = [step.observation for step in rollout.trajectory.steps]
        assert texts[0] == "[exit status 3]\nout\n[stderr]\nerr"
        assert texts[2] == "[exit status 0]\nx\n/srv"

    def test_rewards_by_name_and_parts_of_a_reward(self, tmp_path: Path) -> None:
        app = app_of(write_tasks(tmp_path))
        half = after(app, "echo 5 > count.txt", seed=NAMES.index("word-count"))
        assert half.reward == 0.5
        assert half.trajectory.final_state == {
            "reward": 0.5,
            "rewards": {"reward": 0.5, "words": 1, "lines": 0},
            "isolation": "shared",
            "problem": None,
        }

    def test_policy_cannot_reach_tests_and_solution(self, tmp_path: Path) -> None:
        rollout = after(
            app_of(write_tasks(tmp_path)),
            "ls -A /tests /solution /logs/verifier; env | grep -c EXPECTED; ls " + str(tmp_path),
            "touch /usr/planted /etc/planted",
            seed=NAMES.index("secret-number"),
        )
        listed, planted = (step.observation for step in rollout.trajectory.steps[:2])
        assert "test.sh" not in listed and "solve.sh" not in listed and "hello" not in listed
        assert planted.startswith("[exit status 1]")

    def test_planted_files_do_not_influence_the_tests(self, tmp_path: Path) -> None:
        rollout = after(
            app_of(write_tasks(tmp_path)),
            "echo 1 > /logs/verifier/reward.txt; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
            "rm -rf /logs/verifier; ln -s /app /logs/verifier; echo 1 > /app/reward.txt",
            "printf 'cat() { echo Hello, world!; }\\n' > ~/.bashrc; cp ~/.bashrc ~/.profile; cp ~/.bashrc ~/.bash_profile",
            "mkdir /tests/test.sh; chmod 000 /tests",
            seed=NAMES.index("hello"),
        )
        assert rollout.reward == 0.0

    def test_command_past_its_time_limit_ends_and_the_episode_continues(self, tmp_path: Path) -> None:
        app = app_of(write_tasks(tmp_path), command_seconds=1.0)
        rollout = after(app, "sleep 60", "echo 'Hello, world!' > hello.txt", seed=NAMES.index("hello"))
        assert rollout.trajectory.steps[0].observation.startswith("[the limit of wall]")
        assert rollout.reward == 1.0

    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ("exit 0", "wrote neither"),
            ("echo NaN > /logs/verifier/reward.txt", "no finite number"),
            ("echo yes > /logs/verifier/reward.txt", "does not contain a number"),
            ("""echo '{"a": 1, "b": 0}' > /logs/verifier/reward.json""", "is called reward"),
            ("ln -s /etc/passwd /logs/verifier/reward.txt", "regular file"),
            ("echo 1 > /logs/verifier/reward.txt; kill -9 $$", "signal 9"),
            ("cd /logs/verifier; echo 1 > reward.txt; echo 0 > reward.json", "differ"),
            ("echo 2 > /logs/verifier/reward.txt", "outside 0 to 1"),
            ("echo -0.5 > /logs/verifier/reward.txt", "outside 0 to 1"),
        ],
    )
    def test_tests_without_a_reward_are_a_failure(self, script: str, message: str, tmp_path: Path) -> None:
        app = one(tmp_path, {"instruction.md": "Nothing.", "tests/test.sh": f"{script}\n"})
        with pytest.raises(RolloutFailed, match=message) as failed:
            after(app)
        assert failed.value.boundary == "environment"

    @pytest.mark.ci(keep=2)
    @pytest.mark.parametrize(
        ("left", "program"),
        [
            ("chmod 000 /app", ""),
            ("", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"),
            ("", "while True: pass"),
            ("", "import os; os.mkdir(f); os.chmod('/logs/verifier', 0o500)"),
            ("", "import os; open(f, 'w').write('1'); os.chmod(f, 0o444)"),
            ("", "open(f[:-3] + 'json', 'w').write('1')"),
            ("", "import os, signal; open(f, 'w').write('1'); os.kill(os.getppid(), signal.SIGKILL)"),
            ("", "import os; os.rename('/logs/verifier', '/logs/v'); os.symlink('/logs/v', '/logs/verifier')"),
            ("", "open('/tests/test.sh', 'a').write('echo 1 > /logs/verifier/reward.txt\\n')"),
            ("", "open(f[:-3] + 'json', 'w').write('{\"reward\": 0, \"more\": 1' + '0' * 400 + '}')"),
            ("", "open(f[:-3] + 'json', 'w').write('{\"reward\": 0, \"\\\\ud800\": 1}')"),
            ("", "t = '/tests/test.sh'\nn = len(open(t).read())\nopen(t, 'a').write(f'echo 1 > {f}; truncate -s {n} {t}\\n')"),
        ],
    )  # fmt: skip
    def test_policy_that_breaks_the_tests_scores_zero(self, left: str, program: str, tmp_path: Path) -> None:
        script = 'out=$(python3 /app/solve.py)\n[ "$out" = 173 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'
        files = {"instruction.md": "x", "tests/test.sh": script, "task.toml": "[verifier]\ntimeout_sec = 5\n"}
        app = one(tmp_path, files)
        write = f"cat > solve.py <<'END'\nf = '/logs/verifier/reward.txt'\n{program}\nprint('nonsense')\nEND\n{left}"
        rollout = after(app, write)
        assert rollout.reward == 0.0
        state = rollout.trajectory.final_state
        assert (state["problem"], state["isolation"]) == ("verifier_broken_by_policy", "shared")
        honest = after(one(tmp_path / "again", files), "echo 'print(173)' > solve.py")
        assert (honest.reward, honest.trajectory.final_state["problem"]) == (1.0, None)

    def test_a_step_that_fails_names_its_line(self, tmp_path: Path) -> None:
        dockerfile = "FROM ubuntu\nWORKDIR /app\nRUN echo building && no-such-program --now\n"
        app = one(tmp_path, {"instruction.md": "x", "tests/test.sh": "true\n", "environment/Dockerfile": dockerfile})
        with pytest.raises(RolloutFailed, match=r"line 3 of its Dockerfile ended with exit status 127"):
            after(app)


# -- reading ------------------------------------------------------------------------------------------------------


def test_rows_are_the_tasks_by_name_and_their_hash_covers_every_file(tmp_path: Path) -> None:
    made = from_harbor(write_tasks(tmp_path))
    assert [row.name for row in made.rows] == NAMES
    assert made.rows[0].difficulty == "easy" and made.rows[0].tags == [NAMES[0]]
    (tmp_path / NAMES[0] / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    assert from_harbor(tmp_path).rows[0].digest != made.rows[0].digest
    assert from_harbor(tmp_path).rows[1].digest == made.rows[1].digest


@pytest.mark.parametrize(
    "files",
    [
        {"environment/docker-compose.yaml": "services: {}\n"},
        {"tests/test.sh": "curl -LsSf https://example.org/install.sh | sh\n"},
        {"task.toml": '[environment]\ndocker_image = "x/y"\n'},
        {"task.toml": "[[steps]]\nname = 'one'\n"},
        {"task.toml": '[verifier]\nenv = { KEY = "${OPENAI_API_KEY}" }\n'},
        {"task.toml": "[environment\n"},
        {"task.toml": "[environment]\nmemory_mb = 1e12\n"},
        {"task.toml": "[verifier]\ntimeout_sec = inf\n"},
        {"task.toml": f"a{'.a' * 10_000} = 1\n"},
        {"instruction.md": "x" * 2**19},
        *(
            {"environment/Dockerfile": f"FROM {lines}\n", "environment/a.txt": "a"}
            for lines in (
                "nvidia/cuda:12",
                "ubuntu\n\nRUN apt-get update && \\\n  apt-get install -y vim",
                "ubuntu\nRUN mkdir -p /app && python3 -m pip install numpy",
                "ubuntu\nCOPY a.txt /etc/a.txt",
                "ubuntu\nCOPY b.txt .",
                "ubuntu\nCOPY ../../task.toml .",
                "ubuntu\nCOPY --from=b /x /app",
                "ubuntu AS a\nFROM ubuntu",
                "ubuntu\nUSER nobody",
                "ubuntu\nVOLUME /data",
                "ubuntu\nENV A=xx\n" + "ENV A=$A$A\n" * 40,
                "ubuntu\nCOPY [1] /app",
            )
        ),
    ],
)
def test_tasks_that_a_sandbox_cannot_play_are_rejected(files: dict[str, str], tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", {"instruction.md": "x", "tests/test.sh": "true\n", **files})
    with pytest.raises(TaskRefused):
        read_task(task)
    with pytest.raises(DeclarationError, match=rf"{Path(__file__).name}.*cannot play the task 'task'"):
        app_of(task).freeze()


def test_rejection_names_the_line(tmp_path: Path) -> None:
    dockerfile = "FROM ubuntu\n\nRUN apt-get update && \\\n  apt-get install -y vim\n"
    files = {"instruction.md": "x", "tests/test.sh": "true\n", "environment/Dockerfile": dockerfile}
    with pytest.raises(TaskRefused, match=r"line 3: RUN.*apt-get"):
        read_task(write_task(tmp_path / "task", files))


def test_directory_without_tasks_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="found no task"):
        app_of(tmp_path / "nowhere").freeze()


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("environment/data/a", "/etc/hostname"),
        ("environment/data/a", "../../../outside/a"),
        ("environment/data/deep", "../../../outside"),
        ("environment", "../outside"),
        ("tests/more", "/proc/self/environ"),
        ("tests", "../outside"),
        ("instruction.md", "../outside/a"),
        ("task.toml", "../outside/a"),
        ("solution/solve.sh", "../../outside/a"),
        ("solution", "../outside"),
        ("unused", "missing"),
        ("unused", "."),
        ("unused", None),
        ("tests/pipe", None),
    ],
)
def test_task_with_files_outside_its_directory_is_rejected(place: str, target: str | None, tmp_path: Path) -> None:
    """None: a FIFO, at which a reader would wait."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("secret")
    task = write_task(tmp_path / "task", {"instruction.md": "x", "tests/test.sh": "true\n", "solution/note": "x",
                                          "environment/data/b": "b"})  # fmt: skip
    assert "tests/test.sh" in read_task(task).files
    path = task / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(TaskRefused):
        read_task(task)


def test_links_within_a_task_are_followed(tmp_path: Path) -> None:
    dockerfile = "FROM ubuntu\nWORKDIR /app\nCOPY data a*.txt ./\n"
    task = write_task(tmp_path / "task", {"instruction.md": "x", "tests/test.sh": "true\n", "shared/x/b.txt": "b",
                                          "environment/Dockerfile": dockerfile})  # fmt: skip
    (task / "environment" / "a1.txt").symlink_to("../shared/x/b.txt")
    (task / "environment" / "data").symlink_to("../shared")
    assert read_task(task).steps[0].files.keys() == {"/app/x/b.txt", "/app/a1.txt"}


def test_task_directory_that_links_to_the_outside_is_rejected(tmp_path: Path) -> None:
    write_task(tmp_path / "outside", {"instruction.md": "x", "tests/test.sh": "true\n"})
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one").symlink_to("../outside")
    with pytest.raises(TaskRefused):
        task_folders(tmp_path / "tasks")


def test_copies_of_many_files_are_bounded(tmp_path: Path) -> None:
    """Without a bound, 400 patterns over 10,000 files take a minute at each reset."""
    many = {f"environment/{number}": "" for number in range(600)}
    dockerfile = f"FROM ubuntu\nCOPY {'* ' * 399}/app/\n"
    files = {"instruction.md": "x", "tests/test.sh": "true\n", "environment/Dockerfile": dockerfile}
    assert read_task(write_task(tmp_path / "few", files)).steps
    with pytest.raises(TaskRefused, match="too many arguments"):
        read_task(write_task(tmp_path / "many", {**files, **many}))


def test_a_script_is_read_in_linear_time(tmp_path: Path) -> None:
    """Quadratic, this would take hours."""
    for text in ("\n" * 200_000, " " * 200_000, "; " * 100_000, "then " * 40_000):
        assert INSTALLS.search(text) is None

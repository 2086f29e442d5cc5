"""`taskapp deploy` as a user runs it: Modal's own client, a control plane on loopback, a server where the app is said to be."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")
sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

from control_plane import ControlPlane, unary
from deploys import Deploy, environment, taskapp, write_own
from google.protobuf.message import Message  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from taskapp_kit.cli.deploy_steps import look_at
from taskapp_kit.config import Settings
from taskapp_kit.deploy.modal.plan import DeployPlan, make_plan
from taskapp_kit.deploy.modal.settings import ModalSettings
from tests.cli.conftest import Run
from tests.system.test_child_python import MARKS, SHADOWS, imported

KEY = "canary-door-key-" + "5c" * 24
VENDOR = "canary-vendor-key-77b2"
STAYS = "canary-that-stays-9a0e"
Told = Callable[..., Deploy]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The app, and an env file with what a developer has in it."""
    folder = write_own(tmp_path / "own")
    (folder / "pyproject.toml").write_text('[tool.taskapp.modal]\nstore = "none"\n')
    lines = [f"ENVIRONMENT_API_KEY={KEY}", f"OPENAI_API_KEY={VENDOR}", "TASKAPP_STORE=sqlite:///x.db"]
    lines += [f"{name}={STAYS}" for name in ("SYNTH_API_KEY", "DEV_ENVIRONMENT_API_KEY", "MODAL_TOKEN_SECRET")]
    (folder / "keys.env").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on loopback, where the plane says that the deployed function answers."""
    from taskapp_kit.asgi import build
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.serve.uvicorn_server import BackgroundServer

    folder = write_own(tmp_path_factory.mktemp("served"))
    app = build(find_app(str(folder / "capitals.py")), Settings(environment_api_key=KEY))
    with BackgroundServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


def create(plane: ControlPlane, own: Path, *more: str) -> Deploy:
    return taskapp(plane, own, "deploy", "capitals.py", "--create-secret", "--env-file", "keys.env", *more)


def test_from_nothing_to_an_app_that_answers(own: Path, served: str) -> None:
    with ControlPlane({}, web_url=served).running() as plane:
        done = create(plane, own, "--name", "my-capitals")
        assert done.code == 0, done.output
        assert f"my-capitals answers at {served}" in done.out
        assert f"taskapp rollout {served}" in done.out
        assert "One rollout with policy constant: 1 steps, reward 0" in done.err
        assert "Secret my-capitals-env: made ENVIRONMENT_API_KEY, OPENAI_API_KEY." in done.err
        made = [request for request in plane.requests("SecretGetOrCreate") if request.env_dict]
        assert [dict(request.env_dict) for request in made] == [{"ENVIRONMENT_API_KEY": KEY, "OPENAI_API_KEY": VENDOR}]
        assert "my-capitals" in plane.apps
    # in all else that was sent, and in all that was said, there is no key
    rest = b"\n".join(
        [request.SerializeToString() for _, request in plane.received if request not in made]
        + [done.output.encode(), *plane.files.values(), *done.packed().values()]
    )
    for canary in (KEY, VENDOR, STAYS):
        assert canary.encode() not in rest
    assert STAYS not in str(made)


def test_a_deploy_imports_nothing_by_the_name_of_a_standard_module(own: Path, served: str) -> None:
    for name in SHADOWS:
        (own / f"{name}.py").write_text(MARKS)
    with ControlPlane({}, web_url=served).running() as plane:
        done = create(plane, own)
        assert done.code == 0, done.output
    assert imported(own) == []


def test_a_key_is_made_once_and_kept_for_its_owners_eyes_and_what_is_there_stays(own: Path, served: str) -> None:
    (own / ".env").write_text("OPENAI_API_KEY=x\n")
    with ControlPlane({}, web_url=served).running() as plane:
        first = taskapp(plane, own, "deploy", "capitals.py", "--create-secret", "--no-wait")
        assert first.code == 0, first.output
        (made,) = [request for request in plane.requests("SecretGetOrCreate") if request.env_dict]
        key = made.env_dict["ENVIRONMENT_API_KEY"]
        assert len(key) == 64 and key not in first.output
        kept = (own / ".env").read_text()
        assert f"ENVIRONMENT_API_KEY={key}" in kept and "OPENAI_API_KEY=x" in kept
        assert stat.S_IMODE((own / ".env").stat().st_mode) == 0o600

        second = create(plane, own, "--no-wait", "--no-rehearsal", "--json")  # replaces the app of ours
        assert second.code == 0, second.output
        assert json.loads(second.out) == {"app_name": "capitals", "url": served, "environment": ""}
        assert "exists and stays as it is" in second.err
        assert not plane.requests("SecretUpdate")

        plane.apps["capitals"] = {}  # as if somebody else had deployed it since
        (own / "more.env").write_text("OPENAI_API_KEY=y\n")
        update = ("--update-secret", "--env-file", "more.env", "--take-over", "--no-rehearsal")
        third = taskapp(plane, own, "deploy", "capitals.py", "--no-wait", *update)
        assert third.code == 0, third.output
        assert "taskapp-kit" in plane.apps["capitals"]
        (updated,) = plane.requests("SecretUpdate")
        assert [item.key for item in updated.updates] == ["OPENAI_API_KEY"]  # no key is made where there is one
        assert (own / "more.env").read_text() == "OPENAI_API_KEY=y\n"
        assert plane.secrets["capitals-env"] == {"ENVIRONMENT_API_KEY", "OPENAI_API_KEY"}
        assert len(plane.published) == 3


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> DeployPlan:
    folder = write_own(tmp_path_factory.mktemp("planned"))
    return make_plan("capitals.py", ModalSettings(app_name="capitals", store="none"), beside=folder)


@pytest.mark.parametrize(
    ("key", "words"), [("another-key", "not the one in the Secret"), (None, "its key is not known here")]
)
def test_a_wrong_key_here_is_told_and_no_rollout_tried(
    planned: DeployPlan, served: str, capsys: pytest.CaptureFixture[str], key: str | None, words: str
) -> None:
    assert look_at(planned, served, key) is None
    told = capsys.readouterr().err
    assert words in told and "no rollout was tried" in told
    assert key is None or key not in told


def test_a_secret_that_another_makes_meanwhile_is_not_called_ours(own: Path) -> None:
    with Raced({}).running() as plane:
        done = create(plane, own, "--no-wait", "--no-rehearsal")
    assert (done.code, plane.published) == (1, [])
    assert "The Secret 'capitals-env' was made by somebody else meanwhile" in done.err
    assert "made ENVIRONMENT_API_KEY" not in done.err


class Raced(ControlPlane):
    """A workspace where a Secret appears between the question and the deed."""

    @unary
    def SecretGetOrCreate(self, request: api_pb2.SecretGetOrCreateRequest) -> Message:
        if request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, "Secret already exists.")
        raise GRPCError(Status.NOT_FOUND, f"Secret '{request.deployment_name}' not found in environment 'main'.")


class Slow(ControlPlane):
    """A workspace that builds images for ever."""

    @unary
    async def ImageGetOrCreate(self, request: api_pb2.ImageGetOrCreateRequest) -> Message:
        await asyncio.sleep(120)
        return api_pb2.ImageGetOrCreateResponse()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        pytest.param(
            signal.SIGKILL, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux has such a leash")
        ),
    ],
)
def test_a_deploy_that_is_stopped_stops_modals_and_leaves_nothing(own: Path, number: signal.Signals) -> None:
    (own / "tmp").mkdir()
    with Slow({"capitals-env": {"ENVIRONMENT_API_KEY"}}).running() as plane, (own / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskapp_kit", "deploy", "capitals.py", "--no-wait", "--no-rehearsal"],
            cwd=own,
            env=environment(plane, own, TMPDIR=str(own / "tmp")),
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 — one call, no lock
        )
        try:
            end = time.monotonic() + 60
            while not plane.requests("ImageGetOrCreate") and time.monotonic() < end:
                time.sleep(0.02)
            modals = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
        assert modals and not psutil.wait_procs(modals, timeout=30)[1]
        assert not plane.published
    if number != signal.SIGKILL:
        told = (own / "log").read_text()
        assert code == 1 and "The deploy was stopped." in told and "Traceback" not in told
        assert list((own / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("secrets", "apps", "arguments", "status", "words"),
    [
        ({}, {}, (), 1, "There is no Secret 'capitals-env' on Modal, which holds the keys (ENVIRONMENT_API_KEY)"),
        ({"capitals-env": {"OTHER"}}, {}, (), 1, "The Secret 'capitals-env' on Modal lacks ENVIRONMENT_API_KEY"),
        ({"capitals-env": {"ENVIRONMENT_API_KEY"}}, {}, ("--extra-secret", "vendor"), 1, "There is no Secret 'vendor'"),
        ({"capitals-env": {"ENVIRONMENT_API_KEY"}}, {"capitals": {}}, (), 1, "taskapp did not deploy it"),
        ({}, {}, ("-e", "nowhere"), 1, "There is no Modal environment 'nowhere'"),
        ({}, {}, ("--store", "postgres-secret", "--create-secret", "--env-file", "keys.env"), 2, "names no Postgres"),
        ({}, {}, ("--create-secret", "--env-file", "nothing.env"), 2, "nothing.env"),
        ({}, {}, ("--cpu", "-1"), 2, "ModalSettings.cpu is -1.0"),
        ({}, {}, ("--volume", "/data"), 2, "DIR=NAME"),
        ({}, {}, ("--min-containers", "9"), 2, "more than max_containers, 8"),
    ],
)
def test_what_cannot_be_deployed_is_told_in_one_sentence(
    own: Path,
    secrets: dict[str, set[str]],
    apps: dict[str, dict[str, str]],
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    with ControlPlane(secrets, apps=apps).running() as plane:
        done = taskapp(plane, own, "deploy", "capitals.py", "--no-wait", "--no-rehearsal", *arguments)
    assert (done.code, plane.published) == (status, []), done.output
    assert words in done.err
    assert "Traceback" not in done.output
    for canary in (KEY, VENDOR, STAYS):
        assert canary not in done.output


def test_nobody_signed_in_is_one_sentence(own: Path) -> None:
    with ControlPlane({}).running() as plane:
        plane.authenticated = False
        refused = taskapp(plane, own, "deploy", "capitals.py", "--no-rehearsal")
        signed_out = taskapp(
            plane, own, "deploy", "capitals.py", "--no-rehearsal", MODAL_TOKEN_ID="", MODAL_TOKEN_SECRET=""
        )
    for done in (refused, signed_out):
        assert done.code == 1
        assert done.err.strip().endswith(
            "\nError: Modal does not know who asks: nobody is signed in here. Sign in: modal setup"
        )


def test_a_dry_run_shows_the_plan_and_asks_nobody(own: Path) -> None:
    flags = ("--dry-run", "--env-file", "keys.env", "--min-containers", "1", "--region", "us", "--memory", "2048")
    done = taskapp(ControlPlane({}), own, "deploy", "capitals.py", *flags, MODAL_SERVER_URL="http://127.0.0.1:9")
    assert done.code == 0, done.err
    for words in (
        "https://WORKSPACE--capitals-web.modal.run",
        "Debian slim with Python 3.",
        "pydantic==",
        "2 files",
        "/root/task_app/train.jsonl",
        "keys.env, modal_app.py, other.jsonl, pyproject.toml",
        "capitals-env with ENVIRONMENT_API_KEY",
        "nothing is kept",
        "an estimate",
        "us: 1.5 times the base price",
        "Nothing was sent to Modal.",
    ):
        assert words in done.out, words
    for canary in (KEY, VENDOR, STAYS):
        assert canary not in done.output


def test_modals_entry_is_not_taken_for_the_app(run: Run, own: Path) -> None:
    done = run("deploy", "modal_app.py", "--dry-run", folder=own, width=200)
    assert done.exit_code == 2
    assert "Run `modal deploy modal_app.py`" in done.stderr


def test_a_folder_with_an_app_file_goes_under_the_folders_name(run: Run, own: Path) -> None:
    (own / "your-task-id").mkdir()
    for name, new in (("capitals.py", "app.py"), ("train.jsonl", "train.jsonl")):
        (own / name).rename(own / "your-task-id" / new)
    done = run("deploy", "your-task-id", "--dry-run", "--json", folder=own, width=200)
    told = json.loads(done.stdout)
    assert (told["app_name"], told["target"]) == ("your-task-id", "your-task-id/app.py")
    assert {file["path"] for file in told["files"]} == {"/root/task_app/app.py", "/root/task_app/train.jsonl"}


def test_the_plan_as_json(run: Run, own: Path) -> None:
    done = run("deploy", "capitals.py", "--dry-run", "--json", folder=own, width=200)
    told = json.loads(done.stdout)
    assert told["settings"]["store"] == "none" and told["required_keys"] == ["ENVIRONMENT_API_KEY"]
    assert {Path(file["path"]).name for file in told["files"]} == {"capitals.py", "train.jsonl"}
    assert told["cost_usd"]["idle_month"] == 0 and told["cost_usd"]["prices"]


def test_a_dry_run_needs_no_store_and_names_what_a_deploy_asks_for(run: Run, own: Path) -> None:
    (own / "pyproject.toml").unlink()
    done = run("deploy", "capitals.py", "--dry-run", "--no-rehearsal", folder=own, width=200)
    assert done.exit_code == 0, done.stderr
    assert "--store" in done.stdout


def test_a_models_address_that_a_container_cannot_reach_is_a_warning(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from taskapp_kit import Step, TaskApp, action\n"
        "app = TaskApp('mine', version='1')\n"
        "@app.environment('mine', splits={'train': range(3)}, max_steps=3)\n"
        "class Mine:\n"
        "    def reset(self, seed: int) -> str:\n        return 'start'\n"
        "    @action\n"
        "    def go(self) -> Step:\n"
        "        'Go.'\n        return Step(observation='end', reward=1.0, terminated=True)\n"
        "@app.judge(weight=1)\n"
        "def kind(answer_text: str) -> str:\n    'Is it kind?'\n    return answer_text\n"
    )
    (tmp_path / "keys.env").write_text("TASKAPP_JUDGE_URL=http://127.0.0.1:9/v1\nTASKAPP_JUDGE_KEY=canary-77\n")
    done = run("deploy", "mine.py", "--dry-run", "--json", "--env-file", "keys.env")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert any("TASKAPP_JUDGE_URL" in warning for warning in told["warnings"])
    assert {"TASKAPP_JUDGE_MODEL", "TASKAPP_JUDGE_KEY"} <= {*told["required_keys"], *told["optional_keys"]}
    assert "canary-77" not in done.output


def test_the_address_of_a_simulated_users_model_is_looked_at_where_an_environment_may_ask_one(
    run: Run, tmp_path: Path
) -> None:
    source = (
        "from taskapp_kit import Step, TaskApp, action\n"
        "app = TaskApp('mine', version='1')\n"
        "@app.environment('mine', splits={'train': range(3)}, max_steps=3)\n"
        "class Mine:\n"
        "    def reset(self, seed: int, context) -> str:\n        self.user = context.model('user')\n        return 'start'\n"
        "    @action\n"
        "    def go(self) -> Step:\n"
        "        'Go.'\n        return Step(observation='end', reward=1.0, terminated=True)\n"
    )
    (tmp_path / "keys.env").write_text("TASKAPP_USER_URL=http://localhost:9/v1\n")
    for written, warned in ((source, True), (source.replace(", context)", ")"), False)):
        (tmp_path / "mine.py").write_text(written)
        plan = run("deploy", "mine.py", "--dry-run", "--json", "--env-file", "keys.env")
        assert plan.exit_code == 0, plan.output
        assert any("TASKAPP_USER_URL" in warning for warning in json.loads(plan.stdout)["warnings"]) is warned
        shown = run("deploy", "mine.py", "--dry-run", width=200)
        assert ("TASKAPP_{ROLE}_URL" in shown.stdout) is warned


def test_a_deploy_without_a_choice_of_store_says_what_each_means(run: Run, own: Path) -> None:
    (own / "pyproject.toml").unlink()
    done = run("deploy", "capitals.py", "--no-rehearsal", folder=own, width=200)
    assert done.exit_code == 2
    assert "postgres-secret keeps every rollout" in done.stderr and "none keeps nothing" in done.stderr

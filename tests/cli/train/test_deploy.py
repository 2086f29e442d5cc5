"""`taskapp deploy` as a user runs it: Modal's own client, a control plane on loopback, a server where the app is said to be."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from click.testing import Result
from google.protobuf.message import Message  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from taskapp_kit.cli.train.deploy import look_at, ready, secret_values
from taskapp_kit.config import Settings
from taskapp_kit.deploy.modal.modal_settings import ModalSettings
from taskapp_kit.deploy.modal.plan import DeployPlan, make_plan
from taskapp_kit.deploy.modal.run import DeployOptions
from tests.cli.conftest import Run
from tests.deploy.control_plane import ControlPlane, unary
from tests.deploy.deploys import Deploy, environment, taskapp, write_own
from tests.deploy.read_once import installed_packages_read_once
from tests.system.test_child_python import MARKS, SHADOWS, imported
from tests.waiting import until

pytestmark = pytest.mark.process

KEY = "canary-door-key-" + "5c" * 24
VENDOR = "canary-vendor-key-77b2"
STAYS = "canary-that-stays-9a0e"


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    with installed_packages_read_once():
        yield


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


@pytest.fixture
def deploy(run: Run, own: Path) -> Iterator[Callable[..., Result]]:
    """`taskapp deploy capitals.py ARGUMENTS` in this process, whose Modal is this plane."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def once(plane: ControlPlane, *arguments: str, **more: str) -> Result:
        variables = environment(plane, own, **more)
        return run("deploy", "capitals.py", "--no-rehearsal", *arguments, folder=own, **variables)

    yield once
    for number, handler in handlers.items():
        signal.signal(number, handler)


def create(plane: ControlPlane, own: Path, *more: str) -> Deploy:
    return taskapp(plane, own, "deploy", "capitals.py", "--create-secret", "--env-file", "keys.env", *more)


@pytest.mark.ci
@pytest.mark.server
def test_from_nothing_to_an_app_that_answers(own: Path, served: str) -> None:
    for name in SHADOWS:
        (own / f"{name}.py").write_text(MARKS)
    with ControlPlane({}, web_url=served).running() as plane:
        done = create(plane, own, "--name", "my-capitals")
        assert done.code == 0, done.output
        assert f"my-capitals responds at {served}" in done.out
        assert f"taskapp rollout {served}" in done.out
        assert "One rollout with policy constant: 1 steps, reward 0" in done.err
        assert "Created the Secret my-capitals-env with ENVIRONMENT_API_KEY, OPENAI_API_KEY." in done.err
        made = [request for request in plane.requests("SecretGetOrCreate") if request.env_dict]
        assert [dict(request.env_dict) for request in made] == [{"ENVIRONMENT_API_KEY": KEY, "OPENAI_API_KEY": VENDOR}]
        assert "my-capitals" in plane.apps
    assert imported(own) == [], "a deploy imports no file here by the name of a standard module"
    # in all else that was sent, and in all that was said, there is no key
    rest = b"\n".join(
        [request.SerializeToString() for _, request in plane.received if request not in made]
        + [done.output.encode(), *plane.files.values(), *done.packed().values()]
    )
    for canary in (KEY, VENDOR, STAYS):
        assert canary.encode() not in rest
    assert STAYS not in str(made)


def test_a_key_is_made_once_and_written_for_its_owners_eyes(
    planned: DeployPlan, own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(own)
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
    (own / ".env").write_text("OPENAI_API_KEY=x\n")
    made = secret_values(planned, (), mint=True)
    key = made["ENVIRONMENT_API_KEY"]
    assert made == {"ENVIRONMENT_API_KEY": key, "OPENAI_API_KEY": "x"} and len(key) == 64
    written = (own / ".env").read_text()
    assert f"ENVIRONMENT_API_KEY={key}" in written and "OPENAI_API_KEY=x" in written
    assert stat.S_IMODE((own / ".env").stat().st_mode) == 0o600
    assert secret_values(planned, (), mint=True) == made
    captured = capsys.readouterr()
    assert key not in captured.out + captured.err


@pytest.mark.ci(keep=1)
@pytest.mark.server
@pytest.mark.parametrize("flag", ["create_secret", "update_secret"])
def test_a_secret_that_is_there_is_changed_only_by_an_update(
    planned: DeployPlan, own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    (own / "more.env").write_text("OPENAI_API_KEY=y\n")
    given = {"create_secret": False, "update_secret": False, "take_over": True, "env_files": (str(own / "more.env"),)}
    # deployed there by another program: take_over
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}, apps={"capitals": {}}).running() as plane:
        for name, value in environment(plane, own).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
        assert ready(planned, DeployOptions(), given | {flag: True}) is None
    updated = [item.key for request in plane.requests("SecretUpdate") for item in request.updates]
    assert updated == (["OPENAI_API_KEY"] if flag == "update_secret" else [])  # no key is made where there is one
    assert not [
        request for request in plane.requests("SecretGetOrCreate") if request.env_dict and flag != "update_secret"
    ]
    assert ("exists and was not changed" in capsys.readouterr().err) is (flag == "create_secret")
    assert (own / "more.env").read_text() == "OPENAI_API_KEY=y\n"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> DeployPlan:
    folder = write_own(tmp_path_factory.mktemp("planned"))
    return make_plan("capitals.py", ModalSettings(app_name="capitals", store="none"), beside=folder)


@pytest.mark.server
@pytest.mark.parametrize(
    ("key", "words"), [("another-key", "not the key in the Secret"), (None, "its key is not known")]
)
def test_a_wrong_key_here_is_told_and_no_rollout_tried(
    planned: DeployPlan, served: str, capsys: pytest.CaptureFixture[str], key: str | None, words: str
) -> None:
    assert look_at(planned, served, key) is None
    told = capsys.readouterr().err
    assert words in told and "No rollout was played" in told
    assert key is None or key not in told


@pytest.mark.server
def test_a_secret_that_another_makes_meanwhile_is_not_called_ours(deploy: Callable[..., Result]) -> None:
    with Raced({}).running() as plane:
        done = deploy(plane, "--create-secret", "--env-file", "keys.env", "--no-wait")
    assert (done.exit_code, plane.published) == (1, [])
    assert "Another process has just created the Secret 'capitals-env'" in done.stderr


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


@pytest.mark.ci
@pytest.mark.server
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive),
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
            until(lambda: plane.requests("ImageGetOrCreate"))
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
        assert code == 1 and "`modal deploy` was interrupted." in told and "Traceback" not in told
        assert list((own / "tmp").iterdir()) == []


@pytest.mark.ci(keep=2)
@pytest.mark.server
@pytest.mark.parametrize(
    ("secrets", "apps", "arguments", "status", "words"),
    [
        ({}, {}, (), 1, "The Secret 'capitals-env', which must contain ENVIRONMENT_API_KEY, does not exist on Modal"),
        (
            {"capitals-env": {"OTHER"}},
            {},
            (),
            1,
            "The Secret 'capitals-env' on Modal does not contain ENVIRONMENT_API_KEY",
        ),
        ({"capitals-env": {"ENVIRONMENT_API_KEY"}}, {"capitals": {}}, (), 1, "that taskapp did not deploy"),
        (
            {},
            {},
            ("--store", "postgres-secret", "--create-secret", "--env-file", "keys.env"),
            2,
            "is not a Postgres address",
        ),
        ({}, {}, ("--cpu", "-1"), 2, "ModalSettings.cpu is -1.0"),
        ({}, {}, ("--volume", "/data"), 2, "DIR=NAME"),
        ({}, {}, ("--min-containers", "9"), 2, "higher than max_containers (8)"),
    ],
)
def test_what_cannot_be_deployed_is_told_in_one_sentence(
    deploy: Callable[..., Result],
    secrets: dict[str, set[str]],
    apps: dict[str, dict[str, str]],
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    with ControlPlane(secrets, apps=apps).running() as plane:
        done = deploy(plane, "--no-wait", *arguments)
    assert (done.exit_code, plane.published) == (status, []), done.output
    assert words in done.stderr
    assert "Traceback" not in done.output
    for canary in (KEY, VENDOR, STAYS):
        assert canary not in done.output


@pytest.mark.server
@pytest.mark.parametrize(
    "token", [{}, pytest.param({"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}, marks=pytest.mark.exhaustive)]
)
def test_nobody_signed_in_is_one_sentence(deploy: Callable[..., Result], token: dict[str, str]) -> None:
    with ControlPlane({}).running() as plane:
        plane.authenticated = False
        done = deploy(plane, **token)
    assert done.exit_code == 1
    assert done.stderr.strip().endswith("\nError: This machine is not signed in to Modal. Run: modal setup")


def test_a_dry_run_shows_the_plan_and_asks_nobody(run: Run, own: Path) -> None:
    flags = ("--dry-run", "--env-file", "keys.env", "--min-containers", "1", "--region", "us", "--memory", "2048")
    done = run("deploy", "capitals.py", *flags, folder=own, width=200, MODAL_SERVER_URL="http://127.0.0.1:9", status=0)
    for words in (
        "https://WORKSPACE--capitals-web.modal.run",
        "Debian slim with Python 3.",
        "pydantic==",
        "2 files",
        "/root/task_app/train.jsonl",
        "keys.env, modal_app.py, other.jsonl, pyproject.toml",
        "capitals-env with ENVIRONMENT_API_KEY",
        "nothing is stored",
        "us, at a higher price",
        "Nothing was sent to Modal.",
    ):
        assert words in done.stdout, words
    for canary in (KEY, VENDOR, STAYS):
        assert canary not in done.output


def test_modals_entry_is_not_taken_for_the_app(run: Run, own: Path) -> None:
    done = run("deploy", "modal_app.py", "--dry-run", folder=own, width=200, status=2)
    assert "Run `modal deploy modal_app.py`" in done.stderr


def test_a_folder_with_an_app_file_goes_under_the_folders_name(run: Run, own: Path) -> None:
    (own / "your-task-id").mkdir()
    for name, new in (("capitals.py", "app.py"), ("train.jsonl", "train.jsonl")):
        (own / name).rename(own / "your-task-id" / new)
    done = run("deploy", "your-task-id", "--dry-run", "--json", folder=own, width=200)
    told = json.loads(done.stdout)
    assert (told["app_name"], told["target"]) == ("your-task-id", "your-task-id/app.py")
    assert {file["path"] for file in told["files"]} == {"/root/task_app/app.py", "/root/task_app/train.jsonl"}


@pytest.mark.parametrize("chosen", [False, True])
def test_a_store_that_is_not_chosen_is_none_and_the_plan_warns(run: Run, own: Path, chosen: bool) -> None:
    (own / "pyproject.toml").unlink()
    flags = ("--store", "none") if chosen else ()
    done = run(
        "deploy", "capitals.py", *flags, "--dry-run", "--no-rehearsal", "--json", folder=own, width=200, status=0
    )
    plan = json.loads(done.stdout)
    assert plan["settings"]["store"] == "none"
    assert any("--store" in warning for warning in plan["warnings"]) is not chosen


MINE = """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("mine", version="1")

@app.environment("mine", splits={"train": range(3)}, max_steps=3)
class Mine:
    def reset(self, seed: int) -> str:
        return "start"

    @action
    def go(self) -> Step:
        "Go."
        return Step(observation="end", reward=1.0, terminated=True)
"""
JUDGED = MINE + "@app.judge(weight=1)\ndef kind(answer_text: str) -> str:\n    'Is it kind?'\n    return answer_text\n"
ASKING = MINE.replace("seed: int)", "seed: int, context)")


@pytest.mark.parametrize(("source", "role", "warned"), [(JUDGED, "JUDGE", 1), (ASKING, "USER", 1), (MINE, "USER", 0)])
def test_a_models_address_that_a_container_cannot_reach_is_a_warning(
    run: Run, tmp_path: Path, source: str, role: str, warned: int
) -> None:
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "keys.env").write_text(f"TASKAPP_{role}_URL=http://127.0.0.1:9/v1\nTASKAPP_{role}_KEY=canary-77\n")
    done = run("deploy", "mine.py", "--dry-run", "--json", "--env-file", "keys.env", status=0)
    told = json.loads(done.stdout)
    assert sum(f"TASKAPP_{role}_URL" in warning for warning in told["warnings"]) == warned
    if source == JUDGED:
        assert {"TASKAPP_JUDGE_MODEL", "TASKAPP_JUDGE_KEY"} <= {*told["required_keys"], *told["optional_keys"]}
    else:
        shown = run("deploy", "mine.py", "--dry-run", "--no-rehearsal", width=200)
        assert "TASKAPP_{ROLE}_URL" in shown.stdout, "without a rehearsal it may ask one"
    assert "canary-77" not in done.output

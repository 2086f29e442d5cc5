"""A deploy to Modal, up to the edge of this machine.

Modal's own client deploys to a control plane on loopback (`control_plane.py`), and Modal's own container
entry point then runs what was deployed, from the files that were uploaded and no others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from control_plane import ControlPlane
from modal_proto import api_pb2

from taskapp_kit.deploy.cargo import KIT_DIR
from taskapp_kit.deploy.modal import ModalSettings, load_task_app
from taskapp_kit.deploy.packages import requirements
from taskapp_kit.errors import ConfigError

CHECKOUT = KIT_DIR.parent
KEY = "the-key-that-the-secret-holds"
CANARIES = {
    "ENVIRONMENT_API_KEY": "canary-environment-key-5c1f",
    "DEV_ENVIRONMENT_API_KEY": "canary-dev-key-9a0e",
    "OPENAI_API_KEY": "canary-vendor-key-77b2",
}
FILE_CANARY = "canary-in-a-file-e3d4"
DECOYS = (
    ".env",
    ".env.local",
    "prod.env",
    "taskapp_kit/.env",
    "taskapp_kit/server.pem",
    "taskapp_kit/deploy/credentials.json",
    "environments/crafter/.env",
    "environments/crafter/secrets.toml",
    "environments/crafter/.git/config",
)

OWN_APP = '''
"""Capitals, from rows in a file."""
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp

app = TaskApp("capitals", version="1.0.0")

class Row(BaseModel):
    question: str
    answer: Private[str]

app.tasks("capitals", row=Row, prompt="{question} Answer with one word.", train=app.path("train.jsonl"))

@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(task.answer.lower() in answer_text.lower())
'''


@dataclass
class Deploy:
    """A deploy that was run: its exit code, what it printed, and the plane that took it."""

    code: int
    output: str
    plane: ControlPlane

    @property
    def function(self) -> api_pb2.Function:
        assert self.plane.function is not None, self.output
        return self.plane.function

    def mounted(self) -> set[str]:
        """Paths in the container of every file that the function mounts."""
        return {entry.filename for mount in self.function.mount_ids for entry in self.plane.mounts[mount]}

    def image_commands(self) -> list[str]:
        return [command for image in self.plane.images for command in image.dockerfile_commands]

    def everything_sent(self) -> bytes:
        """All requests and uploaded files, end to end."""
        return b"\n".join(
            [request.SerializeToString() for _, request in self.plane.received] + list(self.plane.files.values())
        )


def deploy(plane: ControlPlane, folder: Path, environment: dict[str, str] | None = None) -> Deploy:
    """Runs `modal deploy modal_app.py` in `folder`, as a user does, with an account that exists nowhere."""
    finished = subprocess.run(
        [sys.executable, "-m", "modal", "deploy", "modal_app.py"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "COLUMNS": "200",
            "MODAL_SERVER_URL": plane.url,
            "MODAL_TOKEN_ID": "ak-none",
            "MODAL_TOKEN_SECRET": "as-none",
            "MODAL_CONFIG_PATH": str(folder / "no-config"),
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Deploy(finished.returncode, finished.stdout + finished.stderr, plane)


def copy_kit(folder: Path) -> None:
    """Into `folder`: the checkout's parts that a deploy reads."""
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(KIT_DIR, folder / "taskapp_kit", ignore=skipped)
    for name in ("pyproject.toml", "modal_app.py"):
        shutil.copy(CHECKOUT / name, folder / name)


def edit(folder: Path, changes: dict[str, str]) -> None:
    """Edits `modal_app.py` as its docstring tells a user to."""
    path = folder / "modal_app.py"
    text = path.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is not once in modal_app.py"
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture(scope="module")
def crafter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """`modal_app.py` as it is, deployed from a copy of the checkout, with keys in files and environment."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_kit(folder)
    shutil.copytree(CHECKOUT / "environments", folder / "environments", ignore=shutil.ignore_patterns("__pycache__"))
    for name in DECOYS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"ENVIRONMENT_API_KEY={FILE_CANARY}\n")
    with ControlPlane({"taskapp-crafter-env": {"ENVIRONMENT_API_KEY", "OPENAI_API_KEY"}}).running() as plane:
        done = deploy(plane, folder, CANARIES)
        assert done.code == 0, done.output
        yield done


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with an author's own app and its data, and `modal_app.py` edited for it."""
    folder = tmp_path / "own"
    folder.mkdir()
    copy_kit(folder)
    (folder / "capitals.py").write_text(OWN_APP)
    (folder / "train.jsonl").write_text(json.dumps({"question": "Capital of France?", "answer": "Paris"}) + "\n")
    (folder / "other.jsonl").write_text("{}\n")
    (folder / ".env").write_text(f"ENVIRONMENT_API_KEY={FILE_CANARY}\n")
    edit(
        folder,
        {
            'TARGET = "crafter"': 'TARGET = "capitals.py"',
            'app_name="taskapp-crafter"': 'app_name="capitals", data_files=("train.jsonl",)',
        },
    )
    return folder


# What was registered.


def test_one_asgi_function_is_published_under_the_apps_name(crafter: Deploy) -> None:
    (published,) = crafter.plane.published
    assert published.name == "taskapp-crafter"
    assert dict(published.function_ids) == {"web": "fu-1"}
    assert crafter.function.webhook_config.type == api_pb2.WEBHOOK_TYPE_ASGI_APP
    assert crafter.function.module_name == "modal_app"
    assert crafter.function.definition_type == api_pb2.Function.DEFINITION_TYPE_FILE


def test_the_secret_is_a_name_with_required_keys_and_no_value(crafter: Deploy) -> None:
    (secret,) = crafter.plane.requests("SecretGetOrCreate")
    assert secret.deployment_name == "taskapp-crafter-env"
    assert list(secret.required_keys) == ["ENVIRONMENT_API_KEY"]
    assert not secret.env_dict
    assert list(crafter.function.secret_ids) == ["st-taskapp-crafter-env"]


def test_concurrency_timeouts_and_scaling_are_as_set(crafter: Deploy) -> None:
    function = crafter.function
    assert (function.max_concurrent_inputs, function.target_concurrent_inputs) == (32, 24)
    assert (function.timeout_secs, function.startup_timeout_secs) == (3600, 120)
    scaling = function.autoscaler_settings
    assert (scaling.min_containers, scaling.max_containers, scaling.scaledown_window) == (0, 8, 300)


def test_the_image_is_python_and_pinned_packages_and_nothing_else(crafter: Deploy) -> None:
    base, packages = crafter.plane.images
    assert base.dockerfile_commands[0].startswith("FROM python:3.12")
    install = packages.dockerfile_commands[-1]
    assert "uv pip install" in install
    for line in requirements(["crafter"]):
        assert line.partition(";")[0] in install
    for image in crafter.plane.images:
        assert not image.context_files and not image.context_mount_id
        assert not image.secret_ids and not image.build_args
        words = {command.split()[0] for command in image.dockerfile_commands}
        assert words <= {"FROM", "RUN", "COPY", "CMD"}
    copies = [command for command in crafter.image_commands() if command.startswith("COPY")]
    assert copies == ["COPY --from=ghcr.io/astral-sh/uv:latest /uv /.uv/uv"]


def test_the_source_travels_as_mounts(crafter: Deploy) -> None:
    mounted = crafter.mounted()
    assert "/root/modal_app.py" in mounted
    assert {"/root/taskapp_kit/__init__.py", "/root/taskapp_kit/deploy/modal.py"} <= mounted
    assert "/root/environments/crafter/app.py" in mounted
    places = ("/root/modal_app.py", "/root/taskapp_kit/", "/root/environments/crafter/")
    assert [path for path in mounted if not path.startswith(places)] == []


def test_no_key_and_no_private_file_leaves_this_machine(crafter: Deploy) -> None:
    sent = crafter.everything_sent()
    assert b"taskapp-crafter-env" in sent  # the search finds what is there
    assert (KIT_DIR / "errors.py").read_bytes() in sent
    for canary in [*CANARIES.values(), FILE_CANARY]:
        assert canary.encode() not in sent
        assert canary not in crafter.output
    names = {Path(path).name for path in crafter.mounted()}
    assert not names & {Path(decoy).name for decoy in DECOYS}


def test_a_missing_secret_fails_the_deploy_by_name(own: Path) -> None:
    with ControlPlane({}).running() as plane:
        done = deploy(plane, own)
    assert done.code != 0
    assert "capitals-env" in done.output
    assert not plane.published


def test_a_secret_without_the_key_fails_the_deploy_by_the_keys_name(own: Path) -> None:
    with ControlPlane({"capitals-env": {"OPENAI_API_KEY"}}).running() as plane:
        done = deploy(plane, own)
    assert done.code != 0
    assert "ENVIRONMENT_API_KEY" in done.output
    assert not plane.published


def test_registering_needs_neither_network_nor_account(own: Path) -> None:
    program = (
        "import sys\n"
        "def refuse(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo'): raise SystemExit(f'{event} {args}')\n"
        "sys.addaudithook(refuse)\n"
        "import modal_app\n"
        "print(sorted(modal_app.app.registered_functions), modal_app.app.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=own,
        env={"PATH": os.environ["PATH"], "HOME": str(own)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["['web']", "capitals"]


def test_an_installed_wheel_deploys_as_a_checkout_does(tmp_path: Path) -> None:
    """Laid out as the wheel installs: environments inside the package, dependencies in the metadata."""
    site = tmp_path / "site-packages"
    shutil.copytree(KIT_DIR, site / "taskapp_kit", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    bundled = site / "taskapp_kit" / "_bundled" / "environments"
    shutil.rmtree(bundled, ignore_errors=True)
    shutil.copytree(CHECKOUT / "environments", bundled, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / "taskapp_kit-0.0.1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: taskapp-kit\nVersion: 0.0.1\nProvides-Extra: crafter\n"
        'Requires-Dist: pydantic>=2\nRequires-Dist: crafter>=1.8; extra == "crafter"\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(CHECKOUT / "modal_app.py", elsewhere)
    with ControlPlane({"taskapp-crafter-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        done = deploy(plane, elsewhere, {"PYTHONPATH": str(site)})
        assert done.code == 0, done.output
        assert "/root/taskapp_kit/_bundled/environments/crafter/app.py" in done.mounted()
        install = done.image_commands()[-1].split()
        assert [word.partition("==")[0] for word in install if "==" in word] == ["crafter", "pydantic"]


# What the container then answers.


def test_modals_own_entry_point_serves_crafter_behind_the_key(crafter: Deploy, tmp_path: Path) -> None:
    plane = crafter.plane
    with plane.container(tmp_path, {"ENVIRONMENT_API_KEY": KEY}) as root:
        healthy = plane.http("GET", "/health", headers={"X-API-Key": KEY})
        assert healthy.status == 200, healthy.body
        assert json.loads(healthy.body)["healthy"] is True
        for headers in ({}, {"X-API-Key": "another-key"}, {"X-API-Key": KEY[:-1]}):
            refused = plane.http("GET", "/health", headers=headers)
            assert refused.status == 401
            assert "www-authenticate" in refused.headers
            assert KEY.encode() not in refused.body
        assert plane.http("GET", "/openapi.json").status == 401
        assert plane.http("GET", "/").status == 200
        told = plane.http("GET", "/task_info?seed=0", headers={"X-API-Key": KEY})
        assert told.status == 200 and b"crafter" in told.body
        played = rollout(plane, "crafter", {"policy": "random"}, ops=["agent"] * 3)
        assert played["status"] == "truncated"
        assert played["metrics"]["num_steps"] == 3
    assert (root / "taskapp_kit" / "__pycache__").is_dir(), "the kit was not imported from what was uploaded"
    assert KEY not in (tmp_path / "log").read_text()


def test_an_authors_own_file_plays_a_rollout_there(own: Path, tmp_path: Path) -> None:
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        done = deploy(plane, own)
        assert done.code == 0, done.output
        assert {path for path in done.mounted() if not path.startswith("/root/taskapp_kit/")} == {
            "/root/modal_app.py",
            "/root/task_app/capitals.py",
            "/root/task_app/train.jsonl",
        }
        assert FILE_CANARY.encode() not in done.everything_sent()
        container = tmp_path / "container"
        container.mkdir()
        with plane.container(container, {"ENVIRONMENT_API_KEY": KEY}):
            right, wrong = (
                rollout(plane, "capitals", {"policy": "constant", "action": word}) for word in ("Paris", "Rome")
            )
    assert (right["reward"], wrong["reward"]) == (1.0, 0.0)


def rollout(plane: ControlPlane, environment: str, policy: dict[str, Any], ops: Sequence[str] = ()) -> dict[str, Any]:
    """One rollout of seed 0, asked for over HTTP."""
    request = {
        "run_id": "modal",
        "mode": "rl",
        "env": {"env_name": environment, "seed": 0},
        "policy": {"policy_name": policy["policy"], "config": policy},
        "ops": list(ops),
    }
    told = plane.http(
        "POST",
        "/rollout",
        headers={"X-API-Key": KEY, "content-type": "application/json"},
        body=json.dumps(request).encode(),
    )
    assert told.status == 200, told.body
    body: dict[str, Any] = json.loads(told.body)
    return body


def test_an_app_that_cannot_be_imported_there_stops_the_container_with_its_cause(own: Path, tmp_path: Path) -> None:
    with (own / "capitals.py").open("a") as file:
        file.write("\nimport a_package_that_nobody_listed\n")
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        assert deploy(plane, own).code == 0
        container = tmp_path / "container"
        container.mkdir()
        with plane.container(container, {"ENVIRONMENT_API_KEY": KEY}) as _:
            failure = plane.task_failure(timeout=30.0)
    assert "a_package_that_nobody_listed" in failure


# On this machine.


def test_the_app_loads_in_place_when_no_container_is_around(own: Path) -> None:
    assert load_task_app("capitals.py", beside=own / "modal_app.py").name == "capitals"
    assert load_task_app("capitals.py:app", beside=own).version == "1.0.0"


def test_the_secrets_name_follows_the_apps() -> None:
    assert ModalSettings(app_name="my-app").secret_name == "my-app-env"
    assert ModalSettings(app_name="my-app", secret_name="shared").secret_name == "shared"


@pytest.mark.parametrize(
    "wrong",
    [
        {"app_name": ""},
        {"app_name": "my app"},
        {"secret_name": "a/b"},
        {"required_keys": "ENVIRONMENT_API_KEY"},
        {"required_keys": ("OPENAI_API_KEY",)},
        {"timeout_seconds": 0},
        {"timeout_seconds": True},
        {"startup_timeout_seconds": 1.5},
        {"min_containers": 9},
        {"scaledown_window_seconds": 1},
        {"max_inputs": 8},
        {"cpu": float("nan")},
        {"memory_mib": -1},
        {"python_version": "3.9"},
        {"python_version": "3"},
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    named = {"max_inputs": "target_inputs", "min_containers": "max_containers"}.get(name, name)
    with pytest.raises(ConfigError, match=f"ModalSettings.{named}"):
        ModalSettings(**{"app_name": "my-app", **wrong})


def test_a_key_given_where_its_name_belongs_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        ModalSettings(app_name="my-app", required_keys=("ENVIRONMENT_API_KEY", "sk-canary-5c1f"))
    assert "canary" not in str(caught.value)


def test_without_modals_client_one_sentence_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['modal'] = None\n"
        "from taskapp_kit.deploy.modal import ModalSettings, build_image\n"
        "from taskapp_kit.errors import Unavailable\n"
        "try: build_image('crafter', ModalSettings(app_name='x'), beside='.')\n"
        "except Unavailable as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'taskapp-kit[modal]'" in done.stdout

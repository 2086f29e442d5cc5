"""A deploy to Modal, up to the edge of this machine.

Modal's own client deploys to a control plane on loopback (`control_plane.py`), and Modal's own container
entry point then runs what was deployed, from the files that were uploaded and no others.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from modal_proto import api_pb2

from taskapp_kit.deploy.modal.container import load_task_app
from taskapp_kit.deploy.packaging.requirements import requirements
from taskapp_kit.deploy.packaging.source_files import KIT_DIR
from tests.deploy.control_more import WithDicts
from tests.deploy.control_plane import ControlPlane
from tests.deploy.deploys import CHECKOUT, KEY, Deploy, copy_kit, environment, modal_deploy, taskapp, write_own
from tests.programs import printed

pytestmark = [pytest.mark.process, pytest.mark.server]

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

EVERYTHING = """
[project]
name = "capitals"
version = "1"
requires-python = ">=3.11"
dependencies = ["taskapp-kit[math]", "hypothesis>=6"]

[tool.taskapp.modal]
app_name = "capitals"
store = "postgres-secret"
extra_secrets = ["vendor"]
cpu = 0.5
memory_mib = 512
region = ["us-east"]
volumes = { "/data" = "words" }
apt_packages = ["libgomp1"]
min_containers = 1
max_containers = 3
buffer_containers = 2
scaledown_window_seconds = 120
timeout_seconds = 900
startup_timeout_seconds = 77
max_inputs = 10
target_inputs = 7
custom_domains = ["capitals.example.org"]
memory_snapshot = true
python_version = "3.12"
data_files = ["other.jsonl"]
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, with private files where they may lie."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_kit(folder)
    for name in DECOYS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"ENVIRONMENT_API_KEY={FILE_CANARY}\n")
    return folder


@pytest.fixture(scope="module")
def crafter(checkout: Path) -> Iterator[Deploy]:
    """`modal_app.py` as it is, deployed from the copy, with keys in files and environment."""
    with WithDicts({"taskapp-crafter-env": {"ENVIRONMENT_API_KEY", "OPENAI_API_KEY"}}).running() as plane:
        done = modal_deploy(plane, checkout, **CANARIES)
        assert done.code == 0, done.output
        yield done


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_own(tmp_path / "own")


# What was registered.


def test_one_asgi_function_is_published_under_the_apps_name_with_our_tag(crafter: Deploy) -> None:
    (published,) = crafter.plane.published
    assert published.name == "taskapp-crafter"
    assert dict(published.function_ids) == {"web": "fu-1"}
    assert "taskapp-kit" in published.tags
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


def test_the_image_is_python_pinned_packages_and_the_kits_wheel(crafter: Deploy) -> None:
    base, packages, copied, kit = crafter.plane.images
    assert base.dockerfile_commands[0].startswith(f"FROM python:3.{sys.version_info.minor}")
    install = packages.dockerfile_commands[-1]
    for line in requirements(["crafter"]):
        assert line.partition(";")[0] in install
    assert re.search(r"--no-deps /opt/taskapp-kit/taskapp_kit-[\w.]+-py3-none-any\.whl$", kit.dockerfile_commands[-1])
    (wheel,) = crafter.plane.mounts[copied.context_mount_id]
    assert wheel.filename.startswith("/opt/taskapp-kit/taskapp_kit-")
    for image in crafter.plane.images:
        assert not image.context_files and not image.secret_ids and not image.build_args
        words = {command.split()[0] for command in image.dockerfile_commands}
        assert words <= {"FROM", "RUN", "COPY", "CMD"}
    copies = {command for command in crafter.image_commands() if command.startswith("COPY")}
    assert copies == {"COPY --from=ghcr.io/astral-sh/uv:latest /uv /.uv/uv", "COPY . /"}


def test_no_more_than_the_entry_and_what_it_was_told_is_mounted_for_a_bundled_app(crafter: Deploy) -> None:
    assert crafter.mounted() == {"/root/modal_app.py", "/root/taskapp_deployment.json"}
    packed = crafter.packed()
    assert {"taskapp_kit/errors.py", "taskapp_kit/_bundled/environments/crafter/app.py"} <= set(packed)


def test_no_key_and_no_private_file_leaves_this_machine(crafter: Deploy) -> None:
    sent = crafter.everything_sent()
    assert b"taskapp-crafter-env" in sent  # the search finds what is there
    assert (KIT_DIR / "errors.py").read_bytes() in sent
    for canary in [*CANARIES.values(), FILE_CANARY]:
        assert canary.encode() not in sent
        assert canary not in crafter.output
    names = {Path(path).name for path in [*crafter.mounted(), *crafter.packed()]}
    assert not names & {Path(decoy).name for decoy in DECOYS}


@pytest.mark.ci
def test_everything_that_pyproject_and_flags_say_is_registered(own: Path) -> None:
    (own / "pyproject.toml").write_text(EVERYTHING)
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY", "TASKAPP_STORE"}, "vendor": set()}).running() as plane:
        plane.environments.add("staging")
        flags = ("--max-inputs", "12", "--tag", "v3", "-e", "staging", "--strategy", "recreate")
        done = taskapp(plane, own, "deploy", "capitals.py", "--no-wait", *flags)
        assert done.code == 0, done.output
    assert {request.environment_name for request in plane.requests("AppGetByDeploymentName")} == {"staging"}
    assert plane.requests("TaskList")  # recreate: what runs is looked for, to be stopped
    function = done.function
    assert list(function.secret_ids) == ["st-vendor", "st-capitals-env"]
    own_secret = plane.requests("SecretGetOrCreate")[-1]
    assert list(own_secret.required_keys) == ["ENVIRONMENT_API_KEY", "TASKAPP_STORE"]
    assert (function.resources.milli_cpu, function.resources.memory_mb) == (500, 512)
    assert list(function.scheduler_placement.regions) == ["us-east"]
    assert [(mount.mount_path, mount.volume_id) for mount in function.volume_mounts] == [("/data", "vo-words")]
    scaling = function.autoscaler_settings
    assert (scaling.min_containers, scaling.max_containers, scaling.buffer_containers) == (1, 3, 2)
    assert scaling.scaledown_window == 120
    assert (function.timeout_secs, function.startup_timeout_secs) == (900, 77)
    assert (function.max_concurrent_inputs, function.target_concurrent_inputs) == (12, 7)  # the flag wins
    assert [domain.name for domain in function.webhook_config.custom_domains] == ["capitals.example.org"]
    assert function.checkpointing_enabled
    commands = " ".join(done.image_commands())
    assert "FROM python:3.12" in commands and "apt-get install -y libgomp1" in commands
    assert re.search(r"hypothesis==[\d.]+,>=6", commands) and "psycopg" in commands and "sympy" in commands
    mounted = {path for path in done.mounted() if "task_app" in path}
    assert mounted == {f"/root/task_app/{name}" for name in ("capitals.py", "train.jsonl", "other.jsonl")}
    assert plane.published[0].deployment_tag == "v3"


def test_registering_needs_neither_network_nor_account(own: Path) -> None:
    program = (
        "import sys\n"
        "def refuse(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo'): raise SystemExit(f'{event} {args}')\n"
        "sys.addaudithook(refuse)\n"
        "import modal_app\n"
        "print(modal_app.app.name, modal_app.web.local().title)\n"
    )
    assert printed(program, cwd=own, env=environment(ControlPlane({}), own)).split()[:2] == ["capitals", "capitals"]


@pytest.mark.exhaustive
def test_an_installed_wheel_deploys_as_a_checkout_does(tmp_path: Path) -> None:
    """Laid out as the wheel installs: environments inside the package, dependencies in the metadata."""
    site = tmp_path / "site-packages"
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(KIT_DIR, site / "taskapp_kit", ignore=skipped)
    for kind in ("environments", "templates"):
        shutil.copytree(CHECKOUT / kind, site / "taskapp_kit" / "_bundled" / kind, ignore=skipped)
    info = site / "taskapp_kit-0.0.1.dist-info"
    info.mkdir()
    lines = ["Requires-Dist: pydantic>=2", *(f"Requires-Dist: {line}" for line in requirements() if ";" not in line)]
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: taskapp-kit\nVersion: 0.0.1\nProvides-Extra: crafter\n"
        + "\n".join(lines)
        + "".join(f'\nRequires-Dist: {line}; extra == "crafter"' for line in requirements(["crafter"]))
        + "\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(CHECKOUT / "modal_app.py", elsewhere)
    with ControlPlane({"taskapp-crafter-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        done = modal_deploy(plane, elsewhere, PYTHONPATH=str(site))
        assert done.code == 0, done.output
        packed = done.packed()
    assert "taskapp_kit/_bundled/environments/crafter/app.py" in packed
    assert b"Version: 0.0.1" in packed["taskapp_kit-0.0.1.dist-info/METADATA"]
    assert not [name for name in packed if name.startswith("environments/")]


# What the container then answers.


@pytest.mark.ci
def test_modals_own_entry_point_serves_crafter_behind_the_key(crafter: Deploy, tmp_path: Path) -> None:
    plane = crafter.plane
    with plane.container(tmp_path, {"ENVIRONMENT_API_KEY": KEY, "TASKAPP_STORE": "sqlite:////nowhere/at/all.db"}):
        healthy = plane.http("GET", "/health", headers={"X-API-Key": KEY}, timeout=90.0)  # it compiles the kit first
        assert healthy.status == 200, healthy.body  # the deploy said store none: the Secret's is not opened
        assert json.loads(healthy.body)["healthy"] is True
        for headers in ({}, {"X-API-Key": "another-key"}, {"X-API-Key": KEY[:-1]}):
            refused = plane.http("GET", "/health", headers=headers)
            assert refused.status == 401
            assert "www-authenticate" in refused.headers
            assert KEY.encode() not in refused.body
        assert plane.http("GET", "/openapi.json").status == 401
        assert plane.http("GET", "/").status == 200
        assert plane.http("POST", "/rollout", body=b"{}").status == 401
        told = plane.http("GET", "/task_info?seed=0", headers={"X-API-Key": KEY})
        assert told.status == 200 and b"crafter" in told.body
        asked = partial(rollout, plane, "crafter", {"policy": "random"}, ["agent"] * 3)
        with ThreadPoolExecutor(6) as pool:
            played = list(pool.map(asked, range(6)))
        assert {one["status"] for one in played} == {"truncated"}
        assert {one["metrics"]["num_steps"] for one in played} == {3}
    kit = tmp_path / "site-packages" / "taskapp_kit"
    assert (kit / "__pycache__").is_dir(), "the kit was not imported from the wheel"
    assert KEY not in (tmp_path / "log").read_text()


def rollout(
    plane: ControlPlane, environment: str, config: dict[str, Any], ops: list[str], seed: int = 0
) -> dict[str, Any]:
    request = {
        "run_id": f"r{seed}",
        "env": {"env_name": environment, "seed": seed},
        "policy": {"config": config},
        "ops": ops,
        "mode": "eval",
    }
    told = plane.http(
        "POST",
        "/rollout",
        headers={"X-API-Key": KEY, "content-type": "application/json", "Idempotency-Key": f"k{seed}"},
        body=json.dumps(request).encode(),
    )
    assert told.status == 200, told.body
    body: dict[str, Any] = json.loads(told.body)
    return body


@pytest.mark.exhaustive
def test_a_package_and_a_memory_snapshot_answer_there(tmp_path: Path) -> None:
    package = tmp_path / "project" / "my_games"
    write_own(tmp_path / "project")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("PROMPT = '{question} Answer with one word.'\n")
    (package / "app.py").write_text(
        (tmp_path / "project" / "capitals.py")
        .read_text()
        .replace('prompt="{question} Answer with one word."', "prompt=PROMPT")
        .replace("from pydantic", "from my_games.words import PROMPT\nfrom pydantic")
    )
    (tmp_path / "project" / "train.jsonl").rename(package / "train.jsonl")
    with WithDicts({"games-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        arguments = ("my_games.app:app", "--name", "games", "--store", "none", "--no-wait", "--memory-snapshot")
        done = taskapp(plane, tmp_path / "project", "deploy", *arguments)
        assert done.code == 0, done.output
        assert {f"/root/my_games/{name}" for name in ("app.py", "words.py", "train.jsonl")} <= done.mounted()
        container = tmp_path / "container"
        container.mkdir()
        with plane.container(container, {"ENVIRONMENT_API_KEY": KEY}):
            played = rollout(plane, "capitals", {"policy": "constant", "action": "Paris"}, ops=[])
            assert played["reward"] == 1.0
        assert plane.dicts.calls  # several containers may answer: the key is held in the Dict


@pytest.mark.exhaustive
def test_an_app_that_cannot_be_imported_there_stops_the_container_with_its_cause(own: Path, tmp_path: Path) -> None:
    with (own / "capitals.py").open("a") as file:
        file.write("\nimport a_package_that_nobody_listed\n")
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        refused = taskapp(plane, own, "deploy", "capitals.py", "--store", "none", "--no-wait")
        assert refused.code == 1
        assert "capitals.py:19 imports a_package_that_nobody_listed" in refused.err
        assert "Traceback" not in refused.output
        assert not plane.published
        arguments = ("deploy", "capitals.py", "--store", "none", "--no-wait", "--no-rehearsal")
        assert taskapp(plane, own, *arguments).code == 0
        container = tmp_path / "container"
        container.mkdir()
        with plane.container(container, {"ENVIRONMENT_API_KEY": KEY}) as _:
            failure = plane.task_failure(timeout=30.0)
    assert "a_package_that_nobody_listed" in failure


# On this machine.


def test_the_app_loads_in_place_when_no_container_is_around(own: Path) -> None:
    assert load_task_app("capitals.py", beside=own / "modal_app.py").name == "capitals"
    assert load_task_app("capitals.py:app", beside=own).version == "1.0.0"


def test_without_modals_client_one_sentence_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['modal'] = None\n"
        "from taskapp_kit.deploy.modal import Deployment\n"
        "from taskapp_kit.errors import Unavailable\n"
        "try: Deployment('crafter', beside='.')\n"
        "except Unavailable as error: print(error)\n"
    )
    assert "pip install 'taskapp-kit[modal]'" in printed(program, cwd=CHECKOUT)

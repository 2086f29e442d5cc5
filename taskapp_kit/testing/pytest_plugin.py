"""The pytest plugin: fixtures for testing an author's app. It is active when taskapp-kit is installed, and imports little.

def test_it_pays(task_app):                 # pytest --taskapp adder.py, or `taskapp = "adder.py"` in its settings
    assert play(task_app, policy="gold").scorecard.reward == 1.0

def test_over_http(taskapp_served):         # .url and .key of a server on this machine
    httpx.get(f"{taskapp_served.url}/health", headers={"X-API-Key": taskapp_served.key})

def test_with_a_model(task_app, taskapp_mock_model):
    play(task_app, policy=taskapp_mock_model)

`pytest --taskapp adder.py` also runs the doctor: each line of `taskapp doctor adder.py --quick` becomes a test, named
`doctor[ENVIRONMENT-CHECK]`. `--doctor full` plays more rollouts, `--doctor off` disables these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.testing.mock_model.server import MockModel


HELP = "the task app of the fixtures `task_app` and `taskapp_served`: a path, module:attribute or name"


@dataclass(frozen=True)
class ServedTaskApp:
    """A task app that a server on this machine serves.

    Attributes:
        url: The server's address, without a trailing slash.
        key: Value of the header `X-API-Key`.
    """

    url: str
    key: str = field(repr=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--taskapp APP`, and the setting `taskapp = APP`, which is relative to the settings file."""
    parser.getgroup("taskapp").addoption("--taskapp", metavar="APP", help=HELP)
    parser.addini("taskapp", HELP)
    parser.getgroup("taskapp").addoption(
        "--doctor",
        choices=("quick", "full", "off"),
        help="the doctor's checks as tests  [default: quick with --taskapp on the command line, else off]",
    )
    parser.getgroup("taskapp").addoption(
        "--doctor-allow",
        action="append",
        default=[],
        metavar="CHECK",
        help="accept what this check of the doctor finds",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the doctor's tests, before -k and -m select tests."""
    chosen = config.getoption("--doctor") or ("quick" if config.getoption("--taskapp") is not None else "off")
    if chosen == "off":
        return
    from taskapp_kit.doctor.as_tests import collected
    from taskapp_kit.doctor.doctor_options import DoctorOptions
    from taskapp_kit.errors import KitError

    options = DoctorOptions(quick=chosen == "quick", allow=tuple(config.getoption("--doctor-allow")))
    try:
        items.extend(collected(session, _named_app(config), options))
    except (KitError, pytest.fail.Exception) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def task_app(pytestconfig: pytest.Config) -> TaskApp:
    """The app that `--taskapp` or the setting `taskapp` names."""
    return _named_app(pytestconfig)


def _named_app(pytestconfig: pytest.Config) -> TaskApp:
    """Return the app that the command line or the settings name. Without one, fail the test."""
    from taskapp_kit.declare.discovery import find_app

    option = pytestconfig.getoption("--taskapp")
    if option is not None:
        return find_app(str(option))
    configured = str(pytestconfig.getini("taskapp") or "")
    if not configured:
        pytest.fail(
            "The fixture task_app needs an app. Run pytest --taskapp adder.py, "
            'or put taskapp = "adder.py" into the settings of pytest.',
            pytrace=False,
        )
    path, colon, attribute = configured.partition(":")
    settings_file = pytestconfig.inipath
    file = (pytestconfig.rootpath if settings_file is None else settings_file.parent) / path
    return find_app(f"{file}{colon}{attribute}" if file.exists() else configured)


@pytest.fixture(scope="session")
def taskapp_served(task_app: TaskApp) -> Iterator[ServedTaskApp]:
    """The app on a server on a free port of this machine, with a new API key and without a store.

    If a judge with weight > 0 has no model (TASKAPP_JUDGE_URL), judges are skipped, and their scores and rewards are null.
    """
    import secrets

    from taskapp_kit.asgi import build
    from taskapp_kit.config import load
    from taskapp_kit.rollout.models.access import role_endpoint
    from taskapp_kit.rollout.score.judges import needed_roles
    from taskapp_kit.serve.uvicorn_server import BackgroundServer

    key = secrets.token_urlsafe(24)
    settings = replace(load({"environment_api_key": key}), store=None)
    needs = needed_roles(task_app.freeze())
    skip = any(need.must and role_endpoint(settings, need.role) is None for need in needs)
    with BackgroundServer(build(task_app, settings, exposure="local", skip_judges=skip)) as server:
        yield ServedTaskApp(server.url, key)


@pytest.fixture
def taskapp_mock_model() -> Iterator[MockModel]:
    """A model server on this machine with random replies. To choose the replies, use `MockModel` in a test."""
    from taskapp_kit.testing.mock_model.server import MockModel

    with MockModel() as model:
        yield model

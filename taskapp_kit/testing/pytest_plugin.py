"""The pytest plugin with fixtures for testing an app. It is active if taskapp-kit is installed.

def test_it_pays(task_app):                 # pytest --taskapp adder.py, or `taskapp = "adder.py"` in pytest's settings
    assert play(task_app, policy="gold").scorecard.reward == 1.0

def test_over_http(taskapp_served):         # .url and .key of a local server
    httpx.get(f"{taskapp_served.url}/health", headers={"X-API-Key": taskapp_served.key})

def test_with_a_model(task_app, taskapp_mock_model):
    play(task_app, policy=taskapp_mock_model)

`pytest --taskapp adder.py` also runs the doctor. Each line in the output of `taskapp doctor adder.py --quick` is a
test with the name `doctor[ENVIRONMENT-CHECK]`. `--doctor full` plays more rollouts, and `--doctor off` disables these
tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.testing.mock_model.server import MockModel


HELP = "task app of the fixtures `task_app` and `taskapp_served`: a path, module:attribute or name"


@dataclass(frozen=True)
class ServedTaskApp:
    """A task app on a local server.

    Attributes:
        url: The address of the server, without a trailing slash.
        key: The API key, which is the value of the header `X-API-Key`.
    """

    url: str
    key: str = field(repr=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options, and the setting `taskapp = APP`, whose path is relative to the settings file."""
    parser.getgroup("taskapp").addoption("--taskapp", metavar="APP", help=HELP)
    parser.addini("taskapp", HELP)
    parser.getgroup("taskapp").addoption(
        "--doctor",
        choices=("quick", "full", "off"),
        help="run the checks of the doctor as tests  [default: quick with --taskapp, else off]",
    )
    parser.getgroup("taskapp").addoption(
        "--doctor-allow",
        action="append",
        default=[],
        metavar="CHECK",
        help="accept the findings of this doctor check",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the tests of the doctor, before -k and -m select tests."""
    chosen = _doctor(config)
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


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the settings that the doctor's tests use, as a line above the tests."""
    if _doctor(config) == "off":
        return []
    from taskapp_kit.config import load
    from taskapp_kit.doctor.doctor_options import settings_words

    return [f"taskapp doctor: {settings_words(load(dot_env=False), judges=False)}"]


def _doctor(config: pytest.Config) -> str:
    """Return `quick`, `full` or `off`."""
    return str(config.getoption("--doctor") or ("quick" if config.getoption("--taskapp") is not None else "off"))


@pytest.fixture(scope="session")
def task_app(pytestconfig: pytest.Config) -> TaskApp:
    """The app that `--taskapp` or the setting `taskapp` selects."""
    return _named_app(pytestconfig)


def _named_app(pytestconfig: pytest.Config) -> TaskApp:
    """Return the selected app. If no app is selected, fail the test."""
    from taskapp_kit.declare.discovery import find_app

    option = pytestconfig.getoption("--taskapp")
    if option is not None:
        return find_app(str(option))
    configured = str(pytestconfig.getini("taskapp") or "")
    if not configured:
        pytest.fail(
            "The fixture task_app needs an app. Run pytest --taskapp adder.py, "
            'or add taskapp = "adder.py" to the settings of pytest.',
            pytrace=False,
        )
    path, colon, attribute = configured.partition(":")
    settings_file = pytestconfig.inipath
    file = (pytestconfig.rootpath if settings_file is None else settings_file.parent) / path
    return find_app(f"{file}{colon}{attribute}" if file.exists() else configured)


@pytest.fixture(scope="session")
def taskapp_served(task_app: TaskApp) -> Iterator[ServedTaskApp]:
    """The app on a local server, with a free port, a new API key and no store.

    Neither `.env` nor a variable such as TASKAPP_JUDGE_URL is used. If the app has a judge with a weight above 0, all
    judges are skipped, and their scores and the rewards are null.
    """
    import secrets

    from taskapp_kit.asgi import build
    from taskapp_kit.config import load
    from taskapp_kit.rollout.score.judges import needed_roles
    from taskapp_kit.serve.uvicorn_server import BackgroundServer

    key = secrets.token_urlsafe(24)
    settings = replace(load({"environment_api_key": key}, dot_env=False).without_models(), store=None)
    skip = any(need.must for need in needed_roles(task_app.freeze()))
    with BackgroundServer(build(task_app, settings, exposure="local", skip_judges=skip)) as server:
        yield ServedTaskApp(server.url, key)


@pytest.fixture
def taskapp_mock_model() -> Iterator[MockModel]:
    """A local model server with random replies. To choose the replies, create a `MockModel` in the test."""
    from taskapp_kit.testing.mock_model.server import MockModel

    with MockModel() as model:
        yield model

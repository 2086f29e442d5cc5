"""Import paths that README, docs, templates and examples name: all import."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from operator import attrgetter

import pytest

DOCUMENTED = {
    "taskapp_kit": "Blend DeclarationError Image InvalidAction LateRegistration PlayedStep Private RequestError RolloutFailed RolloutSummary Step TaskApp TaskApp.load_rubric TaskApp.rubric TaskApp.tasks Text Trajectory Unavailable action",
    "taskapp_kit.interop.gymnasium": "from_gymnasium",
    "taskapp_kit.asgi": "build",
    "taskapp_kit.jobs.server.app": "create_backend",
    "taskapp_kit.client": "BackendClient InProcessTaskApp RLJob SyncTaskAppClient TaskAppClient check_backend check_task_app load_rl_config read_events setup_environment_api_key weights_note",
    "taskapp_kit.jobs.client.rl_job": "",
    "taskapp_kit.config": "Settings load",
    "taskapp_kit.records.events": "fold from_json",
    "taskapp_kit.wire.rollout": "EnvSpec RolloutRequest",
    "taskapp_kit.declare.discovery": "find_app",
    "taskapp_kit.deploy.modal": "Deployment ModalSettings",
    "taskapp_kit.errors": "BackendError ConfigError JobConfigError SandboxError SandboxTooWeak TaskAppError KitError Unavailable",
    "taskapp_kit.logs": "handler",
    "taskapp_kit.sandbox": "RunResult Sandbox SandboxLimits capabilities remote",
    "taskapp_kit.serve": "",
    "taskapp_kit.store": "open_store",
    "taskapp_kit.testing": "ChatRequest Faults GlobalRandomnessWarning MockModel Rollout bad judge obedient_judge play",
}
"""Module to the names that are imported from it, or that the pages write after it."""


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_documented_path_imports(module: str) -> None:
    found = import_module(module)
    for name in DOCUMENTED[module].split():
        attrgetter(name)(found)


def test_documented_loggers_keep_their_names() -> None:
    """docs/operate/observability.md shows the first; docs/train/jobs.md names the second."""
    for module, name in (("serve.app", "serve"), ("jobs.client.rl_job", "jobs.client.rl_job")):
        log = import_module(f"taskapp_kit.{module}").log
        assert isinstance(log, logging.Logger)
        assert log.name == f"taskapp_kit.{name}"


UNDOCUMENTED = {"EnvSpec", "RolloutRequest"}
"""Their docstrings are the OpenAPI document's, which describes each field."""


def parameters_of(documented: object) -> list[str]:
    if not callable(documented) or (inspect.isclass(documented) and issubclass(documented, BaseException)):
        return []
    parameters = inspect.signature(documented).parameters.values()
    return [
        each.name
        for each in parameters
        if each.name != "self" and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_a_documented_name_says_what_it_takes(module: str) -> None:
    """In a section of its docstring, which ruff compares with its parameters."""
    for name in set(DOCUMENTED[module].split()) - UNDOCUMENTED:
        documented = attrgetter(name)(import_module(module))
        if parameters_of(documented):
            docstring = inspect.getdoc(documented) or ""
            assert "Args:\n" in docstring or "Attributes:\n" in docstring, f"{module}.{name}"

"""The engine `local`, which trains a model on this machine in a child process. This module does not import torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import JobError, Unavailable
from taskapp_kit.jobs.client.config.values import Place
from taskapp_kit.jobs.server import job_check
from taskapp_kit.jobs.server.engine import Event, JobDocument, JobOutcome, Ledger
from taskapp_kit.train.engine.child_program import ChildProgram
from taskapp_kit.train.engine.trainer_calls import TrainerOrder, answer_ledger_call
from taskapp_kit.train.gateway.gateway_options import GatewayOptions
from taskapp_kit.train.job_settings import read_training
from taskapp_kit.train.loops.loop_settings import EnvironmentShare
from taskapp_kit.train.sampler.vllm.place import VARIABLE, VllmPlace

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

log = logging.getLogger("taskapp_kit.train")

NAME = "local"
DESCRIPTION = "local: trains a model on this machine, one job at a time"
TRAINER = "taskapp_kit.train.engine.trainer"
NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "peft")
"""Packages in the extra `train`."""
MOST_DEATHS = 3
"""A job fails when its trainer dies this often in a row without finishing another iteration or evaluation."""


class LocalEngine:
    """An engine (`jobs.server.engine.Engine`) that trains on this machine.

    Args:
        models: The models directory.
        aliases: Names of models by alias.
        gateway: The address on which the gateways of jobs listen.
        vllm: The vLLM installation for jobs with `[sampler] engine = "vllm"`.
        open_paths: Whether a job's model may be a path. Use False if other people submit jobs.
        program: The module that the child process runs.

    Raises:
        Unavailable: The extra `train` is not installed.
    """

    name = NAME
    description = DESCRIPTION
    updates_weights = True
    restarts = True
    most_jobs: int | None = 1
    """Maximum number of concurrent jobs. Each job uses the whole machine."""

    def __init__(
        self,
        models: Path,
        aliases: Mapping[str, str] | None = None,
        *,
        gateway: GatewayOptions | None = None,
        vllm: VllmPlace | None = None,
        open_paths: bool = False,
        program: str = TRAINER,
    ) -> None:
        if program == TRAINER:
            check_installed()
        self._program = program
        self._models, self._aliases = models, dict(aliases or {})
        self._gateway = gateway or GatewayOptions()
        self._vllm = vllm
        self._open_paths = open_paths

    def problems(self, job: JobDocument) -> dict[Place, str]:
        """Return the problems with parts of the config that the engine does not support, by location."""
        settings, problems = read_training(job)
        if settings is None:
            return problems
        if settings.vllm is not None:
            if self._vllm is None:
                problems["sampler", "engine"] = (
                    f'[sampler] engine: found "vllm", but this backend has no vLLM. Set {VARIABLE} to the directory of a '
                    'virtual environment with vLLM or to a server\'s address, or use engine = "transformers".'
                )
            elif refusal := self._vllm.refusal(whole_weights=settings.lora is None):
                problems["model", "trainer_mode"] = refusal
        if settings.services is not None and settings.services.backend == "ray" and find_spec("ray") is None:
            problems["sampler", "backend"] = (
                '[sampler] backend: found "ray", but this backend has no Ray. Install it with pip install '
                "'taskapp-kit[ray]', or use backend = \"local\"."
            )
        return problems

    async def missing(self, job: JobDocument, task_app: OpenedTaskApp) -> list[str]:
        """Return a sentence for each feature that the job needs but the task app lacks."""
        settings, _ = read_training(job)
        if settings is None:
            return []
        config = {name: value for name, value in settings.plan.policy_config.items() if name != "policy"}
        played = replace(settings.plan, policy_name=None, policy_config={**config, "inference_url": "the gateway's"})
        found: list[str] = []
        for share in settings.driving.loops.environments or (EnvironmentShare("", 1),):
            if share.task_url is None:
                found += await job_check.missing(share.plan(played), task_app)
                continue
            async with task_app.elsewhere(share.task_url) as other:
                found += await job_check.missing(share.plan(played), other)
        return found

    async def run(
        self, job: JobDocument, task_app: OpenedTaskApp, ledger: Ledger, state: Mapping[str, Any]
    ) -> JobOutcome:
        """Run the rest of the job, and replace trainers that die. Raises JobError if the job fails."""
        deaths = 0
        furthest = state.get("done", 0)
        while True:
            incarnation = state.get("incarnation", 0) + 1
            state = {**state, "incarnation": incarnation}
            await ledger.report(
                state=state
            )  # stored before the trainer plays, because the keys of rollouts contain this number and must be unique
            order = TrainerOrder(
                job,
                task_app.handover(),
                self._models,
                self._aliases,
                self._open_paths,
                self._gateway,
                self._vllm,
                incarnation,
                state,
            )
            life = TrainerLife(order, ledger)
            outcome = await life.outcome(self._program, task_app)
            if isinstance(outcome, JobOutcome):
                return outcome
            # Only a unit beyond the furthest unit so far is progress. Otherwise, with a checkpoint every ten iterations, a
            # trainer that always dies in the eighth iteration would be restarted forever.
            deaths = 1 if life.furthest > furthest else deaths + 1
            furthest = max(furthest, life.furthest)
            if deaths == MOST_DEATHS:
                raise JobError(
                    f"The trainer died {deaths} times without finishing another iteration or evaluation: {outcome}.",
                    hint="The backend's log contains the complete output of the trainers.",
                )
            state = life.state
            message = f"The trainer died ({outcome}), and a new trainer resumes the job."
            log.error("trainer died job_id=%s: %s", job.job_id, outcome)
            await ledger.report(Event("rl.trainer.died", message, "warning", {"incarnation": incarnation}))


@dataclass(slots=True)
class TrainerLife:
    """One trainer. `state` is the job's last state. `furthest` is the highest number of finished units so far."""

    order: TrainerOrder
    ledger: Ledger
    furthest: int = 0
    state: Mapping[str, Any] = field(init=False)
    _ended: JobOutcome | None = None
    _failed: JobError | None = None
    _lost: str | None = None

    def __post_init__(self) -> None:
        self.state = self.order.state

    async def outcome(self, program: str, task_app: OpenedTaskApp) -> JobOutcome | str:
        """Run the trainer. Return the job's outcome, or a description of how the trainer died.

        If the update runs in a separate process and that process dies, the trainer also counts as dead. `program` is
        the trainer's module. Raises JobError if the job fails, and StoreError if the ledger cannot be written.
        """
        # The trainer writes to the ledger by calling this process. The store therefore has one writer, a reply means that the
        # data is on the disk, and killing the trainer is safe.
        async with ChildProgram(program, cleaned=task_app.cleaned) as child:
            log.info("trainer started job_id=%s pid=%d", self.order.job.job_id, child.pid)
            await child.answer_calls(self._answer)
            if self._failed is not None:
                failed = self._failed
                code, hint = task_app.cleaned(failed.code), task_app.cleaned(failed.hint)
                raise JobError(task_app.cleaned(failed.message), code=code, hint=hint)
            if self._ended is not None:
                return self._ended
            death = await child.death()
            return death if self._lost is None else task_app.cleaned(self._lost)

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name == "order":
            return self.order.to_json()
        if name == "failed":
            self._failed = JobError(**arguments)
        elif name == "succeeded":
            self._ended = JobOutcome(**arguments)
        elif name == "lost":
            self._lost = arguments["reason"].rstrip(".")
        else:
            reply = await answer_ledger_call(self.ledger, name, arguments)
            if (state := arguments.get("state")) is not None:
                self.state, self.furthest = state, max(self.furthest, state.get("done", 0))
            return reply
        return None


def check_installed(what: str = "The engine `local`", *, also: Sequence[str] = ()) -> None:
    """Raise Unavailable if a package of the extra `train` is not installed.

    `what` is the subject of the message. `also` lists packages of the extra that `what` needs in addition.
    """
    if missing := [name for name in (*NEEDED, *also) if find_spec(name) is None]:
        raise Unavailable(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            hint="Install the extra: pip install 'taskapp-kit[train]'.",
        )

"""Serves the models in a directory for a backend, with at most one process at a time, without importing torch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from taskapp_kit.errors import BadArgument, ConfigError, Saturated, Unavailable
from taskapp_kit.jobs.server.inference import AvailableModel
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.checkpoints.library import trained_models
from taskapp_kit.train.checkpoints.stored import MANIFEST
from taskapp_kit.train.models.sources import BASE, BUNDLED, is_path
from taskapp_kit.train.serving.process import ServingProcess

log = logging.getLogger("taskapp_kit.train")

IDLE_SECONDS = 300.0
"""Seconds without requests after which a process is ended, because it uses the memory of a model."""
MAX_WAITING = 256
"""Maximum number of running and waiting requests. Further requests are rejected."""
RETRY_SECONDS = 5
NOTICED_SECONDS = 1.0
"""Seconds to wait after a lost connection to find out whether the process has ended."""
ANSWER_SECONDS = 3600.0
"""Time limit in seconds of one reply. The limits in the serving process are shorter."""


StoredState = tuple[int, int]
"""The inode and modification time of a checkpoint's manifest. They change when the checkpoint is replaced."""


class ServedModels:
    """Serves the trained models and base models of one directory on demand.

    Requests for another model wait in order until running replies have ended. `aliases` are names of models by alias. A
    process that has had no requests for `idle_seconds` is ended.
    """

    def __init__(
        self, models: Path, aliases: Mapping[str, str] | None = None, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._models = models
        self._aliases = dict(aliases or {})
        self._idle_seconds = idle_seconds
        self._admission = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()
        self._process: ServingProcess | None = None
        self._state: StoredState | None = None
        self._transport: Transport | None = None
        self._using = 0
        self._waiting = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The id of the serving process, or None if no process is running."""
        return self._process.pid if self._process is not None and not self._process.ended.is_set() else None

    def find(self, name: str) -> AvailableModel | None:
        """Return the model with this name, or None if it does not exist. Its files are not read."""
        own = self._aliases.get(name, name)
        if own in BUNDLED or (name in self._aliases and is_path(own)):
            return AvailableModel(name)
        try:
            trained = TrainedModelName.parse(own)
        except BadArgument:
            prepared = self._prepared()
            return AvailableModel(name, created=prepared[own]) if own in prepared else None
        created = _modified(trained.folder(self._models) / MANIFEST)
        return None if created is None else AvailableModel(name, trained.job, created)

    def available(self) -> list[AvailableModel]:
        """Return all models. Trained models come first."""
        found = [
            AvailableModel(str(model.name), model.name.job, model.modified) for model in trained_models(self._models)
        ]
        base = {**dict.fromkeys(BUNDLED, 0.0), **self._prepared()}
        return [*found, *(AvailableModel(name, created=created) for name, created in base.items())]

    async def complete(self, model: AvailableModel, route: str, body: bytes) -> HttpResponse:
        """Return a model's response to a request with a JSON body. An example of `route` is `chat/completions`.

        Raises RequestRefused (`model_failed`) if the serving process ends twice, Saturated if too many requests are
        waiting, Unavailable if the backend is stopping, and ConfigError if the model cannot be loaded.
        """
        if self._waiting >= MAX_WAITING:
            raise Saturated(
                f"{MAX_WAITING} requests to models are already in progress.", retry_after_seconds=RETRY_SECONDS
            )
        self._waiting += 1
        try:
            for _ in range(2):
                async with self._serving(model) as (process, transport):
                    with suppress(NoAnswer):
                        return await transport.send("POST", f"{process.url}/{route}", body=body, seconds=ANSWER_SECONDS)
                    if not await asyncio.to_thread(process.ended.wait, NOTICED_SECONDS):
                        break
                    log.error("serving process ended model=%s: %s", model.name, process.end)
        finally:
            self._waiting -= 1
        raise RequestRefused(
            "model_failed",
            "The process that serves this model did not respond, or ended before its response was complete.",
            hint="Check the backend's log. A prompt may need more memory than is available.",
        )

    async def close(self) -> None:
        """End the process. Running replies are lost."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        await self._end()
        await asyncio.gather(*self._ending, return_exceptions=True)

    @asynccontextmanager
    async def _serving(self, model: AvailableModel) -> AsyncIterator[tuple[ServingProcess, Transport]]:
        """Yield the process that serves the model. Start it if necessary."""
        async with self._admission:
            state = self._stored_state(model.name)
            process = self._process
            # Two models might not fit into the memory. Requests wait in order for running replies, so no model starves.
            if process is None or process.ended.is_set() or (process.name, self._state) != (model.name, state):
                await self._free.wait()
                process = await self._started(model.name, state)
            transport = self._transport
            assert transport is not None, "made with the process"
            self._using += 1
            self._free.clear()
            if self._idle is not None:
                self._idle.cancel()
        try:
            yield process, transport
        finally:
            self._using -= 1
            if not self._using:
                self._free.set()
                if not self._closed:
                    self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)

    async def _started(self, name: str, state: StoredState | None) -> ServingProcess:
        """Replace the process. A cancelled request waits until this is done, so that at most one process exists."""
        await self._end()
        if self._closed:
            raise Unavailable("The backend is stopping.")

        def start() -> ServingProcess:
            process = self._process = ServingProcess(name, self._models, self._aliases, paths=name in self._aliases)
            process.wait()
            return process

        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))
            raise
        except ConfigError as error:
            raise Unavailable(error.message, hint=error.hint) from None
        self._state = state
        self._transport = Transport({"Authorization": f"Bearer {process.key}"})
        log.info("serving a model model=%s pid=%d", name, process.pid)
        return process

    def _end_idle(self) -> None:
        async def end() -> None:
            async with self._admission:
                if not self._using:
                    await self._end()

        task = asyncio.ensure_future(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self) -> None:
        process, transport = self._process, self._transport
        self._process = self._transport = None
        if transport is not None:
            await transport.aclose()
        if process is not None:
            await asyncio.to_thread(process.close)
            log.info("stopped serving a model model=%s", process.name)

    def _stored_state(self, name: str) -> StoredState | None:
        try:
            found = (TrainedModelName.parse(self._aliases.get(name, name)).folder(self._models) / MANIFEST).stat()
        except (BadArgument, OSError):
            return None
        return found.st_ino, found.st_mtime_ns

    def _prepared(self) -> dict[str, float]:
        """Return the base models in the directory, with their modification times."""
        base = self._models / BASE
        return {path.name: _modified(path) or 0.0 for path in sorted(base.glob("[!.]*")) if path.is_dir()}


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None

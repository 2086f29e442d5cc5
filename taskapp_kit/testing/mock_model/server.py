"""MockModel: an OpenAI-compatible model server on this machine with answers that a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json
from taskapp_kit.testing.mock_model.behaviours import Script, by_name, of_script
from taskapp_kit.testing.mock_model.connection import MockConnection
from taskapp_kit.testing.mock_model.faults import Faults
from taskapp_kit.testing.mock_model.process import MockProcess
from taskapp_kit.testing.mock_model.request_log import Recorded, RequestLog
from taskapp_kit.testing.mock_model.responder import Responder, latency_of

START_SECONDS = 10.0
BACKLOG = 2048


class MockModel:
    """A model server, running inside `with` or `async with`, or between `start()` and `close()`.

    Args:
        script: Its answers: a list with an answer for each turn, a file with such a list (JSON or JSON Lines), or a function
            `fn(request) -> answer`, which may be async. `reply_of` lists the forms of an answer.
        behaviour: How it answers without a script: `random` (valid answers, drawn from `seed` and the conversation alone),
            `echo`, `bad`, `empty`, `judge` or `obedient-judge`.
        parallel: The most tool calls in one random answer.
        score: The score that the two judges return; see `judge`.
        seed: The seed of everything that is drawn.
        latency_seconds: The time from request to answer, or a pair of bounds to draw it from.
        chunk_seconds: The time between two events of a stream.
        faults: How it fails.
        models: The model names that it knows. An empty sequence accepts any name.
        api_key: The Bearer token that requests must have. None accepts any request.
        context_tokens: The longest prompt; a longer one gets 400 `context_length_exceeded`. A token is about a byte.
        weight_version: Sent in `metadata.weight_version`. It may be changed while the server runs.
        record: The number of requests to keep.
        watch: Strings to count in all requests, such as a key that must not arrive.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.

    Raises:
        ConfigError: Two arguments exclude each other, or a script cannot be read.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        behaviour: str = "random",
        parallel: int = 1,
        score: float | str | None = None,
        seed: int = 0,
        latency_seconds: float | tuple[float, float] = 0.0,
        chunk_seconds: float = 0.0,
        faults: Faults | None = None,
        models: Sequence[str] = (),
        api_key: str | None = None,
        context_tokens: int | None = None,
        weight_version: str | None = None,
        record: int = 1000,
        watch: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if script is not None and score is not None:
            raise ConfigError("A script and a score were both given.", hint="A score goes with behaviour='judge'.")
        if script is not None and behaviour != "random":
            raise ConfigError(
                f"A script and the behaviour {behaviour!r} were both given.",
                hint="Give one of them.",
            )
        self.records = RequestLog(record, watch)
        self._answering = Responder(
            of_script(script) if script is not None else by_name(behaviour, parallel=parallel, score=score),
            seed,
            latency_of(latency_seconds),
            chunk_seconds,
            faults or Faults(),
            tuple(models),
            api_key,
            context_tokens,
            weight_version,
            self.records,
        )
        self.host, self.port = host, port
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] | None = None
        self._failure: BaseException | None = None

    # what a test asks

    @property
    def url(self) -> str:
        """The address to give to a policy as `inference_url`: `http://HOST:PORT/v1`."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The address without `/v1`; a path of one's own may stand between the two."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def requests(self) -> list[Recorded]:
        """The requests that arrived, the oldest first, as many as `record` keeps; none to `/mock/…`."""
        return list(self.records.recorded)

    @property
    def stats(self) -> dict[str, Json]:
        """Counts of everything since the start, as in `GET /mock/stats`."""
        return self.records.stats()

    @property
    def weight_version(self) -> str | None:
        """The version of the weights that answers name."""
        return self._answering.weight_version

    @weight_version.setter
    def weight_version(self, version: str | None) -> None:
        self._answering.weight_version = version

    @property
    def faults(self) -> Faults:
        """How it fails from now on."""
        return self._answering.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._answering.faults = faults

    # running

    async def serve(self, announce: Callable[[Self], None] | None = None) -> None:
        """Serve in this task until it is cancelled. announce: called when the address is known. Raises ConfigError."""
        everyone: set[MockConnection] = set()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: MockConnection(self._answering.handle, self.records, everyone), sock=self._listen(), backlog=BACKLOG
        )
        try:
            if announce is not None:
                announce(self)
            await loop.create_future()
        finally:
            server.close()
            for connection in list(everyone):
                connection.stop()
            await asyncio.sleep(0)  # so that transports end before the loop does

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"Port {self.port} on {self.host} cannot be had: {error.strerror}.",
                hint="Name another, or 0 for a free one.",
            ) from None
        self.port = listening.getsockname()[1]
        return listening

    def run(self, announce: Callable[[Self], None] | None = None) -> None:
        """Serve in this thread until KeyboardInterrupt, which it raises. Raises ConfigError."""
        with asyncio.Runner(loop_factory=quickest_loop()) as runner:
            runner.run(self.serve(announce))

    def start(self) -> Self:
        """Start serving in a thread of its own; returns when it serves. Raises ConfigError."""
        if self._thread is not None:
            raise ConfigError("The mock model runs already.", hint="Make another one, or close this one first.")
        begun = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._on_thread, args=(begun,), name="mock-model", daemon=True)
        self._thread.start()
        if not begun.wait(START_SECONDS) or self._failure is not None:
            failure, self._failure = self._failure, None
            self.close()
            raise failure or ConfigError("The mock model did not start in ten seconds.")
        return self

    def _on_thread(self, begun: threading.Event) -> None:
        async def main() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            await self.serve(lambda _: begun.set())

        try:
            with asyncio.Runner(loop_factory=quickest_loop()) as runner:
                runner.run(main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # raised in the thread that started it
            self._failure = error
        finally:
            begun.set()

    def close(self) -> None:
        """Stop serving and ends every connection. Recorded requests remain available."""
        if self._thread is not None:
            if self._stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                    self._stop()
            self._thread.join(START_SECONDS)
            self._thread = self._stop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    @staticmethod
    def process(script: list[Any] | str | Path | None = None, **settings: Any) -> MockProcess:
        """Start the same server in a separate process, whose CPU time is not the caller's.

        Args:
            script: A list of answers, or a file; a function cannot be sent to another process.
            **settings: The other arguments of MockModel.

        Returns:
            The running process; see MockProcess.

        Raises:
            ConfigError: A setting is invalid, or the process did not start.
        """
        return MockProcess(script, **settings)


def quickest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loop where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop

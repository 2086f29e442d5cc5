"""`MockModel`, a local OpenAI-compatible model server whose replies a test chooses."""

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
    """A model server that runs during a `with` or `async with` block, or between `start()` and `close()`.

    Args:
        script: The replies: a list with an answer for each turn, a JSON or JSON Lines file with this list, or a
            function `fn(request) -> answer`, which may be async. See `reply_of` for the formats of an answer.
        behaviour: Behaviour if `script` is not set: `random`, `echo`, `bad`, `empty`, `judge` or `obedient-judge`. The
            replies of `random` are valid and depend only on `seed` and the conversation.
        parallel: Maximum number of tool calls in a random reply.
        score: Score in the verdicts of `judge` and `obedient-judge`.
        seed: Seed of all random choices.
        latency_seconds: Time from request to response in seconds, or a pair of bounds for a random time.
        chunk_seconds: Time between two events of a stream, in seconds.
        faults: Faults to inject.
        models: Accepted model names. If empty, all names are accepted.
        api_key: Bearer token that requests must contain. If it is None, no token is required.
        context_tokens: Maximum number of tokens in a prompt. A longer prompt causes a 400 response with the code
            `context_length_exceeded`. A token is about one byte.
        weight_version: Value of `metadata.weight_version` in replies. It may be changed while the server is running.
        record: Number of latest requests to store.
        watch: Strings to count in all requests, such as a key that must not be sent.
        host: Address to listen on.
        port: Port to listen on, or 0 for any free port.

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
            raise ConfigError("Both a script and a score were passed.", hint="Pass score= with behaviour='judge'.")
        if script is not None and behaviour != "random":
            raise ConfigError(f"Both a script and the behaviour {behaviour!r} were passed.", hint="Pass only one.")
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

    # for tests

    @property
    def url(self) -> str:
        """Address for a policy's `inference_url`: `http://HOST:PORT/v1`."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The address without `/v1`. A client may insert a path before `/v1`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def requests(self) -> list[Recorded]:
        """The last `record` requests, oldest first, except requests to `/mock/…`."""
        return list(self.records.recorded)

    @property
    def stats(self) -> dict[str, Json]:
        """Counts since the start, as in `GET /mock/stats`."""
        return self.records.stats()

    @property
    def weight_version(self) -> str | None:
        """The version of the weights in replies."""
        return self._answering.weight_version

    @weight_version.setter
    def weight_version(self, version: str | None) -> None:
        self._answering.weight_version = version

    @property
    def faults(self) -> Faults:
        """The faults that are injected into responses from now on."""
        return self._answering.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._answering.faults = faults

    # running

    async def serve(self, announce: Callable[[Self], None] | None = None) -> None:
        """Serve in the current asyncio task until the task is cancelled. `announce` is called as soon as the server listens.

        Raises:
            ConfigError: The port cannot be used.
        """
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
            await asyncio.sleep(0)  # lets transports close before the loop

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"Port {self.port} on {self.host} cannot be used: {error.strerror}.",
                hint="Use another port, or 0 for a free port.",
            ) from None
        self.port = listening.getsockname()[1]
        return listening

    def run(self, announce: Callable[[Self], None] | None = None) -> None:
        """Serve in this thread until KeyboardInterrupt, which propagates.

        Raises:
            ConfigError: The port cannot be used.
        """
        with asyncio.Runner(loop_factory=quickest_loop()) as runner:
            runner.run(self.serve(announce))

    def start(self) -> Self:
        """Start serving in a separate thread, and return when the server is ready.

        Raises:
            ConfigError: The mock model is already running, or the port cannot be used.
        """
        if self._thread is not None:
            raise ConfigError("The mock model is already running.", hint="Close it first, or create another MockModel.")
        begun = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._on_thread, args=(begun,), name="mock-model", daemon=True)
        self._thread.start()
        if not begun.wait(START_SECONDS) or self._failure is not None:
            failure, self._failure = self._failure, None
            self.close()
            raise failure or ConfigError("The mock model did not start in ten seconds.", hint="Try again.")
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
        except BaseException as error:  # raised by `start`
            self._failure = error
        finally:
            begun.set()

    def close(self) -> None:
        """Stop serving and close all connections. Recorded requests remain available."""
        if self._thread is not None:
            if self._stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has already ended
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
        """Start a mock model in a separate process, so that its CPU time does not count as the caller's.

        Args:
            script: A list of answers, or a file. A function cannot be sent to another process.
            **settings: Other arguments of MockModel.

        Returns:
            The running process; see MockProcess.

        Raises:
            ConfigError: A setting is invalid, or the process did not start.
        """
        return MockProcess(script, **settings)


def quickest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the event loop factory of uvloop if it is installed, and of asyncio otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop

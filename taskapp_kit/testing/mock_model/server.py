"""`MockModel`, an OpenAI-compatible model server on this machine whose replies a test chooses."""

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
    """A model server that runs inside `with` or `async with`, or between `start()` and `close()`.

    Args:
        script: Replies: a list with an answer for each turn, a file with such a list (JSON or JSON Lines), or a function
            `fn(request) -> answer`, which may be async. `reply_of` lists the forms of an answer.
        behaviour: Behaviour without a script: `random` (valid replies that depend only on `seed` and the conversation),
            `echo`, `bad`, `empty`, `judge` or `obedient-judge`.
        parallel: Maximum number of tool calls in one random reply.
        score: Score that the two judges return; see `judge`.
        seed: Seed of all random choices.
        latency_seconds: Time from request to response, or a pair of bounds to draw it from.
        chunk_seconds: Time between two events of a stream.
        faults: Faults to inject.
        models: Accepted model names. An empty sequence accepts any name.
        api_key: Bearer token that requests must have. None accepts any request.
        context_tokens: Maximum length of a prompt. A longer prompt gets 400 `context_length_exceeded`. A token is about a
            byte.
        weight_version: Value of `metadata.weight_version`. It may be changed while the server is running.
        record: Number of requests to store.
        watch: Strings to count in all requests, such as a key that must not arrive.
        host: Address to listen on.
        port: Port to listen on. 0 selects a free port.

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
            raise ConfigError("Both a script and a score were passed.", hint="Use a score with behaviour='judge'.")
        if script is not None and behaviour != "random":
            raise ConfigError(f"Both a script and the behaviour {behaviour!r} were passed.", hint="Pass one of them.")
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

    # what tests read

    @property
    def url(self) -> str:
        """Address for a policy's `inference_url`: `http://HOST:PORT/v1`."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The address without `/v1`. A client may insert a path between the two."""
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
        """The version of the weights that replies name."""
        return self._answering.weight_version

    @weight_version.setter
    def weight_version(self, version: str | None) -> None:
        self._answering.weight_version = version

    @property
    def faults(self) -> Faults:
        """The faults of subsequent requests."""
        return self._answering.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._answering.faults = faults

    # running

    async def serve(self, announce: Callable[[Self], None] | None = None) -> None:
        """Serve in this task until it is cancelled. `announce` is called when the address is known. Raises ConfigError."""
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
            await asyncio.sleep(0)  # so that transports close before the loop does

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
        """Serve on this thread until KeyboardInterrupt, which it raises. Raises ConfigError."""
        with asyncio.Runner(loop_factory=quickest_loop()) as runner:
            runner.run(self.serve(announce))

    def start(self) -> Self:
        """Start serving on a separate thread, and return when the server is ready. Raises ConfigError."""
        if self._thread is not None:
            raise ConfigError("The mock model is already running.", hint="Create another one, or close this one first.")
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
        except BaseException as error:  # `start` raises it
            self._failure = error
        finally:
            begun.set()

    def close(self) -> None:
        """Stop serving and close every connection. Recorded requests remain available."""
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
        """Start the same server in a separate process, whose CPU time is not the caller's.

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
    """Return the factory of uvloop's event loop if it is installed, else of asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop

"""A control plane on loopback: the peer of Modal's own client and container entry point in the tests.

Written from the request and response types of the installed `modal_proto` alone. It keeps what it is sent, so
that a test can ask what a deploy registered, and hands a deployed web function its HTTP requests, so that a
test can ask what the container answers. It builds no image and checks no account.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2

BUILDER_VERSION = "2025.06"
APP_ID, FUNCTION_ID, TASK_ID = "ap-1", "fu-1", "ta-1"
WEB_URL = "https://workspace--taskapp.modal.run"

Rpc = Callable[["ControlPlane", Any], Message | Awaitable[Message]]


def unary(answer: Rpc) -> Callable[[ControlPlane, Any], Coroutine[Any, Any, None]]:
    """A grpclib method that records the request and sends what `answer` makes of it."""

    async def method(self: ControlPlane, stream: Any) -> None:
        request = await stream.recv_message()
        self.received.append((answer.__name__, request))
        if not self.authenticated:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        response = answer(self, request)
        await stream.send_message(response if isinstance(response, Message) else await response)

    method.__name__ = answer.__name__
    return method


@dataclass
class HttpAnswer:
    """What the web function answered to one request."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class _Call:
    """One HTTP request on its way through the container."""

    body: bytes
    arguments: bytes
    answer: HttpAnswer = field(default_factory=HttpAnswer)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""


class ControlPlane:
    """The servicer and its records.

    Args:
        secrets: the workspace's named Secrets, name → keys that it holds.
        apps: deployed apps, name → tags.
        web_url: where a deployed web function is said to answer.
    """

    def __init__(
        self,
        secrets: dict[str, set[str]],
        *,
        apps: dict[str, dict[str, str]] | None = None,
        web_url: str = WEB_URL,
    ) -> None:
        self.secrets = secrets
        self.apps = dict(apps or {})
        self.environments = {"", "main"}
        self.web_url = web_url
        self.authenticated = True
        self.disconnected = False
        self.received: list[tuple[str, Message]] = []
        self.files: dict[str, bytes] = {}
        self.mounts: dict[str, list[api_pb2.MountFile]] = {}
        self.images: list[api_pb2.Image] = []
        self.function: api_pb2.Function | None = None
        self.published: list[api_pb2.AppPublishRequest] = []
        self.task_failures: list[str] = []
        self.url = ""
        self._calls: dict[str, _Call] = {}
        self._inputs: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __mapping__(self) -> dict[str, Handler]:
        """What grpclib serves: the calls written here, typed by Modal's service; others are UNIMPLEMENTED."""
        service = api_pb2.DESCRIPTOR.services_by_name["ModalClient"]
        return {
            f"/{service.full_name}/{call.name}": Handler(
                getattr(self, call.name),
                Cardinality.UNARY_STREAM if call.server_streaming else Cardinality.UNARY_UNARY,
                GetMessageClass(call.input_type),
                GetMessageClass(call.output_type),
            )
            for call in service.methods
            if hasattr(self, call.name)
        }

    def requests(self, name: str) -> list[Any]:
        """Every request of one kind, in order."""
        return [request for kind, request in self.received if kind == name]

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serves on a free loopback port, in a thread of its own."""
        ready, stop = threading.Event(), asyncio.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            server = Server([self])
            listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await server.start(sock=listener)
            ready.set()
            await stop.wait()
            server.close()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        assert ready.wait(10), "the control plane did not start"
        try:
            yield self
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    # What a deploy calls.

    @unary
    def AppGetLayout(self, request: Any) -> Message:
        functions = {} if self.function is None else {self.function.function_name: FUNCTION_ID}
        return api_pb2.AppGetLayoutResponse(app_layout=api_pb2.AppLayout(function_ids=functions))

    @unary
    def AppGetByDeploymentName(self, request: Any) -> Message:
        self._known(request.environment_name)
        return api_pb2.AppGetByDeploymentNameResponse(app_id=APP_ID if request.name in self.apps else "")

    @unary
    def AppGetOrCreate(self, request: api_pb2.AppGetOrCreateRequest) -> Message:
        self._known(request.environment_name)
        if request.app_name not in self.apps:
            raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found in environment 'main'.")
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    @unary
    def AppGetTags(self, request: api_pb2.AppGetTagsRequest) -> Message:
        return api_pb2.AppGetTagsResponse(tags=self.apps.get(request.app_id.removeprefix("ap-"), {}))

    @unary
    def FunctionGet(self, request: api_pb2.FunctionGetRequest) -> Message:
        if request.app_name not in self.apps or self.function is None:
            raise GRPCError(Status.NOT_FOUND, f"Function '{request.app_name}/{request.object_tag}' not found.")
        return api_pb2.FunctionGetResponse(
            function_id=FUNCTION_ID, handle_metadata=self._handle(self.function), function=self._data(self.function)
        )

    @unary
    def AppCreate(self, request: Any) -> Message:
        return api_pb2.AppCreateResponse(app_id=APP_ID, app_page_url="https://modal.com/apps/ap-1")

    def _known(self, environment: str) -> None:
        if environment not in self.environments:
            raise GRPCError(Status.NOT_FOUND, f"Environment '{environment}' not found.")

    @unary
    def EnvironmentGetOrCreate(self, request: api_pb2.EnvironmentGetOrCreateRequest) -> Message:
        self._known(request.deployment_name)
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-1", metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings)
        )

    @unary
    def SecretGetOrCreate(self, request: api_pb2.SecretGetOrCreateRequest) -> Message:
        name = request.deployment_name
        self._known(request.environment_name)
        if request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            if name in self.secrets:
                raise GRPCError(Status.ALREADY_EXISTS, f"Secret '{name}' already exists.")
            self.secrets[name] = set(request.env_dict)
        if name not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found in environment 'main'.")
        missing = sorted(set(request.required_keys) - self.secrets[name])
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' is missing key(s) {', '.join(missing)}.")
        return api_pb2.SecretGetOrCreateResponse(
            secret_id=f"st-{name}",
            metadata=api_pb2.SecretMetadata(name=name, keys=sorted(self.secrets[name])),
        )

    @unary
    def SecretUpdate(self, request: api_pb2.SecretUpdateRequest) -> Message:
        self.secrets[request.secret_id.removeprefix("st-")] |= {update.key for update in request.updates}
        return Empty()

    @unary
    def VolumeGetOrCreate(self, request: api_pb2.VolumeGetOrCreateRequest) -> Message:
        name = request.deployment_name
        return api_pb2.VolumeGetOrCreateResponse(
            volume_id=f"vo-{name}", metadata=api_pb2.VolumeMetadata(name=name), version=request.version
        )

    @unary
    def MountBatchedCheckExistence(self, request: api_pb2.MountBatchedCheckExistenceRequest) -> Message:
        missing = [digest for digest in request.sha256_hex_hashes if digest not in self.files]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    @unary
    def MountPutFile(self, request: api_pb2.MountPutFileRequest) -> Message:
        self.files[request.sha256_hex] = request.data
        return api_pb2.MountPutFileResponse(exists=True)

    @unary
    def MountGetOrCreate(self, request: api_pb2.MountGetOrCreateRequest) -> Message:
        mount_id = f"mo-{len(self.mounts) + 1}"
        self.mounts[mount_id] = list(request.files)
        return api_pb2.MountGetOrCreateResponse(
            mount_id=mount_id,
            handle_metadata=api_pb2.MountHandleMetadata(content_checksum_sha256_hex=mount_id),
        )

    @unary
    def ImageGetOrCreate(self, request: api_pb2.ImageGetOrCreateRequest) -> Message:
        self.images.append(request.image)
        return api_pb2.ImageGetOrCreateResponse(
            image_id=f"im-{len(self.images)}",
            result=api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS),
            metadata=api_pb2.ImageMetadata(image_builder_version=BUILDER_VERSION),
        )

    @unary
    def FunctionPrecreate(self, request: api_pb2.FunctionPrecreateRequest) -> Message:
        return api_pb2.FunctionPrecreateResponse(
            function_id=FUNCTION_ID,
            handle_metadata=api_pb2.FunctionHandleMetadata(
                function_name=request.function_name, function_type=request.function_type, web_url=self.web_url
            ),
        )

    @unary
    def FunctionCreate(self, request: api_pb2.FunctionCreateRequest) -> Message:
        self.function = function = request.function
        return api_pb2.FunctionCreateResponse(
            function_id=FUNCTION_ID,
            function=function,
            handle_metadata=self._handle(function),
            function_data=self._data(function),
        )

    def _data(self, function: api_pb2.Function) -> api_pb2.FunctionData:
        return api_pb2.FunctionData(
            module_name=function.module_name,
            function_name=function.function_name,
            function_type=function.function_type,
            webhook_config=function.webhook_config,
            web_url=self.web_url,
            ranked_functions=[api_pb2.FunctionData.RankedFunction(rank=0, function=function)],
        )

    @unary
    def AppPublish(self, request: api_pb2.AppPublishRequest) -> Message:
        self.published.append(request)
        if request.app_state == api_pb2.APP_STATE_DEPLOYED:
            self.apps[request.name] = dict(request.tags)
        return api_pb2.AppPublishResponse(url="https://modal.com/apps/ap-1", deployed_at=1.0)

    @unary
    def TaskList(self, request: Any) -> Message:
        return api_pb2.TaskListResponse()  # none is running when somebody asks what to stop

    @unary
    def AppHeartbeat(self, request: Any) -> Message:
        return Empty()

    @unary
    def AppClientDisconnect(self, request: Any) -> Message:
        self.disconnected = True
        return Empty()

    async def AppGetLogs(self, stream: Any) -> None:
        """No logs, until the client of an app that it serves has gone."""
        await stream.recv_message()
        while not self.disconnected:
            await asyncio.sleep(0.05)
        await stream.send_message(api_pb2.TaskLogsBatch(app_done=True))

    # What a container calls.

    @unary
    def ContainerHello(self, request: Any) -> Message:
        return Empty()

    @unary
    def ContainerHeartbeat(self, request: Any) -> Message:
        return api_pb2.ContainerHeartbeatResponse()

    @unary
    def FunctionGetDynamicConcurrency(self, request: api_pb2.FunctionGetDynamicConcurrencyRequest) -> Message:
        # Never 0: the container would wait for its last input slot for ever.
        return api_pb2.FunctionGetDynamicConcurrencyResponse(concurrency=request.max_concurrency)

    @unary
    async def FunctionGetInputs(self, request: Any) -> Message:
        call_id = await self._inputs.get()
        if call_id is None:
            self._inputs.put_nowait(None)
            return api_pb2.FunctionGetInputsResponse(inputs=[api_pb2.FunctionGetInputsItem(kill_switch=True)])
        # The arguments are a pickled call with one ASGI scope; what comes back are ASGI messages.
        given = api_pb2.FunctionInput(args=self._calls[call_id].arguments, data_format=api_pb2.DATA_FORMAT_PICKLE)
        item = api_pb2.FunctionGetInputsItem(input_id=f"in-{call_id}", function_call_id=call_id, input=given)
        return api_pb2.FunctionGetInputsResponse(inputs=[item])

    async def FunctionCallGetDataIn(self, stream: Any) -> None:
        """Sends the request's body, then holds the stream: one that ends early is asked for again at once."""
        request = await stream.recv_message()
        call = self._calls[request.function_call_id]
        if request.last_index < 1:
            message = api_pb2.Asgi(http_request=api_pb2.Asgi.HttpRequest(body=call.body, more_body=False))
            await stream.send_message(
                api_pb2.DataChunk(data_format=api_pb2.DATA_FORMAT_ASGI, data=message.SerializeToString(), index=1)
            )
        await call.finished.wait()

    @unary
    def FunctionCallPutDataOut(self, request: api_pb2.FunctionCallPutDataRequest) -> Message:
        answer = self._calls[request.function_call_id].answer
        for chunk in request.data_chunks:
            if chunk.data_format != api_pb2.DATA_FORMAT_ASGI:
                continue
            message = api_pb2.Asgi.FromString(chunk.data)
            if message.HasField("http_response_start"):
                flat = [bytes(part).decode("latin-1") for part in message.http_response_start.headers]
                answer.status = message.http_response_start.status
                answer.headers = {key.lower(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
            elif message.HasField("http_response_body"):
                answer.body += message.http_response_body.body
        return Empty()

    @unary
    def FunctionPutOutputs(self, request: api_pb2.FunctionPutOutputsRequest) -> Message:
        for output in request.outputs:
            call = self._calls[output.input_id.removeprefix("in-")]
            call.failure = output.result.exception
            call.finished.set()
        return Empty()

    @unary
    def TaskResult(self, request: api_pb2.TaskResultRequest) -> Message:
        self.task_failures.append(f"{request.result.exception}\n{request.result.traceback}")
        for call in self._calls.values():
            call.failure = call.failure or self.task_failures[-1]
            call.finished.set()
        return Empty()

    # What a test calls.

    def wheels(self) -> list[bytes]:
        """The wheels that the images' layers were given."""
        mounts = [self.mounts[image.context_mount_id] for image in self.images if image.context_mount_id]
        return [self.files[file.sha256_hex] for files in mounts for file in files if file.filename.endswith(".whl")]

    def http(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 30.0,
    ) -> HttpAnswer:
        """Sends one HTTP request to the function, as Modal's proxy does, and waits for its whole answer."""
        sent = {"host": "workspace--taskapp.modal.run", "content-length": str(len(body)), **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "https",
            "path": path,
            "query_string": query.encode(),
            "headers": [(key.lower().encode(), value.encode("latin-1")) for key, value in sent.items()],
            "client": ("203.0.113.7", 40000),
        }
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(self._send(pickle.dumps(((scope,), {})), body), self._loop)
        try:
            call = future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise AssertionError(f"no answer to {method} {path} in {timeout} s; {self.task_failures}") from None
        assert not call.failure, call.failure
        return call.answer

    def task_failure(self, *, timeout: float) -> str:
        """Waits until a container reports that it could not start, and gives the cause that it named."""
        deadline = time.monotonic() + timeout
        while not self.task_failures:
            assert time.monotonic() < deadline, f"no failure was reported in {timeout} s"
            time.sleep(0.02)
        return self.task_failures[0]

    async def _send(self, arguments: bytes, body: bytes) -> _Call:
        call_id = f"fc-{len(self._calls) + 1}"
        self._calls[call_id] = call = _Call(body=body, arguments=arguments)
        self._inputs.put_nowait(call_id)
        await call.finished.wait()
        return call

    @contextmanager
    def container(self, folder: Path, environment: dict[str, str]) -> Iterator[Path]:
        """Runs Modal's container entry point on the last deploy's function; gives the source root there.

        The process sees the files that the deploy uploaded, laid out below `folder` as they would lie below
        `/`, the wheel of the image unpacked as a package, and this Python's installed packages; `environment` stands
        for the Secret's values.
        """
        assert self.function is not None, "deploy first"
        self._inputs = asyncio.Queue()  # the last container's ended with an order to stop
        for mount_id in self.function.mount_ids:
            for entry in self.mounts[mount_id]:
                path = folder / entry.filename.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.files[entry.sha256_hex])
        root, site = folder / "root", folder / "site-packages"
        for wheel in self.wheels():
            zipfile.ZipFile(io.BytesIO(wheel)).extractall(site)
        objects = [
            api_pb2.Object(object_id=FUNCTION_ID, function_handle_metadata=self._handle(self.function)),
            *(api_pb2.Object(object_id=dep.object_id) for dep in self.function.object_dependencies),
        ]
        arguments = api_pb2.ContainerArguments(
            task_id=TASK_ID,
            function_id=FUNCTION_ID,
            app_id=APP_ID,
            function_def=self.function,
            environment_name="main",
            app_layout=api_pb2.AppLayout(objects=objects, function_ids={self.function.function_name: FUNCTION_ID}),
        )
        (folder / "arguments").write_bytes(arguments.SerializeToString())
        log = (folder / "log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "modal._container_entrypoint"],
            cwd=root,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "PYTHONPATH": f"{root}:{site}",
                "MODAL_IS_REMOTE": "1",
                "MODAL_SERVER_URL": self.url,
                "MODAL_TASK_ID": TASK_ID,
                "MODAL_CONTAINER_ARGUMENTS_PATH": str(folder / "arguments"),
                **environment,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()  # the process has its own handle
        try:
            yield root
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._inputs.put_nowait, None)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _handle(self, function: api_pb2.Function) -> api_pb2.FunctionHandleMetadata:
        return api_pb2.FunctionHandleMetadata(
            function_name=function.function_name,
            function_type=function.function_type,
            web_url=self.web_url,
            definition_id="de-1",
            app_id=APP_ID,
        )

"""Traces of rollouts for OpenTelemetry. OpenTelemetry is not loaded unless the operator enables traces.

Traces are enabled if the process has a tracer provider, for example from `opentelemetry-instrument`, or if one of the
standard variables OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_TRACES_EXPORTER is set. The
SDK reads the other OTEL_ variables, for sampling, batching, headers and resources. `spans.py` builds the spans.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from taskapp_kit.config import Settings
from taskapp_kit.net.redact import without_whole
from taskapp_kit.records.content import without_surrogates
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import RunningRollout
from taskapp_kit.serve.telemetry.spans import MAX_SPANS, Span, root_of, spans_of
from taskapp_kit.version import __version__
from taskapp_kit.wire.inference_url import HIDDEN

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as Written
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger("taskapp_kit.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXTRA = "pip install 'taskapp-kit[otel]'"
WAITING = 128
"""The maximum number of rollouts that wait for their spans. Further rollouts are dropped, counted and logged."""
MAX_CONTENT = 1024
"""The maximum length of an observation or answer in a span, in characters."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.I)
"""Names of variables that contain secrets, which traces must not contain."""


class Tracing:
    """A RolloutObserver that writes the spans of each rollout, in a separate thread.

    Args:
        provider: The tracer provider.
        content: Whether spans contain observations and answers, shortened to MAX_CONTENT and without `secrets`.
        secrets: Strings that spans must not contain.
        owned: Whether `close` shuts the provider down.
        most: Maximum number of spans for a rollout.

    Attributes:
        dropped: How many rollouts were dropped because too many were waiting.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        content: bool = False,
        secrets: Iterable[str] = (),
        owned: bool = False,
        most: int = MAX_SPANS,
    ) -> None:
        self.dropped = 0
        self._provider = provider
        self._owned = owned
        self._most = most
        self._tracer: Tracer = provider.get_tracer("taskapp_kit", __version__)
        # shorter secrets also occur in ordinary words
        forms = {form for secret in secrets if len(secret) >= 6 for form in _written(secret)}
        # longest first, because a secret may contain another secret
        self._secrets = sorted(forms, key=len, reverse=True)
        self._content = self._shown if content else None
        # when exporting is slow, an unlimited queue would keep the events of all rollouts in memory
        self._places = threading.Semaphore(WAITING)
        # in a thread, because building the spans of a long episode would block the event loop for milliseconds
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="taskapp-traces")

    def __call__(self, rollout: RunningRollout, result: Rollout) -> None:
        """Accept an ended rollout. Called on the event loop."""
        if not self._places.acquire(blocking=False):
            self.dropped += 1
            if self.dropped.bit_count() == 1:  # logged at 1, 2, 4, 8, …
                log.warning(
                    "traces of %d rollouts were dropped, because building spans is too slow for this load", self.dropped
                )
            return
        try:
            self._writer.submit(self._write, rollout, result)
        except RuntimeError:  # closed
            self._places.release()

    def flush(self) -> None:
        """Wait until the spans of all accepted rollouts are written."""
        self._writer.submit(int).result()

    def close(self) -> None:
        """Write all waiting spans, and shut the provider down if it is `owned`. Blocks the calling thread."""
        self._writer.shutdown(wait=True)
        if self._owned:
            self._provider.shutdown()  # type: ignore[attr-defined]  # an owned provider is the SDK's

    def _write(self, rollout: RunningRollout, result: Rollout) -> None:
        try:
            self._trace(rollout, result)
        except Exception:
            log.exception("the trace of rollout %s could not be built", rollout.rollout_id)
        finally:
            self._places.release()

    def _trace(self, rollout: RunningRollout, result: Rollout) -> None:
        span = root_of(rollout, result)
        root = self._begin(span, _parent(rollout))
        if root.is_recording():  # read events only if the trace is sampled
            span = spans_of(rollout, result, content=self._content, most=self._most)
            root.set_attributes(span.attributes)
        self._finish(root, span)

    def _finish(self, written: Written, span: Span) -> None:
        """Write the children of a started span, and end the span."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        for child in span.children:
            self._finish(self._begin(child, set_span_in_context(written)), child)
        if span.failed is not None:
            boundary = span.attributes.get("taskapp.boundary")
            written.set_status(Status(StatusCode.ERROR, f"{boundary}: {span.failed}" if boundary else span.failed))
        written.end(span.end_ns)

    def _begin(self, span: Span, parent: Context) -> Written:
        from opentelemetry.trace import SpanKind

        kind = SpanKind[span.kind.upper()]
        return self._tracer.start_span(span.name, parent, kind, span.attributes, start_time=span.start_ns)

    def _shown(self, text: str) -> str:
        text = without_whole(text, self._secrets, HIDDEN)
        text = without_surrogates(text)  # exporters cannot encode surrogates
        return text if len(text) <= MAX_CONTENT else text[:MAX_CONTENT] + "…"


def tracing_of(settings: Settings, service_name: str) -> Tracing | None:
    """Return the tracing that the process or the variables in `settings` enable, or None if traces are not enabled.

    `service_name` is the `service.name` of the resource unless the operator sets it. If a package is missing, a
    warning is logged and None is returned.
    """
    provider, owned = _set_provider(), False
    if provider is None:
        provider, owned = _asked_provider(settings.variables, service_name), True
    if provider is None:
        return None
    return Tracing(provider, content=settings.trace_content, secrets=_secrets(settings), owned=owned)


def _parent(rollout: RunningRollout) -> Context:
    """Return the context of the caller's span, or an empty context if the request has no W3C trace headers."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = {"traceparent": rollout.caller.traceparent, "tracestate": rollout.caller.tracestate}
    carrier = {name: value for name, value in given.items() if value}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _set_provider() -> TracerProvider | None:
    """Return this process's tracer provider, or None if the process has not set a provider."""
    # not imported, because code that sets a provider has already imported the module
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    found: TracerProvider = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else found


def _asked_provider(variables: Mapping[str, str], service_name: str) -> TracerProvider | None:
    """Return a provider with the exporters that the variables select, or None if no exporter is available."""
    names = [name.strip() for name in variables.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if not names and any(variables.get(name) for name in ENDPOINTS):
        names = ["otlp"]
    if not names or "none" in names or variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        resources = importlib.import_module("opentelemetry.sdk.resources")
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
    except ImportError:
        log.warning("OTEL_ variables enable traces, but OpenTelemetry is not installed. Run: %s", EXTRA)
        return None
    exporters = [exporter for name in names if (exporter := _exporter(name, variables)) is not None]
    if not exporters:
        return None
    named = variables.get("OTEL_SERVICE_NAME") or "service.name=" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = resources.Resource.create({} if named else {"service.name": service_name})
    provider: TracerProvider = sdk.TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(export.BatchSpanProcessor(exporter))  # type: ignore[attr-defined]
    return provider


def _exporter(name: str, variables: Mapping[str, str]) -> Any:
    """Return the exporter with this name from the installed entry points.

    If the exporter is not installed or raises an exception, log a warning and return None.
    """
    protocol = next((variables[name] for name in PROTOCOLS if variables.get(name)), "http/protobuf").strip()
    wanted = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}.get(protocol) if name == "otlp" else name
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=wanted or protocol)
    if not found:
        hint = EXTRA if wanted == "otlp_proto_http" else "install its package"
        log.warning("exporter %r is disabled, because %r is not installed: %s", name, wanted or protocol, hint)
        return None
    try:
        # a broken exporter must not prevent the server from starting
        return next(iter(found)).load()()
    except Exception as error:
        log.warning("exporter %r is disabled, because its constructor raised %s", name, type(error).__name__)
        return None


def _written(secret: str) -> tuple[str, str, str]:
    """Return three forms of a secret: plain text, ASCII-only JSON, and JSON with non-ASCII characters."""
    return secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]


def _secrets(settings: Settings) -> list[str]:
    """Return the strings that must not appear in traces: the server's keys and the values of secret variables."""
    own = (settings.environment_api_key, settings.dev_environment_api_key, *settings.environment_api_key_aliases)
    others = [value for name, value in settings.variables.items() if SECRET.search(name)]
    return [value for value in (*own, *others) if value]

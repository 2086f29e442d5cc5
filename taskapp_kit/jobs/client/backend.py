"""The HTTP client of a training backend: jobs, their events and metrics, keys, trainers."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from taskapp_kit.config import process_variable
from taskapp_kit.errors import BackendError, BackendUnreachable, JobConfigError
from taskapp_kit.jobs.client.stream import follow_events
from taskapp_kit.net.addresses import read_address
from taskapp_kit.net.envelope import ended, error_members, sentence
from taskapp_kit.net.http import CHECK_PROXY, NO_CONNECTION, HttpResponse, NoAnswer, Transport, Trouble, header_key
from taskapp_kit.net.retry import again
from taskapp_kit.records.job_status import MAX_ID

if TYPE_CHECKING:
    import aiohttp

FAMILIES = ("rl", "learning", "orchestration")
EXAMPLE = "http://127.0.0.1:8500"
NO_BACKEND = "Check that this is the address of a training backend."
NO_SUCH_ROUTE = frozenset({404, 405})
WRITE_RETRIES = 3
READ_RETRIES = 2


def backend_url(given: str | None) -> str:
    """Return `given`. If it is None or blank, return the value of BACKEND_BASE_URL or PROD_BACKEND_URL.

    Raises:
        JobConfigError: `given` is None or blank, and neither variable is set.
    """
    url = (given or "").strip() or process_variable("BACKEND_BASE_URL") or process_variable("PROD_BACKEND_URL")
    if not url:
        raise JobConfigError(
            "The backend's address is not set. No argument was passed, and BACKEND_BASE_URL and PROD_BACKEND_URL are unset.",
            hint=f"Set BACKEND_BASE_URL to an address such as {EXAMPLE}, where `taskapp backend serve` starts a backend.",
        )
    return url


def api_base(url: str) -> str:
    """Return the base address of the routes, which ends in `/api`.

    Raises ConfigError if `url` is not a valid address.
    """
    address = read_address(url, example=EXAMPLE)
    return address if address.endswith("/api") else f"{address}/api"


class BackendClient:
    """A client of one backend.

    async with BackendClient(url, key) as client:
        job = await client.create_job(payload)

    Redirects are not followed. Reads are retried if the connection breaks. Creating a job is retried only with an
    idempotency key. Every method raises BackendError (with the HTTP `status`) if the backend rejects the request,
    and BackendUnreachable if it does not respond.

    Args:
        url: The backend's address, with or without `/api`.
        api_key: Sent as a Bearer token to this address and nowhere else.
        timeout_seconds: The time limit of one request.
        retries: How often a read is retried.

    Raises:
        ConfigError: The address or the key is invalid.
    """

    def __init__(self, url: str, api_key: str, *, timeout_seconds: float = 60.0, retries: int = READ_RETRIES) -> None:
        self.url = api_base(url)
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        self._key = header_key(api_key, "The backend's key")
        self._transport = Transport({} if self._key is None else {"Authorization": f"Bearer {self._key}"})
        self._families: dict[str, str] = {}
        self._rng = random.Random()

    # jobs

    async def create_job(self, payload: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """`POST rl/jobs`: create a job and return it.

        Without an idempotency key, a broken connection is not retried.
        """
        return await self._write("rl/jobs", payload, idempotency_key=idempotency_key)

    async def start_job(self, job_id: str) -> dict[str, Any]:
        """`POST rl/jobs/{id}/start`: restart a failed or cancelled job from its last checkpoint, if it has one."""
        return await self._write(f"rl/jobs/{_part(job_id)}/start", {})

    async def get_job(self, job_id: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Return the job. seconds: A time limit for this request, which is then not retried."""
        return _object(await self._family("job", f"jobs/{_part(job_id)}", {}, seconds), self.url, "jobs")

    async def list_jobs(
        self, limit: int = 50, status: str | None = None, tags: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the latest jobs, newest first.

        Args:
            limit: The largest number of jobs to return.
            status: If set, return only jobs with this status.
            tags: Return only jobs that have all of these tags. Each tag is `NAME` or `NAME=VALUE`.
        """
        query = {"limit": limit, **({} if status is None else {"status": status}), "tag": list(tags)}
        return _rows(await self._family("jobs", "jobs", query), "jobs", self.url)

    async def events(self, job_id: str, since_seq: int = 0, limit: int = 200) -> list[dict[str, Any]]:
        """Return at most `limit` events whose number is greater than `since_seq`."""
        query = {"since_seq": since_seq, "limit": limit}
        return _rows(await self._family("events", f"jobs/{_part(job_id)}/events", query), "events", self.url)

    async def metrics(self, job_id: str, after_step: int = -1, limit: int = 200) -> list[dict[str, Any]]:
        """Return at most `limit` points `{name, value, step, …}` of the steps after `after_step`."""
        query = {"after_step": after_step, "limit": limit}
        return _rows(await self._family("metrics", f"jobs/{_part(job_id)}/metrics", query), "points", self.url)

    async def timeline(self, job_id: str) -> list[dict[str, Any]]:
        """Return the phases that the job has reached, each as `{phase, created_at}`."""
        return _rows(await self._family("timeline", f"jobs/{_part(job_id)}/timeline", {}), "events", self.url)

    def stream(self, job_id: str, since_seq: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Yield every event after `since_seq`, in order and without gaps, until the job has ended.

        The events come from a stream of server-sent events. If the backend has no such stream, or the stream breaks,
        the job is polled instead.
        """
        return follow_events(self, job_id, since_seq)

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """`POST rl/jobs/{id}/cancel`: cancel the job and return it."""
        return await self._write(f"rl/jobs/{_part(job_id)}/cancel", {})

    # keys and trainers

    async def verify_task_app(self, url: str) -> dict[str, Any]:
        """Make the backend call a task app, and return the result.

        `any_ok` is true if the backend can use the task app.
        """
        return await self._write("rl/verify_task_app", {"endpoint_base_url": url})

    async def trainer(self, trainer_id: str) -> dict[str, Any]:
        """Return a trainer: `GET rl/services/{trainer_id}`."""
        return _object(await self._get(f"rl/services/{_part(trainer_id)}"), self.url, "rl/services")

    async def public_key(self) -> str:
        """Return the public key, in base64, with which a task app's key is encrypted."""
        path = "v1/crypto/public-key"
        body = _object(await self._get(path), self.url, path)
        if not isinstance(body.get("public_key"), str):
            raise _odd(self.url, path, "has no public_key")
        if body.get("alg") not in (None, "libsodium.sealedbox.v1"):
            raise _odd(self.url, path, "has a key for another algorithm than libsodium.sealedbox.v1")
        return str(body["public_key"])

    async def put_env_key(self, name: str, ciphertext_b64: str) -> dict[str, Any]:
        """Store a sealed key in the backend."""
        return await self._write("v1/env-keys", {"name": name, "ciphertext_b64": ciphertext_b64})

    async def health(self) -> dict[str, Any]:
        """`GET health`. It is not retried, so it reports the current state."""
        return _object(await self._get("health", retries=0), self.url, "health")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> BackendClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def open_events(
        self, family: str, job_id: str, since_seq: int, *, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an event stream and yield its response. Raises NoAnswer if the backend does not respond."""
        query = urlencode({"since_seq": since_seq})
        url = f"{self.url}/{family}/jobs/{_part(job_id)}/events/stream?{query}"
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Last-Event-ID": str(since_seq)}
        async with self._transport.open(
            "GET", url, headers=headers, seconds=None, silence_seconds=silence_seconds
        ) as response:
            yield response

    # requests

    async def _family(
        self, what: str, path: str, query: Mapping[str, Any], seconds: float | None = None
    ) -> dict[str, Any] | list[Any]:
        """GET a route that may be under rl/, learning/ or orchestration/.

        The prefix that worked last time is tried first.
        """
        last = self._families.get(what)
        suffix = f"?{urlencode(query, doseq=True)}" if query else ""
        missing: BackendError | None = None
        for family in sorted(FAMILIES, key=lambda name: name != last):
            try:
                body = await self._get(f"{family}/{path}{suffix}", seconds=seconds)
            except BackendError as error:
                if error.status not in NO_SUCH_ROUTE:
                    raise
                missing = missing or error
            else:
                self._families[what] = family
                return body
        assert missing is not None
        raise missing

    async def _get(
        self, path: str, *, retries: int | None = None, seconds: float | None = None
    ) -> dict[str, Any] | list[Any]:
        limit = self.timeout_seconds if seconds is None else min(seconds, self.timeout_seconds)
        if retries is None:
            retries = self.retries if seconds is None else 0  # a caller that sets `seconds` retries itself
        shown = path.partition("?")[0]
        try:
            answer = await again(
                lambda: self._transport.send("GET", f"{self.url}/{path}", seconds=limit),
                retries=retries,
                rng=self._rng,
            )
        except NoAnswer as lost:
            raise _unreachable(lost, self.url, shown) from None
        return self._body(answer, shown)

    async def _write(self, path: str, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        key = header_key(idempotency_key, "The idempotency key")
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            content = orjson.dumps(dict(body))
        except TypeError as error:
            raise JobConfigError(f"The request for {path} cannot be encoded as JSON: {error}.") from None

        async def post() -> HttpResponse:
            return await self._transport.send(
                "POST", f"{self.url}/{path}", body=content, headers=headers, seconds=self.timeout_seconds
            )

        try:
            answer = await again(post, retries=0 if key is None else WRITE_RETRIES, rng=self._rng)
        except NoAnswer as lost:
            raise _unreachable(lost, self.url, path, may_act=True, repeatable=key is not None) from None
        return _object(self._body(answer, path), self.url, path)

    def _body(self, answer: HttpResponse, path: str) -> dict[str, Any] | list[Any]:
        if answer.status not in (200, 201, 202):
            raise _refusal(answer, self.url, path, self._key)
        try:
            body = answer.json()
        except ValueError:
            raise _odd(self.url, path, "is not JSON") from None
        if not isinstance(body, dict | list):
            raise _odd(self.url, path, "is neither an object nor an array")
        return body


def _part(name: str) -> str:
    """Return an id as one segment of a path."""
    if not name or name in (".", "..") or len(name) > MAX_ID:
        raise JobConfigError(f"The id of a job or trainer must have 1 to {MAX_ID} characters.")
    return quote(name, safe="")


def _object(body: dict[str, Any] | list[Any], url: str, path: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _odd(url, path, "is not an object")
    return body


def _rows(body: dict[str, Any] | list[Any], name: str, url: str) -> list[dict[str, Any]]:
    """Return the objects in an array: the body itself, or its field `name`, `data` or `items`."""
    rows: Any = body
    if isinstance(body, dict):
        rows = next((body[key] for key in (name, "data", "items") if isinstance(body.get(key), list)), None)
    if not isinstance(rows, list):
        raise _odd(url, name, f"contains no array {name!r}")
    return [row for row in rows if isinstance(row, dict)]


def _unreachable(
    lost: NoAnswer, url: str, path: str, *, may_act: bool = False, repeatable: bool = False
) -> BackendUnreachable:
    """Return the error for a request that got no response.

    Args:
        lost: Why there was no response.
        url: The backend's address.
        path: The route.
        may_act: Whether the request may have changed something in the backend.
        repeatable: Whether the request had an idempotency key.
    """
    if lost.kind is Trouble.REFUSED:
        return BackendUnreachable(
            f"No server responds at {url}.", hint="Start the backend (taskapp backend serve), or check the address."
        )
    if lost.kind is Trouble.PROXY:
        return BackendUnreachable(f"{url} {lost.why}.", hint=CHECK_PROXY)
    if lost.kind in NO_CONNECTION:
        return BackendUnreachable(f"{url} {lost.why}.", hint="Check the address.")
    if may_act and lost.sent and repeatable:
        return BackendUnreachable(
            f"{url}/{path} {lost.why}. The backend may have processed the request.",
            hint="Check the list of jobs, or repeat the request with the same key, which creates no second job.",
        )
    if may_act and lost.sent:
        return BackendUnreachable(
            f"{url}/{path} {lost.why}. The backend may have processed the request, so it was not sent again.",
            hint="Check the list of jobs before you send the request again. To make retries safe, pass an idempotency key.",
        )
    return BackendUnreachable(f"{url}/{path} {lost.why}.")


def _refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> BackendError:
    """Return the error for a response whose status is not 200, 201 or 202."""
    status = answer.status
    if status in (401, 403):
        what = "the key" if key else "a request without a key"
        return BackendError(
            f"{url} rejects {what}.", status=status, hint="Pass the backend's key as api_key, or set SYNTH_API_KEY."
        )
    if 300 <= status < 400:
        return BackendError(
            f"{url}/{path} answered {status}, a redirect. Redirects are not followed, to keep the key from other servers.",
            status=status,
            hint="If you trust the redirect's target, use its address instead.",
        )
    error = error_members(answer, key)
    if error is not None:
        return BackendError(
            f"{url}/{path} answered {status} ({error.code}): {ended(error.message)}",
            status=status,
            fields=error.fields,
            hint=error.hint + error.field_lines,
        )
    body = answer.json_object() or {}
    words = sentence(body.get("detail") or body.get("message") or body.get("error"), key)
    if words:
        return BackendError(f"{url}/{path} answered {status}: {ended(words)}", status=status)
    return BackendError(f"{url}/{path} answered {status}.", status=status, hint=NO_BACKEND)


def _odd(url: str, path: str, what: str) -> BackendError:
    """Return the error for a successful response whose body is invalid."""
    return BackendError(f"The response of {url}/{path} {what}.", status=200, hint=NO_BACKEND)

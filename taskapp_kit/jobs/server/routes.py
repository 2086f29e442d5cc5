"""The routes: each reads the request, calls the jobs and writes the response."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from taskapp_kit.errors import FieldProblem, RequestError, Unavailable
from taskapp_kit.jobs.server.auth import ORG
from taskapp_kit.jobs.server.inference import InferenceRoutes
from taskapp_kit.jobs.server.job_requests import MAX_TAGS, fingerprint, read_submission
from taskapp_kit.jobs.server.job_views import PHASES, events_view, frames, job_view, moment, point_view, timeline_view
from taskapp_kit.jobs.server.jobs import Jobs, new_job_id
from taskapp_kit.jobs.server.schema import ENDED, QUEUED, RUNNING, JobRow
from taskapp_kit.jobs.server.sealed_keys import ALGORITHM, MAX_CIPHERTEXT, SealedKeys
from taskapp_kit.jobs.server.task_app_access import TaskAppAccess
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.net.sse import EventStreamResponse
from taskapp_kit.version import __version__

MAX_BODY_BYTES = 1024 * 1024
MAX_BODY_VALUES = 200_000
MAX_PAGE = 1000
MAX_SEQ = 2**53
FAMILIES = ("rl", "learning", "orchestration")
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
KEY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class BackendContext:
    """The dependencies of the routes.

    box: Opens sealed keys. None if PyNaCl is not installed. trainers: The trainers' names, by id.
    """

    jobs: Jobs
    access: TaskAppAccess
    box: SealedKeys | None
    trainers: Mapping[str, str]
    inference: InferenceRoutes

    def routes(self) -> list[Route]:
        """Return all routes."""
        made = [
            Route("/", self.root, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/api/health", self.health, methods=["GET"]),
            Route("/api/rl/verify_task_app", self.verify, methods=["POST"]),
            Route("/api/rl/services/{trainer_id}", self.trainer, methods=["GET"]),
            Route("/api/rl/services", self.trainers_known, methods=["GET"]),
            Route("/api/v1/crypto/public-key", self.public_key, methods=["GET"]),
            Route("/api/v1/env-keys", self.put_key, methods=["POST"]),
            *self.inference.routes(),
        ]
        for family in FAMILIES:
            base = f"/api/{family}/jobs"
            one = base + "/{job_id}"
            made += [
                Route(base, self.all, methods=["GET", "POST"]),
                Route(one, self.job, methods=["GET"]),
                Route(one + "/start", self.start, methods=["POST"]),
                Route(one + "/cancel", self.cancel, methods=["POST"]),
                Route(one + "/events", self.events, methods=["GET"]),
                Route(one + "/events/stream", self.stream, methods=["GET"]),
                Route(one + "/metrics", self.metrics, methods=["GET"]),
                Route(one + "/timeline", self.timeline, methods=["GET"]),
            ]
        return made

    # the backend itself

    async def root(self, request: Request) -> EncodedResponse:
        """Return what this server is."""
        return json_answer({"status": "ok", "service": "taskapp backend"})

    async def health(self, request: Request) -> EncodedResponse:
        """Return the status. With a valid key, also return the version, the engine and the number of jobs."""
        found: dict[str, Any] = {
            "status": "stopping" if self.jobs.stopping else "ok",
            "healthy": not self.jobs.stopping,
        }
        if request.scope.get(ORG) is not None:
            engine = self.jobs.engine
            found |= {
                "version": __version__,
                "engine": engine.name,
                "updates_weights": engine.updates_weights,
                "jobs": dict(self.jobs.counts),
                "env_keys": self.box is not None,
            }
        return json_answer(found)

    async def verify(self, request: Request) -> EncodedResponse:
        """Check a task app with every key that this caller has uploaded."""
        body = await _body(request)
        url = self.access.addresses.read(body.get("endpoint_base_url"))
        return json_answer(await self.access.verify(_org(request), url))

    async def trainer(self, request: Request) -> EncodedResponse:
        """Return a trainer by its id."""
        name = request.path_params["trainer_id"]
        if name not in self.trainers:
            raise RequestRefused("trainer_not_found", "The trainer does not exist.", hint=self._known_trainers())
        return json_answer(self._trainer(request, name))

    async def trainers_known(self, request: Request) -> EncodedResponse:
        """Return every trainer."""
        return json_answer({"services": [self._trainer(request, name) for name in sorted(self.trainers)]})

    def _trainer(self, request: Request, name: str) -> dict[str, Any]:
        engine = self.jobs.engine
        return {
            "trainer_id": name,
            "name": self.trainers[name],
            "training_start_url": f"{str(request.base_url).rstrip('/')}/api/rl/jobs",
            "engine": engine.name,
            "updates_weights": engine.updates_weights,
        }

    def _known_trainers(self) -> str:
        return f"The trainers are {', '.join(sorted(self.trainers))}."

    async def public_key(self, request: Request) -> EncodedResponse:
        """Return the public key with which callers encrypt a task app's key."""
        return json_answer({"public_key": self._box().public_key, "alg": ALGORITHM})

    async def put_key(self, request: Request) -> EncodedResponse:
        """Store a sealed key. It replaces an earlier key with the same name."""
        body = await _body(request)
        name, ciphertext = body.get("name"), body.get("ciphertext_b64")
        if not isinstance(name, str) or not KEY_NAME.fullmatch(name):
            raise _wrong("name", "should be the name of an environment variable, such as ENVIRONMENT_API_KEY")
        if not isinstance(ciphertext, str) or not 0 < len(ciphertext) <= MAX_CIPHERTEXT:
            raise _wrong("ciphertext_b64", f"should be a sealed box in base64, of at most {MAX_CIPHERTEXT} characters")
        self._box().open(ciphertext)
        key_id = f"key_{uuid.uuid4().hex[:16]}"
        updated_at = await self.jobs.records.put_key(_org(request), name, key_id, ciphertext)
        return json_answer({"stored": True, "id": key_id, "name": name, "updated_at": moment(updated_at)})

    def _box(self) -> SealedKeys:
        if self.box is None:
            raise Unavailable(
                "This backend cannot open sealed keys.", hint="Run on the backend: pip install 'taskapp-kit[jobs]'"
            )
        return self.box

    # jobs

    async def all(self, request: Request) -> EncodedResponse:
        """Handle both methods of this path, so that the 405 response for other methods lists both."""
        return await (self.submit if request.method == "POST" else self.listed)(request)

    async def submit(self, request: Request) -> EncodedResponse:
        """Create a job and respond with 201.

        If an earlier request had the same Idempotency-Key, respond with 200 and its job.
        """
        body = await _body(request)
        keys = request.headers.getlist("idempotency-key")
        if len(keys) > 1 or any(not IDEMPOTENCY_KEY.fullmatch(key) for key in keys):
            raise RequestError(
                "The header Idempotency-Key is invalid. Send it once, with 1 to 255 visible ASCII characters."
            )
        document = read_submission(body, new_job_id(), addresses=self.access.addresses, engine=self.jobs.engine)
        if document.trainer_id and document.trainer_id not in self.trainers:
            raise _wrong("trainer_id", "is not a trainer of this backend", hint=self._known_trainers())
        await self.inference.check_job(document.config, document.model, _org(request))
        await self.access.addresses.admit(document.task_app_url)
        job = await self.jobs.submit(
            _org(request), document, fingerprint=fingerprint(body), idempotency_key=keys[0] if keys else None
        )
        if job.job_id != document.job_id:
            return json_answer(self._shown(job), 200, [(b"idempotent-replayed", b"true")])
        return json_answer(self._shown(job), 201)

    async def listed(self, request: Request) -> EncodedResponse:
        """Return the caller's jobs without results, newest first."""
        query = request.query_params
        limit = _whole(request, "limit", 50, 1, MAX_PAGE)
        status, after = query.get("status"), query.get("after")
        if status is not None and status not in (QUEUED, RUNNING, *ENDED):
            raise _wrong("status", f"should be one of {', '.join((QUEUED, RUNNING, *ENDED))}", where="query")
        jobs = await self.jobs.records.jobs(
            _org(request),
            limit=limit + 1,
            status=status,
            model=query.get("model"),
            tags=_tags(request),
            after=after,
        )
        return json_answer(
            {"jobs": [{**self._shown(job), "results": {}} for job in jobs[:limit]], "has_more": len(jobs) > limit}
        )

    async def job(self, request: Request) -> EncodedResponse:
        """Return the job."""
        return json_answer(self._shown(await self._job(request)))

    async def start(self, request: Request) -> EncodedResponse:
        """Restart a failed or cancelled job if its engine supports this, and return the job.

        Other jobs are not changed.
        """
        await self.jobs.restart(await self._job(request))
        return await self.job(request)

    async def cancel(self, request: Request) -> EncodedResponse:
        """Cancel the job and return it. A job that has ended is not changed."""
        await self.jobs.cancel(await self._job(request))
        return await self.job(request)

    async def events(self, request: Request) -> EncodedResponse | EventStreamResponse:
        """Return a page of events, or the event stream if the client accepts nothing else."""
        if "text/event-stream" in request.headers.get("accept", "").lower():
            return await self.stream(request)
        job = await self._job(request)
        since_seq = _whole(request, "since_seq", 0, -1, MAX_SEQ)
        limit = _whole(request, "limit", 200, 1, MAX_PAGE)
        found = await self.jobs.records.events(job.job_id, since_seq=since_seq, limit=limit)
        return json_answer(events_view(job.job_id, found, since_seq))

    async def stream(self, request: Request) -> EventStreamResponse:
        """Return the stream of events."""
        job = await self._job(request)
        since_seq = _whole(request, "since_seq", 0, -1, MAX_SEQ)
        last = request.headers.get("last-event-id", "")
        if last.isascii() and last.isdigit() and len(last) <= 15:
            since_seq = max(since_seq, int(last))
        return EventStreamResponse(frames(self.jobs, job.job_id, since_seq))

    async def metrics(self, request: Request) -> EncodedResponse:
        """Return a page of the metrics' points."""
        job = await self._job(request)
        after = _whole(request, "after_step", -1, -1, MAX_SEQ) if "after_step" in request.query_params else None
        limit = _whole(request, "limit", 200, 1, MAX_PAGE)
        found = await self.jobs.records.points(job.job_id, after_step=after, limit=limit)
        return json_answer({"points": [point_view(job.job_id, row) for row in found]})

    async def timeline(self, request: Request) -> EncodedResponse:
        """Return the latest phases of the job."""
        job = await self._job(request)
        found = await self.jobs.records.last_events(job.job_id, list(PHASES), MAX_PAGE)
        return json_answer(timeline_view(job.job_id, found))

    async def _job(self, request: Request) -> JobRow:
        job_id = request.path_params["job_id"]
        job = await self.jobs.records.job(job_id, _org(request)) if JOB_ID.fullmatch(job_id) else None
        if job is None:
            raise RequestRefused(
                "job_not_found", "This key has no job with this id.", hint="GET /api/rl/jobs lists this key's jobs."
            )
        return job

    def _shown(self, job: JobRow) -> dict[str, Any]:
        return job_view(job, updates_weights=self.jobs.engine.updates_weights)


async def _body(request: Request) -> dict[str, Any]:
    return await read_json(request.scope, request.receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES, required=False)


def _org(request: Request) -> str:
    org: str = request.scope[ORG]
    return org


def _tags(request: Request) -> list[tuple[str, str | None]]:
    """Return each tag of the query (`NAME` or `NAME=VALUE`) with its value or None.

    Raises RequestError if there are too many tags.
    """
    given = request.query_params.getlist("tag")
    if len(given) > MAX_TAGS:
        raise _wrong("tag", f"can be given at most {MAX_TAGS} times", where="query")
    return [(name, value if equals else None) for name, equals, value in (tag.partition("=") for tag in given)]


def _whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return an integer from the query, reduced to `high` if it is larger, or `default` if it is absent.

    Raises RequestError if it is not an integer or is below `low`.
    """
    text = request.query_params.get(name)
    if text is None or not text.strip():
        return default
    digits = text.strip().removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or int(text) < low:
        raise _wrong(name, f"should be an integer of at least {low}", where="query")
    return min(int(text), high)


def _wrong(name: str, problem: str, *, hint: str = "", where: str = "body") -> RequestError:
    return RequestError(
        f"The request is invalid: {name} {problem}.", fields=(FieldProblem((where, name), problem),), hint=hint
    )

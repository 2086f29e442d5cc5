"""Checks that find a wrong address, a wrong key or a violated contract before a job uses a task app.

    for finding in await check_task_app("http://127.0.0.1:8001", key):
        print(finding.part, finding.ok, finding.found, finding.do)

Only `try_rollout` runs anything on the server. Findings never contain a key, part of a key, or unfiltered server text.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import ConfigError, TaskAppError
from taskapp_kit.net.addresses import read_address
from taskapp_kit.net.envelope import error_members, sentence
from taskapp_kit.net.http import CHECK_PROXY, HttpResponse, NoAnswer, Transport, Trouble, header_key
from taskapp_kit.records.example_policy import example_policy

MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_NAME = 80
WHAT_TO_DO = {
    Trouble.PROXY: CHECK_PROXY,
    Trouble.UNKNOWN_HOST: (
        "Check the spelling of the host. The host name of a new tunnel or deployment may take a minute to appear."
    ),
    Trouble.CERTIFICATE: "Use the host name in the certificate, or http:// for a server on this machine.",
    Trouble.TLS: "If the server speaks plain HTTP, use http:// instead of https://.",
    Trouble.NOT_HTTP: "The port may belong to another program, or the address may need https://. Check both.",
    Trouble.CONNECT_TIMEOUT: "A firewall may block the connection. Check the host and the port.",
    Trouble.TIMEOUT: (
        "The server accepts connections but does not respond. A cold container may take a minute. Try again, or "
        "read the server's log."
    ),
    Trouble.DROPPED: "Read the server's log, which may show the reason.",
    Trouble.TRUNCATED: "Read the server's log, which may show why the response is incomplete.",
    Trouble.TOO_LARGE: "A task app does not send responses this large. Check the host, the port and the path.",
}
"""Advice for each reason why a response is missing. Any other reason means that nothing is listening."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one request: either the response (`answer`), or the reason why no response arrived (`lost`)."""

    answer: HttpResponse | None = None
    lost: NoAnswer | None = None

    @property
    def status(self) -> int:
        """The HTTP status, or 0 if no response arrived."""
        return self.answer.status if self.answer is not None else 0

    @property
    def object(self) -> dict[str, Any] | None:
        """The JSON object in the body, or None if the body is not a JSON object."""
        return self.answer.json_object() if self.answer is not None else None

    @property
    def code(self) -> str:
        """The code in the error envelope, or "" if the response is not an error envelope."""
        error = error_members(self.answer) if self.answer is not None else None
        return error.code if error is not None else ""

    @property
    def words(self) -> str:
        """A description of the response, such as `200 with a web page`, or the reason why no response arrived."""
        if self.answer is None:
            return self.lost.why if self.lost is not None else "nothing"
        kind = self.answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 300 <= self.status < 400:
            return f"{self.status}, a redirect{_towards(self.answer)}"
        if kind in ("text/html", "application/xhtml+xml") or self.answer.body.lstrip()[:1] == b"<":
            return f"{self.status} with a web page"
        if self.object is not None:
            return f"{self.status}" if self.status != 200 else "200 with a JSON object"
        return f"{self.status}" if self.status != 200 else "200 without a JSON object"

    def do_without_answer(self, start: str) -> str:
        """Return the advice for a request without a response. `start` is the advice if nothing is listening."""
        return start if self.lost is None else WHAT_TO_DO.get(self.lost.kind, start)


@dataclass(slots=True)
class Prober:
    """Sends requests to one server. `headers` contain the key. `seconds` is the time limit of each request."""

    url: str
    headers: Mapping[str, str]
    seconds: float
    _transport: Transport

    @classmethod
    def at(cls, url: str, headers: Mapping[str, str], seconds: float) -> Prober:
        """Return a prober for a validated address."""
        return cls(url, headers, seconds, Transport({}, MAX_ANSWER_BYTES))

    async def ask(self, path: str, *, verb: str = "GET", body: bytes | None = None, keyed: bool = True) -> ProbeResult:
        """Send one request, without following redirects or retrying. The key is sent only if `keyed` is true."""
        headers = self.headers if keyed else {}
        try:
            return ProbeResult(
                await self._transport.send(verb, self.url + path, body=body, headers=headers, seconds=self.seconds)
            )
        except NoAnswer as lost:
            return ProbeResult(lost=lost)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def name_of(value: Any, key: str | None) -> str:
    """Return a name from a server as one short line without any part of the key, or "" if it is not a string."""
    return sentence(value, key)[:MAX_NAME] if isinstance(value, str) else ""


def _towards(answer: HttpResponse) -> str:
    """Return the target host of a redirect. The rest of the address is omitted, because it may contain secrets."""
    try:
        host = urlsplit(answer.headers.get("location", "")).hostname
    except ValueError:
        host = None
    here = urlsplit(answer.url).hostname
    return f" to {sentence(host)[:MAX_NAME]}" if host and host != here else " to another path" if here else ""


Part = Literal["backend", "task app", "key", "contract", "rollout"]

SECONDS = 10.0
ROLLOUT_SECONDS = 120.0
"""Time limit in seconds of the rollout that `try_rollout` runs, including its judges."""
TRIED_TURNS = 5
"""Maximum number of turns of the rollout that `try_rollout` runs, to save the server's time."""
TASK_APP_START = "Start the task app (taskapp serve APP), or check the host and the port."
UNAUTHORISED = ("unauthorised", "unauthorized")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        part: What was checked.
        ok: Whether the part is usable.
        found: What the check found, as a sentence.
        do: What to do about the finding. If `ok` is true, following the advice is optional.
    """

    part: Part
    ok: bool
    found: str
    do: str = ""


async def check_task_app(url: str, key: str | None, *, timeout_seconds: float = SECONDS) -> list[Finding]:
    """Check the address, task app, key and contract, in this order. If one fails, skip the checks that depend on it.

    Args:
        url: The task app's address.
        key: The task app's ENVIRONMENT_API_KEY. It is sent to this address only.
        timeout_seconds: Time limit of each of the six requests.
    """
    try:
        address = read_address(url)
    except ConfigError as error:
        return [Finding("task app", False, f"The task app's address is invalid. {error.message}", error.hint)]
    try:
        sent = header_key(key, "The task app's key")
    except ConfigError as error:
        return [Finding("key", False, error.message, error.hint)]
    prober = Prober.at(address, {"X-API-Key": sent} if sent else {}, timeout_seconds)
    try:
        return await _task_app(prober, sent)
    finally:
        await prober.aclose()


async def try_rollout(url: str, key: str | None, *, timeout_seconds: float = ROLLOUT_SECONDS) -> Finding:
    """Run and score one rollout of the first seed, with at most five turns and a policy that needs no model.

    Args:
        url: The task app's address. It must have passed `check_task_app`.
        key: The task app's key. It must have passed `check_task_app`.
        timeout_seconds: Time limit of the rollout.
    """
    async with TaskAppClient(url, key, timeout_seconds=timeout_seconds) as client:
        policy = None
        try:
            described = await client.task_info()
            inference, dataset = described.get("inference"), described.get("dataset")
            offered = inference.get("policies") if isinstance(inference, dict) else None
            names = [name for name in offered if isinstance(name, str)] if isinstance(offered, list) else []
            config = example_policy(dict.fromkeys(names), words=takes_words(described))
            if not config:
                found = "No rollout was run, because every policy of the task app needs a model."
                return Finding("rollout", True, found, "Run one with a model: taskapp rollout URL --model M.")
            policy = name_of(config["policy"], key)
            environment, seed = described.get("environment"), first_seed(dataset if isinstance(dataset, dict) else {})
            answer = await trial_rollout(client, config, environment=environment, seed=seed)
        except TaskAppError as error:
            reason = f"HTTP {error.status} {name_of(error.code, key) or ''}".rstrip() if error.status else "no response"
            found = f"A rollout with the policy {policy} failed: {reason}." if policy else f"{reason}."
            return Finding("rollout", False, found, READ_LOG)
    reward = answer.get("reward")
    scored = f"reward {reward:g}" if isinstance(reward, int | float) else "no reward"
    return Finding("rollout", True, f"A rollout succeeded: policy {policy}, seed {seed}, {scored}.")


async def trial_rollout(
    client: TaskAppClient, config: Mapping[str, str], *, environment: Any, seed: int
) -> dict[str, Any]:
    """Run a rollout of at most five turns that is not stored, and return the response. Raises TaskAppError if it fails.

    If `environment` is not a string, the task app's first environment is used.
    """
    run_id = f"check-{uuid.uuid4().hex[:12]}"
    request = {
        "run_id": run_id,
        "env": {"seed": seed, **({"env_name": environment} if isinstance(environment, str) else {})},
        "policy": {"config": dict(config)},
        "ops": ["agent", "env"] * TRIED_TURNS,
        "record": {"store": False},
        "mode": "eval",
    }
    return await client.rollout(request, idempotency_key=run_id)


async def _task_app(prober: Prober, key: str | None) -> list[Finding]:
    url = prober.url
    root = await prober.ask("/", keyed=False)
    if root.answer is None:
        return [Finding("task app", False, f"{url} {root.words}.", root.do_without_answer(TASK_APP_START))]
    named = name_of((root.object or {}).get("service"), key) if root.status == 200 else ""
    health = await prober.ask("/health")
    if health.answer is None:
        return [Finding("task app", False, f"{url}/health {health.words}.", health.do_without_answer(TASK_APP_START))]
    here = Finding("task app", True, f"{url} is the task app {named}." if named else f"{url} is a task app.")
    about_key = _key_of_task_app(health, key)
    if about_key is not None:
        return [here, about_key]
    state = health.object
    if health.status != 200 or state is None:
        if named:
            return [
                here,
                Finding("contract", False, f"GET /health returns {health.words}. Expected 200 with JSON.", READ_LOG),
            ]
        do = "Check the address: it may belong to a proxy or another server."
        found = f"{url} is not a task app: GET / returns {root.words}, and GET /health returns {health.words}."
        return [Finding("task app", False, found, do)]
    if state.get("healthy") is False or state.get("status") in ("draining", "store_failing"):
        word = name_of(state.get("status"), key) or "not healthy"
        return [Finding("task app", False, f"{url} reports the status {word}.", "Wait, or restart the task app.")]
    accepted = Finding("key", True, "The task app accepts the key.")
    if not key:
        do = "Anyone who knows the address can run rollouts. Set ENVIRONMENT_API_KEY in the task app."
        accepted = Finding("key", True, "The task app does not require a key.", do)
    taskset, info, rollout = await asyncio.gather(prober.ask("/task_info"), prober.ask("/info"), prober.ask("/rollout"))
    if taskset.status in (401, 403):
        found = f"GET /task_info rejects the key ({taskset.status}), but GET /health does not require a key."
        return [
            here,
            Finding("key", False, found, "Use the task app's key, and check that the address is not a backend's."),
        ]
    return [here, accepted, *await _contract(prober, key, taskset, info, rollout)]


def _key_of_task_app(health: ProbeResult, key: str | None) -> Finding | None:
    """Return the problem with the key, or None if the key is valid."""
    if health.code == "missing_environment_api_key":
        do = "Set ENVIRONMENT_API_KEY where the task app runs (on Modal: in its secret), and restart the task app."
        return Finding("key", False, "The task app was started without a key, so it rejects every request.", do)
    if health.status in (401, 403) or (health.status == 400 and health.code in UNAUTHORISED):
        if key:
            do = "Set ENVIRONMENT_API_KEY to the key that the task app was started with. Check for an outdated .env."
            return Finding("key", False, f"The task app rejects the key ({health.status}).", do)
        return Finding("key", False, "The task app requires a key, but no key is set.", "Set ENVIRONMENT_API_KEY.")
    return None


READ_LOG = "Read the task app's log. docs/reference/contract.md describes the expected responses."


async def _contract(
    prober: Prober, key: str | None, taskset: ProbeResult, info: ProbeResult, rollout: ProbeResult
) -> list[Finding]:
    findings = []
    if rollout.status == 404:
        findings.append(
            Finding("contract", False, "POST /rollout does not exist (404).", "Trainers need this route. " + READ_LOG)
        )
    body = taskset.object
    if taskset.status != 200 or body is None:
        findings.append(_odd("/task_info", taskset))
        return findings
    dataset = body.get("taskset") if isinstance(body.get("taskset"), Mapping) else body.get("dataset")
    if not isinstance(dataset, Mapping):
        found = "GET /task_info describes no data set. Expected an object `taskset`, or a TaskInfo with `dataset`."
        findings.append(Finding("contract", False, found, READ_LOG))
        return findings
    findings.append(_dataset(dataset, key))
    seed = first_seed(dataset)
    instance = await prober.ask(f"/task_info?seed={seed}")
    findings.append(_instance(instance, seed))
    findings.append(_rubrics(info, instance.object or {}))
    return findings


def _odd(path: str, reply: ProbeResult) -> Finding:
    if reply.answer is None:
        return Finding("contract", False, f"GET {path} {reply.words}.", reply.do_without_answer(READ_LOG))
    return Finding("contract", False, f"GET {path} returns {reply.words}. Expected 200 with a JSON object.", READ_LOG)


def _dataset(dataset: Mapping[str, Any], key: str | None) -> Finding:
    name = name_of(dataset.get("id"), key) or name_of(dataset.get("name"), key)
    listed = dataset.get("splits")
    splits = [name_of(split, key) for split in listed if isinstance(split, str)][:8] if isinstance(listed, list) else []
    if not name or not splits:
        found = f"The data set {name} has no splits." if name else "GET /task_info describes no data set with splits."
        return Finding("contract", True, found, "Add the id and splits, so that jobs can report metrics by split.")
    return Finding("contract", True, f"The data set {name} has the splits {', '.join(splits)}.")


def takes_words(described: Mapping[str, Any]) -> bool:
    """Return whether a tool of the environment accepts plain text, according to `/task_info`."""
    space = described.get("action_space")
    tools = space.get("tools") if isinstance(space, dict) else None
    return isinstance(tools, list) and any(isinstance(tool, dict) and tool.get("text") is True for tool in tools)


def first_seed(dataset: Mapping[str, Any]) -> int:
    """Return the first seed in the description of the data set, or 0 if it lists no seeds."""
    seeds = dataset.get("seeds")
    for bounds in seeds.values() if isinstance(seeds, Mapping) else ():
        first = bounds[0] if isinstance(bounds, list) and bounds else None
        if isinstance(first, int) and not isinstance(first, bool) and 0 <= first < 2**63:
            return first
    return 0


def _instance(instance: ProbeResult, seed: int) -> Finding:
    path, body = f"/task_info?seed={seed}", instance.object
    if instance.status != 200 or body is None:
        return _odd(path, instance)
    task, missing = body.get("task"), []
    if not isinstance(task, Mapping) or not isinstance(task.get("id"), str):
        missing.append("task.id")
    if not isinstance(body.get("environment"), str):
        missing.append("environment")
    missing += [
        name for name in ("dataset", "rubric", "inference", "limits") if not isinstance(body.get(name), Mapping)
    ]
    if missing:
        return Finding("contract", False, f"GET {path} returns no {', '.join(missing)}. Expected a TaskInfo.", READ_LOG)
    return Finding("contract", True, f"GET {path} returns a complete TaskInfo.")


def _rubrics(info: ProbeResult, task: Mapping[str, Any]) -> Finding:
    body = info.object
    if info.status == 404:
        return Finding(
            "contract", True, "GET /info does not exist (404).", "Add it, so that trainers can read the rubrics."
        )
    if info.status != 200 or body is None:
        return _odd("/info", info)
    service = body.get("service")
    if not isinstance(service, Mapping) or not isinstance(service.get("task"), Mapping):
        return Finding("contract", False, "GET /info returns no `service.task`.", READ_LOG)
    rubrics = body.get("rubrics") or task.get("rubric")
    counts = {
        kind: len(part["criteria"])
        for kind in ("outcome", "events")
        if isinstance(rubrics, Mapping)
        and isinstance(part := rubrics.get(kind), Mapping)
        and isinstance(part.get("criteria"), list)
        and part["criteria"]
    }
    if not counts:
        do = "Jobs will have no outcome or event scores. Their reward is the sum of the environment's rewards."
        return Finding("contract", True, "GET /info describes no rubric.", do)
    criteria = ", ".join(f"{count} for {kind}" for kind, count in counts.items())
    return Finding("contract", True, f"GET /info describes a rubric. Criteria: {criteria}.")

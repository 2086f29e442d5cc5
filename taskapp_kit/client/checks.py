"""Checks whether a task app can be used for a job, and if not, whether address, key or contract is wrong.

    for finding in await check_task_app("http://127.0.0.1:8001", key):
        print(finding.part, finding.ok, finding.found, finding.do)

Only `try_rollout` runs or creates anything. No finding has a key, a part of one, or a server's raw text.
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
        "Check the spelling of the host. A new tunnel or deploy may take a minute until its name is known."
    ),
    Trouble.CERTIFICATE: "Give the host name that the certificate is for; on this machine http:// needs none.",
    Trouble.TLS: "If that server speaks plain HTTP, write http:// instead of https://.",
    Trouble.NOT_HTTP: "Another program listens there, or the address needs https://. Check the port.",
    Trouble.CONNECT_TIMEOUT: "A firewall may stand between. Check host and port.",
    Trouble.TIMEOUT: (
        "It takes connections and does not answer. A cold container may need a minute: try again, then read its log."
    ),
    Trouble.DROPPED: "Something stands there that ends connections. Read its log.",
    Trouble.TRUNCATED: "Something stands there that ends connections. Read its log.",
    Trouble.TOO_LARGE: "That is no answer of such a server. Check host, port and path.",
}
"""For each reason why there is no response; any other one means that nothing listens."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A response, or why there is none. Exactly one of `answer` and `lost` is set."""

    answer: HttpResponse | None = None
    lost: NoAnswer | None = None

    @property
    def status(self) -> int:
        """The HTTP status; 0 without a response."""
        return self.answer.status if self.answer is not None else 0

    @property
    def object(self) -> dict[str, Any] | None:
        """The JSON object of the body; None for anything else."""
        return self.answer.json_object() if self.answer is not None else None

    @property
    def code(self) -> str:
        """The code of an error envelope; "" when there is none."""
        error = error_members(self.answer) if self.answer is not None else None
        return error.code if error is not None else ""

    @property
    def words(self) -> str:
        """The response in words: `404`, `200 with a web page`, `307, a redirect to example.org`; else why there is none."""
        if self.answer is None:
            return self.lost.why if self.lost is not None else "nothing"
        kind = self.answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 300 <= self.status < 400:
            return f"{self.status}, a redirect{_towards(self.answer)}"
        if kind in ("text/html", "application/xhtml+xml") or self.answer.body.lstrip()[:1] == b"<":
            return f"{self.status} with a web page"
        if self.object is not None:
            return f"{self.status}" if self.status != 200 else "200 with a JSON object"
        return f"{self.status}" if self.status != 200 else "200 with something that is no JSON object"

    def do_without_answer(self, start: str) -> str:
        """Return what to do when there is no response. start: how such a server is started, for when nothing listens."""
        return start if self.lost is None else WHAT_TO_DO.get(self.lost.kind, start)


@dataclass(slots=True)
class Prober:
    """Sends requests to one server. headers: the key, sent where `keyed` says so. seconds: for each request."""

    url: str
    headers: Mapping[str, str]
    seconds: float
    _transport: Transport

    @classmethod
    def at(cls, url: str, headers: Mapping[str, str], seconds: float) -> Prober:
        """Return a prober of a checked address."""
        return cls(url, headers, seconds, Transport({}, MAX_ANSWER_BYTES))

    async def ask(self, path: str, *, verb: str = "GET", body: bytes | None = None, keyed: bool = True) -> ProbeResult:
        """Send one request; redirects are not followed and nothing is repeated."""
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
    """Return a name that a server gave as one short line without any part of the key; "" when it is no text."""
    return sentence(value, key)[:MAX_NAME] if isinstance(value, str) else ""


def _towards(answer: HttpResponse) -> str:
    """Return the host that a redirect leads to, and nothing else of its address, which may hold anything."""
    try:
        host = urlsplit(answer.headers.get("location", "")).hostname
    except ValueError:
        host = None
    here = urlsplit(answer.url).hostname
    return f" to {sentence(host)[:MAX_NAME]}" if host and host != here else " to another path" if here else ""


Part = Literal["backend", "task app", "key", "contract", "rollout"]

SECONDS = 10.0
ROLLOUT_SECONDS = 120.0
"""How long the one rollout of `try_rollout` may take, its judges included."""
TRIED_TURNS = 5
"""Limit of the turns of that rollout, to save the server time."""
TASK_APP_START = "Start it (taskapp serve APP), or check host and port."
UNAUTHORISED = ("unauthorised", "unauthorized")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        part: What was checked.
        ok: Whether it can be used.
        found: A sentence.
        do: What to do; with `ok` it is advice only.
    """

    part: Part
    ok: bool
    found: str
    do: str = ""


async def check_task_app(url: str, key: str | None, *, timeout_seconds: float = SECONDS) -> list[Finding]:
    """Check address, task app, key and contract, in this order; a failed check skips those that depend on it.

    Args:
        url: The task app's address.
        key: The task app's ENVIRONMENT_API_KEY, sent to that address alone.
        timeout_seconds: For each of six requests.
    """
    try:
        address = read_address(url)
    except ConfigError as error:
        return [Finding("task app", False, f"The task app's address cannot be used. {error.message}", error.hint)]
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
    """Run one rollout of the first seed, at most five turns, with a policy that needs no model; judges score it as usual.

    Args:
        url: The task app's address, valid according to `check_task_app`.
        key: Its key, valid too.
        timeout_seconds: For the rollout.
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
                found = "No rollout was tried: the task app offers no policy that can act without a model."
                return Finding("rollout", True, found, "Play one with a model: taskapp rollout URL --model M.")
            policy = name_of(config["policy"], key)
            environment, seed = described.get("environment"), first_seed(dataset if isinstance(dataset, dict) else {})
            answer = await trial_rollout(client, config, environment=environment, seed=seed)
        except TaskAppError as error:
            words = f"HTTP {error.status} {name_of(error.code, key) or ''}".rstrip() if error.status else "no answer"
            found = f"One rollout was tried with the policy {policy}, and failed: {words}." if policy else f"{words}."
            return Finding("rollout", False, found, READ_LOG)
    reward = answer.get("reward")
    scored = f"reward {reward:g}" if isinstance(reward, int | float) else "no reward"
    return Finding("rollout", True, f"One rollout was played: policy {policy}, seed {seed}, {scored}.")


async def trial_rollout(
    client: TaskAppClient, config: Mapping[str, str], *, environment: Any, seed: int
) -> dict[str, Any]:
    """Play a rollout of at most five turns, which is not stored, and return its answer. Raises TaskAppError.

    config: the policy's. environment: its name; anything else stands for the task app's first one.
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
    here = Finding(
        "task app", True, f"{url} answers as task app {named}." if named else f"{url} answers as a task app."
    )
    about_key = _key_of_task_app(health, key)
    if about_key is not None:
        return [here, about_key]
    state = health.object
    if health.status != 200 or state is None:
        if named:
            return [
                here,
                Finding("contract", False, f"GET /health answers {health.words}; expected 200 with JSON.", READ_LOG),
            ]
        do = "Is that the address of a task app? A proxy or another server may stand there."
        found = f"{url} answers, and not as a task app: GET / gives {root.words}, GET /health gives {health.words}."
        return [Finding("task app", False, found, do)]
    if state.get("healthy") is False or state.get("status") in ("draining", "store_failing"):
        word = name_of(state.get("status"), key) or "not healthy"
        return [Finding("task app", False, f"{url} reports that it is {word}.", "Wait for it, or start it again.")]
    accepted = Finding("key", True, "The task app accepts the key.")
    if not key:
        accepted = Finding(
            "key", True, "The task app asks for no key.", "Anyone who finds the address can play. Set a key there."
        )
    taskset, info, rollout = await asyncio.gather(prober.ask("/task_info"), prober.ask("/info"), prober.ask("/rollout"))
    if taskset.status in (401, 403):
        found = f"GET /task_info refuses the key ({taskset.status}), and GET /health does not ask for one."
        return [
            here,
            Finding("key", False, found, "Give the task app's key; or is that another server, such as a backend?"),
        ]
    return [here, accepted, *await _contract(prober, key, taskset, info, rollout)]


def _key_of_task_app(health: ProbeResult, key: str | None) -> Finding | None:
    """Return the problem of the key; None when it is valid."""
    if health.code == "missing_environment_api_key":
        return Finding(
            "key",
            False,
            "The task app has no key of its own, so it refuses every request.",
            "Set ENVIRONMENT_API_KEY where it runs (on Modal: in its secret), and start it again.",
        )
    if health.status in (401, 403) or (health.status == 400 and health.code in UNAUTHORISED):
        if key:
            do = "Give the key that the task app was started with, as ENVIRONMENT_API_KEY; look for a stale .env."
            return Finding("key", False, f"The task app refuses the key ({health.status}).", do)
        return Finding("key", False, "The task app asks for a key, and none is given.", "Set ENVIRONMENT_API_KEY.")
    return None


READ_LOG = "Read the task app's log; docs/reference/contract.md has what is expected."


async def _contract(
    prober: Prober, key: str | None, taskset: ProbeResult, info: ProbeResult, rollout: ProbeResult
) -> list[Finding]:
    findings = []
    if rollout.status == 404:
        findings.append(
            Finding("contract", False, "There is no POST /rollout (404).", "A trainer plays there. " + READ_LOG)
        )
    body = taskset.object
    if taskset.status != 200 or body is None:
        findings.append(_odd("/task_info", taskset))
        return findings
    dataset = body.get("taskset") if isinstance(body.get("taskset"), Mapping) else body.get("dataset")
    if not isinstance(dataset, Mapping):
        wanted = "expected an object `taskset` (or a TaskInfo with `dataset`)."
        findings.append(Finding("contract", False, f"GET /task_info describes no data set; {wanted}", READ_LOG))
        return findings
    findings.append(_dataset(dataset, key))
    seed = first_seed(dataset)
    one = await prober.ask(f"/task_info?seed={seed}")
    findings.append(_instance(one, seed))
    findings.append(_rubrics(info, one.object or {}))
    return findings


def _odd(path: str, reply: ProbeResult) -> Finding:
    if reply.answer is None:
        return Finding("contract", False, f"GET {path} {reply.words}.", reply.do_without_answer(READ_LOG))
    return Finding("contract", False, f"GET {path} answers {reply.words}; expected 200 with a JSON object.", READ_LOG)


def _dataset(dataset: Mapping[str, Any], key: str | None) -> Finding:
    name = name_of(dataset.get("id"), key) or name_of(dataset.get("name"), key)
    given = dataset.get("splits")
    splits = [name_of(split, key) for split in (given if isinstance(given, list) else ()) if isinstance(split, str)][:8]
    if not name or not splits:
        found = "GET /task_info names no data set with splits." if not name else f"Data set {name} names no splits."
        return Finding(
            "contract", True, found, "Metrics of a job cannot be reported by split: advertise id and splits."
        )
    return Finding("contract", True, f"Data set {name}: splits {', '.join(splits)}.")


def takes_words(described: Mapping[str, Any]) -> bool:
    """Return whether a tool of the environment takes plain words, as `/task_info` describes it."""
    space = described.get("action_space")
    tools = space.get("tools") if isinstance(space, dict) else None
    return (
        any(isinstance(tool, dict) and tool.get("text") is True for tool in tools) if isinstance(tools, list) else False
    )


def first_seed(dataset: Mapping[str, Any]) -> int:
    """Return the first seed that the data set advertises, else 0."""
    seeds = dataset.get("seeds")
    for bounds in seeds.values() if isinstance(seeds, Mapping) else ():
        first = bounds[0] if isinstance(bounds, list) and bounds else None
        if isinstance(first, int) and not isinstance(first, bool) and 0 <= first < 2**63:
            return first
    return 0


def _instance(one: ProbeResult, seed: int) -> Finding:
    path, body = f"/task_info?seed={seed}", one.object
    if one.status != 200 or body is None:
        return _odd(path, one)
    task, missing = body.get("task"), []
    if not isinstance(task, Mapping) or not isinstance(task.get("id"), str):
        missing.append("task.id")
    if not isinstance(body.get("environment"), str):
        missing.append("environment")
    missing += [
        name for name in ("dataset", "rubric", "inference", "limits") if not isinstance(body.get(name), Mapping)
    ]
    if missing:
        return Finding("contract", False, f"GET {path} lacks {', '.join(missing)}; expected a TaskInfo.", READ_LOG)
    return Finding("contract", True, f"GET {path} answers a whole TaskInfo.")


def _rubrics(info: ProbeResult, task: Mapping[str, Any]) -> Finding:
    body = info.object
    if info.status == 404:
        return Finding("contract", True, "There is no GET /info (404).", "Rubrics stay unknown to a trainer: add it.")
    if info.status != 200 or body is None:
        return _odd("/info", info)
    service = body.get("service")
    if not isinstance(service, Mapping) or not isinstance(service.get("task"), Mapping):
        return Finding("contract", False, "GET /info lacks service.task.", READ_LOG)
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
        do = "Outcome and events scores of a job stay undefined; its reward is the environment's return."
        return Finding("contract", True, "No rubric is advertised.", do)
    criteria = ", ".join(f"{count} for {kind}" for kind, count in counts.items())
    return Finding("contract", True, f"GET /info advertises a rubric: criteria {criteria}.")

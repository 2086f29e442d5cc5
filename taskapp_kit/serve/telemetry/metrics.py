"""The metrics of a server, and their rendering for Prometheus.

Recording is a few additions to plain dictionaries, on the event loop. `prometheus_client` is loaded at the first scrape, when
`render` builds its metrics from a snapshot. Nothing is global: each service has its own Metrics.

Label values are bounded: declared environments, fixed words, the labels of the operator's key file, the templates of routes.
No label contains a value that a caller chose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from taskapp_kit.contract.result import Rollout
from taskapp_kit.rollout.in_flight import InFlightRollout

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
           600.0, 1800.0, 3600.0)  # fmt: skip
"""Upper bounds of the buckets for a rollout's duration."""
PHASES = ("environment", "policy", "scoring", "framework")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
TOKENS = {
    "prompt_tokens": "input",
    "input_tokens": "input",
    "completion_tokens": "output",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "cached_tokens": "cached",
}
"""Maps the endpoints' names of token counts to ours; others are not counted."""


class Loop(Protocol):
    """The measured lag of the event loop (`serve/event_loop_watchdog.py`)."""

    lag_seconds: float
    blocked: int
    blocked_seconds: float


@dataclass(slots=True)
class EnvironmentMetrics:
    """Sums over the rollouts of one environment. durations: the counts of the buckets of SECONDS, and of longer ones."""

    durations: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    steps: int = 0
    invalid_actions: float = 0.0
    rewards: int = 0
    reward: float = 0.0
    outcomes: int = 0
    outcome: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Snapshot:
    """All numbers at one moment.

    rollouts: by environment, status, boundary, key label. responses: by method, route's template, status. key_refusals: by
    code. health: the result of `Service.health`. connections: open now; ended by the server, by cause.
    """

    environments: dict[str, EnvironmentMetrics]
    rollouts: dict[tuple[str, str, str, str], int]
    responses: dict[tuple[str, str, int], int]
    key_refusals: dict[str, int]
    store_errors: int
    health: Mapping[str, Any]
    loop: tuple[float, int, float] | None
    connections: tuple[int, Mapping[str, int]] | None = None


class Metrics:
    """The counters of one service. Everything but `render` is called on its event loop.

    environments: the declared ones. health: `Service.health`. loop: to be set where an event loop is watched.
    """

    def __init__(self, environments: Iterable[str], health: Callable[[], Mapping[str, Any]]) -> None:
        self.loop: Loop | None = None
        self._health = health
        self._environments = {name: EnvironmentMetrics() for name in environments}
        self._rollouts: Counter[tuple[str, str, str, str]] = Counter()
        self._responses: Counter[tuple[str, str, int]] = Counter()
        self._key_refusals: Counter[str] = Counter()
        self._store_errors = 0

    def ended(self, rollout: InFlightRollout, result: Rollout) -> None:
        """A RolloutObserver: counts one ended rollout."""
        failure, name, timing = result.failure, result.environment, result.timing
        label = rollout.caller.key_label or ""
        self._rollouts[name, result.status, "" if failure is None else failure.boundary, label] += 1
        sums = self._environments.get(name)
        if sums is None:
            sums = self._environments[name] = EnvironmentMetrics()
        total = timing.get("total", 0.0)
        sums.durations[bisect_left(SECONDS, total)] += 1
        sums.seconds += total
        phases = sums.phases
        for phase in PHASES:
            if phase in timing:
                phases[phase] += timing[phase]
        sums.steps += result.length
        invalid = result.metrics.get("invalid_actions", 0.0)
        if invalid > 0:  # an environment may have a metric of that name, of any sign
            sums.invalid_actions += invalid
        for kind, count in result.usage.items():
            if kind in TOKENS and count > 0:
                sums.tokens[TOKENS[kind]] = sums.tokens.get(TOKENS[kind], 0.0) + count
        card = result.scorecard
        if card.reward is not None:
            sums.rewards += 1
            sums.reward += card.reward
        if card.outcome_score is not None:
            sums.outcomes += 1
            sums.outcome += card.outcome_score

    def answered(self, method: str, route: str, status: int) -> None:
        """Counts one HTTP answer. route: its template (`/blobs/{sha256}`), never a path; "(none)" when none fits."""
        self._responses[method if method in METHODS else "(other)", route, status] += 1

    def count_key_refusal(self, code: str) -> None:
        """Counts a request that the key check refused. code: the answer's error code."""
        self._key_refusals[code] += 1

    def store_failed(self) -> None:
        """Counts a rollout that the store could not save or load."""
        self._store_errors += 1

    def snapshot(self, connections: tuple[int, Mapping[str, int]] | None = None) -> Snapshot:
        """The current numbers, which `render` may read in another thread. connections: given if the server counts them."""
        loop = self.loop
        return Snapshot(
            {
                name: replace(sums, durations=list(sums.durations), phases=dict(sums.phases), tokens=dict(sums.tokens))
                for name, sums in self._environments.items()
            },
            dict(self._rollouts),
            dict(self._responses),
            dict(self._key_refusals),
            self._store_errors,
            self._health(),
            None if loop is None else (loop.lag_seconds, loop.blocked, loop.blocked_seconds),
            connections,
        )


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The numbers in a format of Prometheus, and its content type: OpenMetrics when `accept` names it, else text.

    The first call loads prometheus_client (about 0.1 s of CPU), so it is called in a thread.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(snapshot))
    ProcessCollector(registry=registry)
    # an invalid version is not passed on: the library would repeat it in the content type, or fail
    open_metrics = "application/openmetrics-text" in accept
    encode, content_type = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    return encode(registry), content_type


class _Read:
    """A collector of prometheus_client over a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The metrics, in the order in which they are documented."""
        yield from _of_rollouts(self._snapshot)
        yield from _of_server(self._snapshot)


def _of_rollouts(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    rollouts = CounterMetricFamily(
        "taskapp_rollouts",
        "Rollouts that are over. boundary: where one failed, empty when it was scored; key: the label of the caller's key.",
        labels=("environment", "status", "boundary", "key"),
    )
    for labels, count in snapshot.rollouts.items():
        rollouts.add_metric(labels, count)
    yield rollouts
    duration = HistogramMetricFamily(
        "taskapp_rollout_seconds", "From a rollout's admission to its end, waiting included.", labels=("environment",)
    )
    phases = CounterMetricFamily(
        "taskapp_rollout_phase_seconds",
        "Where the time of rollouts went; framework has the waiting.",
        labels=("environment", "phase"),
    )
    steps = CounterMetricFamily("taskapp_steps", "Steps played.", labels=("environment",))
    invalid = CounterMetricFamily(
        "taskapp_invalid_actions", "Steps whose action was refused: unknown tool, bad arguments, or the environment's no.",
        labels=("environment",),
    )  # fmt: skip
    tokens = CounterMetricFamily("taskapp_tokens", "Tokens as endpoints counted them.", labels=("environment", "kind"))
    # a sum of rewards may fall, which neither a counter nor a histogram's sum may
    defined = CounterMetricFamily(
        "taskapp_rewards", "Scored rollouts whose reward is defined.", labels=("environment",)
    )
    reward = GaugeMetricFamily(
        "taskapp_rewards_sum", "Sum of the defined rewards; divided by taskapp_rewards_total: their mean.",
        labels=("environment",),
    )  # fmt: skip
    outcomes = CounterMetricFamily(
        "taskapp_outcome_scores", "Scored rollouts whose outcome score is defined.", labels=("environment",)
    )
    outcome = GaugeMetricFamily("taskapp_outcome_scores_sum", "Sum of the outcome scores.", labels=("environment",))
    for name, sums in snapshot.environments.items():
        duration.add_metric((name,), _buckets(sums.durations), sums.seconds)
        for phase, seconds in sums.phases.items():
            phases.add_metric((name, phase), seconds)
        steps.add_metric((name,), sums.steps)
        invalid.add_metric((name,), sums.invalid_actions)
        for kind, number in sums.tokens.items():
            tokens.add_metric((name, kind), number)
        defined.add_metric((name,), sums.rewards)
        reward.add_metric((name,), sums.reward)
        outcomes.add_metric((name,), sums.outcomes)
        outcome.add_metric((name,), sums.outcome)
    yield from (duration, phases, steps, invalid, tokens, defined, reward, outcomes, outcome)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    found: list[tuple[str, float]] = []
    sofar = 0
    for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
        sofar += count
        found.append((bound, sofar))
    return found


def _of_server(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    responses = CounterMetricFamily(
        "taskapp_http_responses", "HTTP answers behind the key check.", labels=("method", "route", "status")
    )
    for (method, route, status), count in snapshot.responses.items():
        responses.add_metric((method, route, str(status)), count)
    yield responses
    key_refusals = CounterMetricFamily(
        "taskapp_http_refusals", "Requests that the key check refused, by the answer's code.", labels=("code",)
    )
    for code, count in snapshot.key_refusals.items():
        key_refusals.add_metric((code,), count)
    yield key_refusals
    yield CounterMetricFamily(
        "taskapp_store_errors", "Rollouts that the store could not keep or give back.", value=snapshot.store_errors
    )
    health = snapshot.health
    for name, words, key in (
        ("taskapp_in_flight", "Rollouts under way.", "in_flight"),
        ("taskapp_capacity", "Rollouts that this server takes at once.", "capacity"),
        ("taskapp_hung_threads", "Threads that are stuck in an environment and were given up.", "hung_threads"),
    ):
        yield GaugeMetricFamily(name, words, value=health.get(key, 0))
    store = health.get("store")
    if store is not None:
        yield GaugeMetricFamily(
            "taskapp_store_failing", "1 while the last write to the store failed.", value=float(store["failing"])
        )
        yield CounterMetricFamily(
            "taskapp_store_write_failures", "Writes to the store that failed, attempts to write again included.",
            value=store["failures"],
        )  # fmt: skip
    draining = float(health.get("status") == "draining")
    yield GaugeMetricFamily("taskapp_draining", "1 when the server takes no new rollouts.", value=draining)
    sessions = health.get("sessions")
    if sessions is not None:
        yield GaugeMetricFamily("taskapp_sessions", "Sessions that are open.", value=sessions["open"])
        yield CounterMetricFamily("taskapp_sessions_opened", "Sessions that were opened.", value=sessions["opened"])
        ended = CounterMetricFamily("taskapp_sessions_ended", "Sessions that were closed.", labels=("cause",))
        for cause, number in sessions.items():
            if cause not in ("open", "opened"):
                ended.add_metric((cause,), number)
        yield ended
    workers = health.get("workers")
    if workers is not None:
        yield GaugeMetricFamily("taskapp_workers", "Worker processes alive.", value=workers.get("alive", 0))
        yield GaugeMetricFamily(
            "taskapp_workers_waiting", "Rollouts that wait for a worker process.", value=workers.get("waiting", 0)
        )
        for key, words in (
            ("replaced", "Worker processes that were replaced."),
            ("killed", "Worker processes that were killed, because they hung."),
            ("hung", "Rollouts that hung in a worker process."),
        ):
            yield CounterMetricFamily(f"taskapp_workers_{key}", words, value=workers.get(key, 0))
    if snapshot.connections is not None:
        count, causes = snapshot.connections
        yield GaugeMetricFamily("taskapp_connections", "Open connections.", value=count)
        ended = CounterMetricFamily(
            "taskapp_connections_ended",
            "Connections that the server ended before their callers did.",
            labels=("cause",),
        )
        for cause, number in causes.items():
            ended.add_metric((cause,), number)
        yield ended
    if snapshot.loop is not None:
        lag, blocked, seconds = snapshot.loop
        yield GaugeMetricFamily("taskapp_event_loop_lag_seconds", "How late the event loop last was.", value=lag)
        yield CounterMetricFamily(
            "taskapp_event_loop_blocked", "How often the event loop stood still for more than 0.25 s.", value=blocked
        )
        yield CounterMetricFamily(
            "taskapp_event_loop_blocked_seconds", "How long it stood still then, in all.", value=seconds
        )

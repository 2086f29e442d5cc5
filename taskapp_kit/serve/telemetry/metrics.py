"""The metrics of a server, and their rendering for Prometheus.

Recording adds numbers to plain dictionaries on the event loop. `prometheus_client` is loaded at the first scrape, when
`render` builds its metrics from a snapshot. No state is global, because each service has its own Metrics.

The number of label values is limited. Values are names of declared environments, constants, labels in the operator's
key file and templates of routes. Callers cannot choose the value of a label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import RunningRollout
from taskapp_kit.serve.event_loop_watchdog import Watchdog

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
           600.0, 1800.0, 3600.0)  # fmt: skip
"""Upper bounds of the histogram buckets for the duration of rollouts, in seconds."""
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
"""The kit's name for each token count in the responses of endpoints. Other counts are ignored."""


@dataclass(slots=True)
class EnvironmentMetrics:
    """Sums over the rollouts of an environment. `durations` counts rollouts by duration.

    SECONDS contains the upper bounds of its buckets. The last bucket counts all longer rollouts.
    """

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
    """All metrics at one point in time.

    Attributes:
        rollouts: Number of ended rollouts by environment, status, boundary and key label.
        responses: Number of responses by method, route template and status.
        key_refusals: Number of requests that the key check rejected, by error code.
        health: The result of `Service.health`.
        connections: Number of open connections, and of connections that the server ended, by cause.
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
    """The counters of one service. All methods must be called on the service's event loop.

    Args:
        environments: Names of the declared environments.
        health: `Service.health`.
    """

    def __init__(self, environments: Iterable[str], health: Callable[[], Mapping[str, Any]]) -> None:
        self.loop: Watchdog | None = None
        self._health = health
        self._environments = {name: EnvironmentMetrics() for name in environments}
        self._rollouts: Counter[tuple[str, str, str, str]] = Counter()
        self._responses: Counter[tuple[str, str, int]] = Counter()
        self._key_refusals: Counter[str] = Counter()
        self._store_errors = 0

    def ended(self, rollout: RunningRollout, result: Rollout) -> None:
        """Count an ended rollout."""
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
        if invalid > 0:  # an environment may have a metric of the same name, which may be negative
            sums.invalid_actions += invalid
        # an endpoint chooses these names, so only known names become labels
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
        """Count an HTTP response.

        `route` is the template of the route, such as `/blobs/{sha256}`, or "(none)" if no route matched.
        """
        # clients can send any method, and each method would be a new time series
        self._responses[method if method in METHODS else "(other)", route, status] += 1

    def count_key_refusal(self, code: str) -> None:
        """Count a request that the key check rejected. `code` is the error code in the response."""
        self._key_refusals[code] += 1

    def store_failed(self) -> None:
        """Count a rollout that the store could not save or load."""
        self._store_errors += 1

    def snapshot(self, connections: tuple[int, Mapping[str, int]] | None = None) -> Snapshot:
        """Return a copy of the current metrics, which `render` can read in another thread.

        `connections` is None if the server does not count connections.
        """
        loop = self.loop
        return Snapshot(
            {
                # copied, because a thread renders the snapshot while rollouts continue
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
    """Return the rendered metrics and their content type.

    The format is OpenMetrics if the header value `accept` requests it, and Prometheus' text format otherwise. The
    first call loads prometheus_client, which takes about 0.1 s of CPU time, so this function should be called in a
    thread.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    # a registry for each scrape, because the global registry would mix the services of a process
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(snapshot))
    ProcessCollector(registry=registry)
    # an invalid version is not passed on, because the library would repeat it in the content type or raise
    open_metrics = "application/openmetrics-text" in accept
    encode, content_type = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    return encode(registry), content_type


class _Read:
    """A prometheus_client collector that returns the metrics in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the documented order."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for kind, name, words, labels, samples in (*_of_rollouts(self._snapshot), *_of_server(self._snapshot)):
            if kind == "histogram":
                histogram = HistogramMetricFamily(name, words, labels=labels)
                for values, (buckets, total) in samples:
                    histogram.add_metric(values, buckets, total)
                yield histogram
                continue
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, words, labels=labels)
            for values, number in samples:
                family.add_metric(values, number)
            yield family


Family = tuple[str, str, str, tuple[str, ...], Iterable[tuple[tuple[str, ...], Any]]]
"""Kind, name, description and label names of a metric, and its samples as (label values, number)."""

_DESCRIBED = {
    "rollouts": "Ended rollouts. The label boundary names the part that failed, and is empty for scored rollouts. "
    "The label key is the label of the caller's key.",
    "rollout_seconds": "Time from the admission of a rollout to its end, including waiting.",
    "rollout_phase_seconds": "Time of rollouts by phase. The phase framework includes waiting.",
    "steps": "Steps played.",
    "invalid_actions": "Steps whose action the kit or the environment rejected.",
    "tokens": "Tokens that endpoints reported.",
    "rewards": "Scored rollouts whose reward is defined.",
    "rewards_sum": "Sum of the defined rewards. The mean is this sum divided by taskapp_rewards_total.",
    "outcome_scores": "Scored rollouts whose outcome score is defined.",
    "outcome_scores_sum": "Sum of the defined outcome scores.",
    "http_responses": "HTTP responses to requests that passed the key check.",
    "http_refusals": "Requests that were rejected before routing, by error code.",
    "store_errors": "Rollouts that the store could not save or load.",
    "in_flight": "Running rollouts.",
    "capacity": "The maximum number of running rollouts.",
    "hung_threads": "Abandoned threads that are stuck in an environment.",
    "store_failing": "1 if the last write to the store failed.",
    "store_write_failures": "Failed writes to the store, including retries.",
    "draining": "1 while the server accepts no new rollouts.",
    "sessions": "Open sessions.",
    "sessions_opened": "Sessions that were opened.",
    "sessions_ended": "Sessions that were closed.",
    "workers": "Running worker processes.",
    "workers_waiting": "Rollouts that wait for a worker process.",
    "workers_replaced": "Worker processes that were replaced.",
    "workers_killed": "Worker processes that were killed because they hung.",
    "workers_hung": "Rollouts that hung in a worker process.",
    "connections": "Open connections.",
    "connections_ended": "Connections that the server ended before the client closed them.",
    "event_loop_lag_seconds": "Delay of the event loop's last heartbeat, in seconds.",
    "event_loop_blocked": "How often the event loop was blocked for more than 0.25 s.",
    "event_loop_blocked_seconds": "Total time for which the event loop was blocked, in seconds.",
}
"""The descriptions of all metrics, by name without the prefix `taskapp_`."""
# a sum of rewards may decrease, unlike a counter or the sum of a histogram
_SUMS_OF_REWARDS = {"rewards_sum", "outcome_scores_sum"}
_STATES = {
    "in_flight",
    "capacity",
    "hung_threads",
    "store_failing",
    "draining",
    "sessions",
    "workers",
    "workers_waiting",
}
_GAUGES = _SUMS_OF_REWARDS | _STATES | {"connections", "event_loop_lag_seconds"}
_SUMS = {
    "steps": "steps",
    "invalid_actions": "invalid_actions",
    "rewards": "rewards",
    "rewards_sum": "reward",
    "outcome_scores": "outcomes",
    "outcome_scores_sum": "outcome",
}
"""Metrics with one number for each environment, and the fields of EnvironmentMetrics that contain the numbers."""
_HEALTH = {
    "in_flight": ("", "in_flight"),
    "capacity": ("", "capacity"),
    "hung_threads": ("", "hung_threads"),
    "store_failing": ("store", "failing"),
    "store_write_failures": ("store", "failures"),
    "draining": ("", "draining"),
    "sessions": ("sessions", "open"),
    "sessions_opened": ("sessions", "opened"),
    "sessions_ended": ("sessions", "cause"),
    "workers": ("workers", "alive"),
    "workers_waiting": ("workers", "waiting"),
    "workers_replaced": ("workers", "replaced"),
    "workers_killed": ("workers", "killed"),
    "workers_hung": ("workers", "hung"),
}
"""Metrics from `Service.health`: the name of a section, which some servers omit, and the name of a field in it."""


def _family(name: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], Any]]) -> Family:
    kind = "histogram" if name == "rollout_seconds" else "gauge" if name in _GAUGES else "counter"
    return kind, f"taskapp_{name}", _DESCRIBED[name], labels, samples


def _single(name: str, number: float) -> Family:
    return _family(name, (), [((), number)])


def _of_rollouts(snapshot: Snapshot) -> Iterator[Family]:
    environments = snapshot.environments.items()
    yield _family("rollouts", ("environment", "status", "boundary", "key"), snapshot.rollouts.items())
    durations = [((name,), (_buckets(sums.durations), sums.seconds)) for name, sums in environments]
    yield _family("rollout_seconds", ("environment",), durations)
    phases = [((name, phase), seconds) for name, sums in environments for phase, seconds in sums.phases.items()]
    yield _family("rollout_phase_seconds", ("environment", "phase"), phases)
    for metric, member in _SUMS.items():
        yield _family(metric, ("environment",), [((name,), getattr(sums, member)) for name, sums in environments])
        if metric == "invalid_actions":
            tokens = [((name, kind), count) for name, sums in environments for kind, count in sums.tokens.items()]
            yield _family("tokens", ("environment", "kind"), tokens)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound, as Prometheus expects."""
    return list(zip((*map(str, SECONDS), "+Inf"), accumulate(counts), strict=True))


def _of_server(snapshot: Snapshot) -> Iterator[Family]:
    answers = [((method, route, str(status)), count) for (method, route, status), count in snapshot.responses.items()]
    yield _family("http_responses", ("method", "route", "status"), answers)
    yield _family("http_refusals", ("code",), _by_name(snapshot.key_refusals))
    yield _single("store_errors", snapshot.store_errors)
    whole = {**snapshot.health, "draining": snapshot.health.get("status") == "draining"}
    for metric, (part, member) in _HEALTH.items():
        values = whole if not part else whole.get(part)
        if values is None:
            continue
        if member == "cause":
            ended = {cause: count for cause, count in values.items() if cause not in ("open", "opened")}
            yield _family(metric, ("cause",), _by_name(ended))
        else:
            yield _single(metric, float(values.get(member, 0)))
    if snapshot.connections is not None:
        count, causes = snapshot.connections
        yield _single("connections", count)
        yield _family("connections_ended", ("cause",), _by_name(causes))
    if snapshot.loop is not None:
        lag, blocked, seconds = snapshot.loop
        yield _single("event_loop_lag_seconds", lag)
        yield _single("event_loop_blocked", blocked)
        yield _single("event_loop_blocked_seconds", seconds)


def _by_name(counts: Mapping[str, int]) -> list[tuple[tuple[str, ...], int]]:
    return [((name,), count) for name, count in counts.items()]

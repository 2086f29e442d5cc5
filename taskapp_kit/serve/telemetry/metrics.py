"""The metrics of a server, and their rendering for Prometheus.

Recording is a few additions to plain dictionaries, on the event loop. `prometheus_client` is loaded at the first scrape,
when `render` builds its metrics from a snapshot. Nothing is global: each service has its own Metrics.

Label values are bounded: declared environments, fixed words, the labels of the operator's key file, the templates of routes.
No label contains a value that a caller chose.
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


@dataclass(slots=True)
class EnvironmentMetrics:
    """Sums over the rollouts of an environment. durations: the counts of the buckets of SECONDS, and of longer rollouts."""

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
    """All metrics at one moment.

    rollouts: by environment, status, boundary, key label. responses: by method, route template, status. key_refusals: by
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

    environments: the declared environments. health: `Service.health`. loop: the watchdog, if the event loop is watched.
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
        if invalid > 0:  # an environment may have a metric of that name, of any sign
            sums.invalid_actions += invalid
        # the names come from an endpoint, so only known names become labels
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
        """Count an HTTP response. route: the template (`/blobs/{sha256}`), never a path; "(none)" without a route."""
        # a client may send any method, and each would be a new series
        self._responses[method if method in METHODS else "(other)", route, status] += 1

    def count_key_refusal(self, code: str) -> None:
        """Count a request that the key check rejected. code: the error code of the response."""
        self._key_refusals[code] += 1

    def store_failed(self) -> None:
        """Count a rollout that the store could not save or load."""
        self._store_errors += 1

    def snapshot(self, connections: tuple[int, Mapping[str, int]] | None = None) -> Snapshot:
        """Return the current metrics, for `render` in another thread. connections: set if the server counts them."""
        loop = self.loop
        return Snapshot(
            {
                # copied, because it is rendered in a thread while rollouts continue
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
    """Return the metrics as OpenMetrics if `accept` names it, else in Prometheus' text format, and the content type.

    The first call loads prometheus_client (about 0.1 s of CPU), so call it in a thread.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    # one registry for each scrape, because the global registry would mix the services of a process
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(snapshot))
    ProcessCollector(registry=registry)
    # an invalid version is not passed on, because the library would repeat it in the content type, or fail
    open_metrics = "application/openmetrics-text" in accept
    encode, content_type = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    return encode(registry), content_type


class _Read:
    """A collector of prometheus_client for a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Return the metrics in their documented order."""
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
"""Kind, name, description, label names, and samples: (label values, number)."""

_DESCRIBED = {
    "rollouts": "Ended rollouts. boundary: where it failed, empty if it was scored; "
    "key: the label of the caller's key.",
    "rollout_seconds": "From a rollout's admission to its end, waiting included.",
    "rollout_phase_seconds": "The time of rollouts by phase; framework includes waiting.",
    "steps": "Steps played.",
    "invalid_actions": "Steps whose action was refused: unknown tool, bad arguments, or refused by the environment.",
    "tokens": "Tokens as endpoints counted them.",
    "rewards": "Scored rollouts whose reward is defined.",
    "rewards_sum": "Sum of the defined rewards; divided by taskapp_rewards_total, their mean.",
    "outcome_scores": "Scored rollouts whose outcome score is defined.",
    "outcome_scores_sum": "Sum of the outcome scores.",
    "http_responses": "HTTP responses to requests that passed the key check.",
    "http_refusals": "Requests that were rejected before routing, by the code of the response.",
    "store_errors": "Rollouts that the store could not save or load.",
    "in_flight": "Running rollouts.",
    "capacity": "The maximum number of running rollouts.",
    "hung_threads": "Threads that are stuck in an environment and were abandoned.",
    "store_failing": "1 while the last write to the store failed.",
    "store_write_failures": "Failed writes to the store, including retries.",
    "draining": "1 while the server accepts no new rollouts.",
    "sessions": "Sessions that are open.",
    "sessions_opened": "Sessions that were opened.",
    "sessions_ended": "Sessions that were closed.",
    "workers": "Worker processes alive.",
    "workers_waiting": "Rollouts that wait for a worker process.",
    "workers_replaced": "Worker processes that were replaced.",
    "workers_killed": "Worker processes that were killed, because they hung.",
    "workers_hung": "Rollouts that hung in a worker process.",
    "connections": "Open connections.",
    "connections_ended": "Connections that the server ended before their callers did.",
    "event_loop_lag_seconds": "How late the event loop last was.",
    "event_loop_blocked": "How often the event loop was blocked for more than 0.25 s.",
    "event_loop_blocked_seconds": "The total time for which it was blocked.",
}
"""Every metric, without `taskapp_`, and its description."""
# a sum of rewards may decrease, unlike a counter and a histogram's sum
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
"""Metrics with one number for each environment, by the members of EnvironmentMetrics."""
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
"""Metrics from `Service.health`: the section, which some servers lack, and its member."""


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
    """Return the cumulative counts that Prometheus expects."""
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

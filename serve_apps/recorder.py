"""From what happens to metrics: what a gateway and a replica tell, into one or more sinks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest

from cluster.directory import ReplicaRecord, ReplicaState
from cluster.engines.base import Stats
from serve_apps.fleet import Fleet
from serve_apps.metrics import Metric, Source, of
from serve_apps.observer import Observer, RequestTrace

LOOK_PERIOD_S = 1.0


class Sink(Protocol):
    """Where measurements go."""

    def record(self, name: str, value: float, **labels: str) -> None:
        """Add `value` to a counter, set a gauge to it, or count it into a histogram."""


class PrometheusSink:
    """Keeps measurements in this process, for its own /metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._instruments = {m.name: (self._make(m), m.verb) for m in of(Source.GATEWAY)}
        # Looking up an instrument's labels costs more than counting.
        self._takers: dict[tuple[object, ...], Callable[[float], None]] = {}

    def record(self, name: str, value: float, **labels: str) -> None:
        key = (name, *labels.items())
        take = self._takers.get(key)
        if take is None:
            instrument, verb = self._instruments[name]
            take = self._takers[key] = getattr(instrument.labels(**labels), verb)
        take(value)

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def _make(self, metric: Metric) -> Any:
        make = getattr(prometheus_client, metric.kind.capitalize())
        more = {"buckets": metric.buckets} if metric.buckets else {}
        return make(metric.name, metric.meaning, metric.labels, registry=self._registry, **more)


class GatewayMetrics(Observer):
    """Turns what the gateway called `name` tells into metrics, here and in `others`."""

    def __init__(self, name: str, *others: Sink) -> None:
        self.name = name
        self._own = own = PrometheusSink()
        self._sinks: tuple[Sink, ...] = (own, *others)
        self._dead: set[str] = set()

    def picked(self, model: str, reason: str) -> None:
        self._record("rayscend_picks_total", 1, model=model, reason=reason)

    def finished(self, trace: RequestTrace) -> None:
        model = trace.model
        self._record("rayscend_requests_total", 1, model=model, outcome=trace.outcome)
        self._record("rayscend_queue_seconds", trace.queued_s, model=model)
        self._record("rayscend_request_seconds", trace.ended - trace.arrived, model=model)
        if trace.first:
            self._record("rayscend_ttft_seconds", trace.first - trace.arrived, model=model)
        if (itl_s := trace.itl_s) is not None:
            self._record("rayscend_itl_seconds", itl_s, model=model)

    def answered(self, status: int) -> None:
        self._record("rayscend_http_answers_total", 1, status=str(status))

    def exposition(self) -> str:
        return self._own.text()

    def look(self, fleet: Fleet) -> None:
        """Take the state of the fleet, as it is now."""
        for model in fleet.models():
            replicas = fleet.replicas(model)
            in_flight = sum(replica.in_flight for replica in replicas)
            self._record("rayscend_requests_in_flight", in_flight, model=model)
            self._record("rayscend_requests_queued", fleet.queued(model), model=model)
            states = [replica.record.state for replica in replicas]
            for state in ReplicaState:
                self._record("rayscend_replicas", states.count(state), model=model, state=state)

    def deaths(self, records: Iterable[ReplicaRecord]) -> None:
        """Count those that are dead and were not in the call before."""
        dead = {r.replica_id: r for r in records if r.state is ReplicaState.DEAD}
        for replica_id in dead.keys() - self._dead:
            record = dead[replica_id]
            cause = cause_of_death(record.cause)
            self._record("rayscend_replica_deaths_total", 1, model=record.model, cause=cause)
        self._dead = set(dead)

    def _record(self, name: str, value: float, **labels: str) -> None:
        for sink in self._sinks:
            sink.record(name, value, **labels)


class ReplicaMetrics:
    """An engine's counters as metrics of its replica."""

    def __init__(self, sink: Sink, model: str) -> None:
        self._sink, self._model = sink, model
        self._last = Stats()

    def update(self, stats: Stats) -> None:
        now, last, model = stats, self._last, self._model
        self._sink.record("rayscend_replica_running", now.running, model=model)
        self._sink.record("rayscend_replica_waiting", now.waiting, model=model)
        self._sink.record("rayscend_replica_kv_usage_ratio", now.kv_usage, model=model)
        output = now.output_tokens - last.output_tokens
        prompt = now.tokens - last.tokens - output
        for kind, more in (("prompt", prompt), ("output", output)):
            if more > 0:
                self._sink.record("rayscend_replica_tokens_total", more, model=model, kind=kind)
        self._last = stats


_CAUSES: Sequence[tuple[str, re.Pattern[str]]] = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("out_of_memory", r"memory ran out|no memory for the KV|KV cache is too small"),
        ("port_taken", r"took one of its ports|all of them are taken"),
        ("phase_limit", r"has not ended within its limit"),
        ("lease_lost", r"stopped renewing its lease|[Tt]he lease of "),
        ("supervisor_killed", r"supervisor was killed"),
        ("killed", r"was killed by SIG(KILL|TERM|INT|HUP)\b"),
        ("crashed", r"was killed by |ended with exit code [^0]"),
        ("ended", r"ended with exit code 0"),
    )
)


def cause_of_death(cause: str) -> str:
    """Return one of a few words for a `ReplicaRecord.cause`, whose text names files and numbers.

    The directory, `python -m cluster.status` and the logs have the text itself.
    """
    return next((word for word, pattern in _CAUSES if pattern.search(cause)), "other")

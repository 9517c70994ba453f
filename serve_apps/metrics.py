"""Every metric of Rayscend, once: its name, kind, labels, unit, meaning, and panel.

The table makes what the gateway answers on /metrics, what Ray exports (`ray_metrics.py`), the
Grafana dashboard (`scripts/grafana_dashboard.py`) and the table in docs/guides/monitoring.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_DURATIONS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """Which process measures. A replica's own metrics reach Prometheus through Ray alone."""

    GATEWAY = "gateway"
    REPLICA = "replica"


@dataclass(frozen=True)
class Metric:
    """One metric.

    `panel` is the title of its panel, which keeps the labels `by` (else its own). `shared`: every
    process sees the whole, so that their values must not be added up.
    """

    name: str
    source: Source
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    meaning: str
    panel: str
    by: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    shared: bool = False

    @property
    def verb(self) -> str:
        """The method by which an instrument takes a value, in Prometheus' client and in Ray's."""
        return _VERBS[self.kind]

    def expressions(self) -> dict[str, str]:
        """The panel's PromQL by legend, over what Ray exports."""
        by = self.by or self.labels
        legend = " ".join(f"{{{{{label}}}}}" for label in by)
        fields = {"name": f"ray_{self.name}", "by": ", ".join(by)}
        if self.kind is Kind.HISTOGRAM:
            return {f"{legend} P{q}": _QUANTILE.format(q=q / 100, **fields) for q in (50, 90, 99)}
        query = _SHARED if self.shared else _QUERIES[self.kind]
        return {legend: query.format(**fields)}


_VERBS = {Kind.COUNTER: "inc", Kind.GAUGE: "set", Kind.HISTOGRAM: "observe"}
_QUERIES = {
    Kind.COUNTER: "sum by ({by}) (rate({name}[$__rate_interval]))",
    Kind.GAUGE: "sum by ({by}) ({name})",
}
_SHARED = "max by ({by}) ({name})"
_QUANTILE = "histogram_quantile({q}, sum by (le, {by}) (rate({name}_bucket[$__rate_interval])))"

_OF_MODEL = ("model",)
_OF_REPLICA = ("model", "replica")

METRICS: tuple[Metric, ...] = (
    Metric(
        "rayscend_requests_total",
        Source.GATEWAY,
        Kind.COUNTER,
        ("model", "outcome"),
        "requests",
        "Requests for a model that ended: ok, engine_error, client_gone, or an error's code.",
        "Requests per second by outcome",
    ),
    Metric(
        "rayscend_http_answers_total",
        Source.GATEWAY,
        Kind.COUNTER,
        ("status",),
        "requests",
        "HTTP answers by status; 499 stands for a client that went away before.",
        "HTTP answers per second by status",
    ),
    Metric(
        "rayscend_requests_in_flight",
        Source.GATEWAY,
        Kind.GAUGE,
        _OF_MODEL,
        "requests",
        "Requests that the gateways have open on engines.",
        "Requests in flight",
    ),
    Metric(
        "rayscend_requests_queued",
        Source.GATEWAY,
        Kind.GAUGE,
        _OF_MODEL,
        "requests",
        "Requests that wait in the gateways for a free replica.",
        "Requests queued in gateways",
    ),
    Metric(
        "rayscend_queue_seconds",
        Source.GATEWAY,
        Kind.HISTOGRAM,
        _OF_MODEL,
        "seconds",
        "How long a request waited in its gateway for a replica.",
        "Queue time",
        buckets=_LATENCIES,
    ),
    Metric(
        "rayscend_ttft_seconds",
        Source.GATEWAY,
        Kind.HISTOGRAM,
        _OF_MODEL,
        "seconds",
        "Time to first token: from a streaming request's arrival to its first event.",
        "TTFT",
        buckets=_LATENCIES,
    ),
    Metric(
        "rayscend_itl_seconds",
        Source.GATEWAY,
        Kind.HISTOGRAM,
        _OF_MODEL,
        "seconds",
        "Inter-token latency: one mean for each whole stream.",
        "ITL",
        buckets=_TOKEN_GAPS,
    ),
    Metric(
        "rayscend_request_seconds",
        Source.GATEWAY,
        Kind.HISTOGRAM,
        _OF_MODEL,
        "seconds",
        "From a request's arrival to its end, whatever that was.",
        "Request duration",
        buckets=_DURATIONS,
    ),
    Metric(
        "rayscend_picks_total",
        Source.GATEWAY,
        Kind.COUNTER,
        ("model", "reason"),
        "requests",
        "Picks of a replica by what decided them.",
        "Picks per second by reason",
    ),
    Metric(
        "rayscend_replicas",
        Source.GATEWAY,
        Kind.GAUGE,
        ("model", "state"),
        "replicas",
        "Replicas by state, as the directory has them.",
        "Replicas by state",
        shared=True,
    ),
    Metric(
        "rayscend_replica_deaths_total",
        Source.GATEWAY,
        Kind.COUNTER,
        ("model", "cause"),
        "replicas",
        "Replicas that died since the gateway started, by cause.",
        "Deaths by cause",
        shared=True,
    ),
    Metric(
        "rayscend_replica_running",
        Source.REPLICA,
        Kind.GAUGE,
        _OF_MODEL,
        "requests",
        "Requests that the engine works on.",
        "Running requests",
        _OF_REPLICA,
    ),
    Metric(
        "rayscend_replica_waiting",
        Source.REPLICA,
        Kind.GAUGE,
        _OF_MODEL,
        "requests",
        "Requests that wait inside the engine.",
        "Waiting requests",
        _OF_REPLICA,
    ),
    Metric(
        "rayscend_replica_kv_usage_ratio",
        Source.REPLICA,
        Kind.GAUGE,
        _OF_MODEL,
        "ratio",
        "Share of the engine's KV cache that is in use, from 0 to 1.",
        "KV cache usage",
        _OF_REPLICA,
    ),
    Metric(
        "rayscend_replica_tokens_total",
        Source.REPLICA,
        Kind.COUNTER,
        ("model", "kind"),
        "tokens",
        "Tokens that the engine has taken in (prompt) and made (output).",
        "Tokens per second",
    ),
)


def of(source: Source) -> tuple[Metric, ...]:
    """The metrics that `source` measures."""
    return tuple(metric for metric in METRICS if metric.source is source)


def table() -> str:
    """METRICS as a table in Markdown."""
    rows = [("name", "measured by", "kind", "labels", "meaning"), ("---",) * 5]
    rows += [(f"`{m.name}`", m.source, m.kind, ", ".join(m.labels), m.meaning) for m in METRICS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())

"""The table of metrics, and what makes metrics of what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.directory import Picture, ReplicaState
from cluster.engines.base import Stats
from cluster.errors import QueueFull, ReplicaLost
from scripts.grafana_dashboard import dashboard
from serve_apps.fleet import Fleet
from serve_apps.metrics import METRICS, Kind, Metric, table
from serve_apps.observer import Observer, RequestTrace
from serve_apps.recorder import GatewayMetrics, ReplicaMetrics, cause_of_death
from tests.unit.gateway_rig import record

_ROOT = Path(__file__).parents[2]
_BASE_UNITS = ("_seconds", "_ratio")


class Noted:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[tuple[str, float, dict[str, str]]] = []

    def record(self, name: str, value: float, **labels: str) -> None:
        self.records.append((name, value, labels))

    def of(self, name: str) -> list[tuple[float, dict[str, str]]]:
        return [(value, labels) for known, value, labels in self.records if known == name]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_labels_and_units_follow_prometheus(metric: Metric) -> None:
    """https://prometheus.io/docs/practices/naming/"""
    assert re.fullmatch(r"rayscend(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert (metric.unit in ("seconds", "ratio")) == metric.name.endswith(_BASE_UNITS)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(metric.buckets)
    # Those are added by Ray Serve and by the gateway; `le` belongs to histograms.
    assert not {"replica", "deployment", "application", "gateway", "le"} & set(metric.labels)


def test_every_metric_has_one_row() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({metric.panel for metric in METRICS}) == len(METRICS)


def test_the_guide_has_the_table_as_it_is() -> None:
    guide = (_ROOT / "docs/guides/monitoring.md").read_text(encoding="utf-8")
    assert table() in guide, "paste what `python -m serve_apps.metrics` prints"


def test_the_dashboard_has_a_panel_for_each_metric_and_none_covers_another() -> None:
    panels = dashboard()["panels"]
    assert [panel["title"] for panel in panels] == [metric.panel for metric in METRICS]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    places = Counter((panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels)
    assert set(places.values()) == {1}
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_table_and_dashboard_need_no_ray() -> None:
    code = (
        "import sys, scripts.grafana_dashboard, serve_apps.recorder; sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=_ROOT).returncode == 0


def _trace(error: BaseException | None = None) -> RequestTrace:
    traces: list[RequestTrace] = []

    class Keeping(Observer):
        def finished(self, trace: RequestTrace) -> None:
            traces.append(trace)

    with suppress(BaseException), Keeping().following("m"):
        if error is not None:
            raise error
    (trace,) = traces
    return trace


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (QueueFull("full"), "queue_full"),
        (ReplicaLost("lost"), "replica_lost"),
        (GeneratorExit(), "client_gone"),
        (KeyError("ours"), "failed"),
    ],
)
def test_a_request_is_told_once_with_how_it_ended(
    error: BaseException | None, outcome: str
) -> None:
    trace = _trace(error)
    assert trace.outcome == outcome
    assert trace.ended >= trace.arrived


def test_itl_is_the_mean_between_the_first_token_and_done() -> None:
    trace = RequestTrace("m", first=1.0)
    role_and_first = b"data: role\n\ndata: a\n\n"
    for events in (role_and_first, b"data: b\n\n", b"data: c\n\ndata: d\n\n", b"data: [DONE]\n\n"):
        trace.saw(events)
    trace.last = 1.6
    assert trace.itl_s == pytest.approx(0.2)  # a to d are three gaps


@pytest.mark.parametrize("pieces", [(), (b"data: a\n\n",), (b"data: a\n\n", b"data: [DONE]\n\n")])
def test_a_stream_of_one_token_has_no_itl(pieces: tuple[bytes, ...]) -> None:
    trace = RequestTrace("m", first=1.0)
    for piece in pieces:
        trace.saw(piece)
    assert trace.itl_s is None


def test_a_finished_request_is_counted_in_every_sink() -> None:
    noted = Noted()
    metrics = GatewayMetrics("g0", noted)
    metrics.picked("m", "retry")
    metrics.answered(499)
    metrics.finished(
        RequestTrace(
            "m", 10.0, 0.5, first=12.0, last=14.0, ended=14.0, later_events=5, outcome="ok"
        )
    )
    assert noted.records == [
        ("rayscend_picks_total", 1, {"model": "m", "reason": "retry"}),
        ("rayscend_http_answers_total", 1, {"status": "499"}),
        ("rayscend_requests_total", 1, {"model": "m", "outcome": "ok"}),
        ("rayscend_queue_seconds", 0.5, {"model": "m"}),
        ("rayscend_request_seconds", 4.0, {"model": "m"}),
        ("rayscend_ttft_seconds", 2.0, {"model": "m"}),
        ("rayscend_itl_seconds", 0.5, {"model": "m"}),
    ]
    text = metrics.exposition()
    assert 'rayscend_requests_total{model="m",outcome="ok"} 1.0' in text
    assert 'rayscend_itl_seconds_bucket{le="0.5",model="m"} 1.0' in text


def test_an_answer_that_is_no_stream_has_neither_ttft_nor_itl() -> None:
    noted = Noted()
    GatewayMetrics("g0", noted).finished(RequestTrace("m", 10.0, ended=14.0, outcome="ok"))
    assert not noted.of("rayscend_ttft_seconds")
    assert not noted.of("rayscend_itl_seconds")


async def test_a_look_tells_what_is_open_and_who_is_how() -> None:
    noted = Noted()
    fleet = Fleet(("m", "empty"))
    states = (ReplicaState.READY, ReplicaState.READY, ReplicaState.STARTING)
    records = tuple(record(f"r{i}", "http://x", state=state) for i, state in enumerate(states))
    fleet.update(Picture("e", 1, True, records))
    async with fleet.reserve("m"):
        GatewayMetrics("g0", noted).look(fleet)
    assert noted.of("rayscend_requests_in_flight") == [(1, {"model": "m"}), (0, {"model": "empty"})]
    counts = {tuple(labels.values()): n for n, labels in noted.of("rayscend_replicas")}
    assert (counts["m", "ready"], counts["m", "starting"], counts["m", "dead"]) == (2, 1, 0)
    assert counts["empty", "ready"] == 0


def test_a_death_is_counted_once_however_often_it_is_seen() -> None:
    noted = Noted()
    metrics = GatewayMetrics("g0", noted)
    dead = record("r0", "", state=ReplicaState.DEAD, cause="vllm was killed by SIGKILL (Killed).")
    for records in ((record("r0", ""),), (dead,), (dead, record("r1", "")), (dead,)):
        metrics.deaths(records)
    assert noted.of("rayscend_replica_deaths_total") == [(1, {"model": "m", "cause": "killed"})]


def test_tokens_are_counted_from_one_look_to_the_next() -> None:
    noted = Noted()
    metrics = ReplicaMetrics(noted, "m")
    for tokens, output in ((10, 4), (10, 4), (25, 12)):
        metrics.update(
            Stats(running=2, waiting=1, kv_usage=0.5, tokens=tokens, output_tokens=output)
        )
    assert noted.of("rayscend_replica_tokens_total") == [
        (6, {"model": "m", "kind": "prompt"}),
        (4, {"model": "m", "kind": "output"}),
        (7, {"model": "m", "kind": "prompt"}),
        (8, {"model": "m", "kind": "output"}),
    ]
    assert noted.of("rayscend_replica_running")[-1] == (2, {"model": "m"})
    assert noted.of("rayscend_replica_waiting")[-1] == (1, {"model": "m"})
    assert noted.of("rayscend_replica_kv_usage_ratio")[-1] == (0.5, {"model": "m"})


@pytest.mark.parametrize(
    ("cause", "word"),
    [
        ("vllm was killed by SIGKILL (Killed); its output is in /l.", "killed"),
        ("vllm was killed by SIGSEGV (Segmentation fault).", "crashed"),
        ('vllm ended with exit code 1 in the phase "loading weights".', "crashed"),
        ("vllm ended with exit code 1. memory ran out. Serve fewer.", "out_of_memory"),
        ("vllm ended with exit code 1. another program took one of its ports.", "port_taken"),
        ("vllm ended with exit code 0.", "ended"),
        ("it stopped renewing its lease 10 s ago", "lease_lost"),
        ("The lease of 127.0.0.1 ports [20000] has ended.", "lease_lost"),
        ('vllm: the phase "x" has not ended within its limit of 3 s; the last', "phase_limit"),
        ("The supervisor was killed, and its engine with it.", "supervisor_killed"),
        ("something new", "other"),
    ],
)
def test_causes_of_death_are_a_few_words(cause: str, word: str) -> None:
    assert cause_of_death(cause) == word

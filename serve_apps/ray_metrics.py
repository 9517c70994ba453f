"""Rayscend's metrics as metrics of Ray: every node's agent exports them, with `ray_` in front.

Ray Serve adds the labels `deployment`, `replica` and `application`.
"""

from __future__ import annotations

from typing import Any

from ray.serve import metrics as serve_metrics

from serve_apps.metrics import Metric, Source, of


class RaySink:
    """A `recorder.Sink`, inside a replica of Ray Serve."""

    def __init__(self, source: Source) -> None:
        self._instruments = {m.name: (_make(m), m.verb) for m in of(source)}

    def record(self, name: str, value: float, **labels: str) -> None:
        instrument, method = self._instruments[name]
        getattr(instrument, method)(value, tags=labels)


def _make(metric: Metric) -> Any:
    make = getattr(serve_metrics, metric.kind.capitalize())
    more = {"boundaries": list(metric.buckets)} if metric.buckets else {}
    return make(metric.name, description=metric.meaning, tag_keys=metric.labels, **more)

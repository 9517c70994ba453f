"""The simulated engine's /metrics, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.engines.simulated.model import Scheduler


class EngineCollector(Collector):
    """Reads the scheduler's counters whenever /metrics is asked for."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._names = ["engine", "model_name"]
        self._values = ["0", model]

    def collect(self) -> Iterator[Metric]:
        engine = self._scheduler
        for name, meaning, value in (
            ("num_requests_running", "Sequences that run.", len(engine.running)),
            ("num_requests_waiting", "Sequences that wait.", len(engine.waiting)),
            ("kv_cache_usage_perc", "Reserved share of the KV cache, 0 to 1.", engine.kv_usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", meaning, labels=self._names)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, meaning, count in (
            ("prompt_tokens", "Prompt tokens processed.", engine.prompt_tokens),
            ("generation_tokens", "Tokens generated.", engine.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", engine.cache_queries),
            ("prefix_cache_hits", "Prompt tokens found.", engine.cache_hits),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", meaning, labels=self._names)
            counter.add_metric(self._values, count)
            yield counter
        done = CounterMetricFamily(
            "vllm:request_success", "Finished sequences.", labels=[*self._names, "finished_reason"]
        )
        for reason, count in engine.finished.items():
            done.add_metric([*self._values, reason], count)
        yield done

from __future__ import annotations

import pytest

from cluster.engines.base import Stats
from cluster.engines.prometheus import read_stats, sample_sums

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="odd } \\" 7"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7961419667647185e+09
vllm:generation_tokens_total 38.0 1796141966000
"""


def test_stats_are_summed_over_labels_and_neighbouring_names_are_left_alone() -> None:
    assert read_stats(TEXT) == Stats(
        running=5, waiting=4, kv_usage=0.25, tokens=1538.0, output_tokens=38.0
    )


@pytest.mark.parametrize("text", ["", "not prometheus", "# vllm:num_requests_running 3"])
def test_what_is_missing_counts_as_nothing(text: str) -> None:
    assert read_stats(text) == Stats()


def test_names_are_literal_not_patterns() -> None:
    assert sample_sums("a.b 1\naxb 2\n", ("a.b",)) == {"a.b": 1.0}

"""What prefix-aware picking is worth: the benchmark's simulation, small, with our own routers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.benchmark.picking import WORKLOADS, Result, measure

BY_NAME = {workload.name: workload for workload in WORKLOADS}
US, LEAST, TURNING = "Rayscend", "least requests", "round robin"


def measured(workload: str, *routers: str, replicas: int = 4, turns: int = 600) -> list[Result]:
    half = replace(BY_NAME[workload], rate=BY_NAME[workload].rate * replicas / 8)
    return [measure(half, router, replicas, turns) for router in routers]


@pytest.mark.parametrize(
    ("workload", "gain"),
    [("chats", 0.4), ("chats with shared system prompts", 0.1), ("shared system prompts", 0.05)],
)
def test_what_is_shared_goes_where_its_kv_is(workload: str, gain: float) -> None:
    ours, *others = measured(workload, US, LEAST, TURNING)
    for other in others:
        assert ours.hit_rate > other.hit_rate + gain
        assert ours.ttft_p90 < other.ttft_p90
    assert ours.busiest < 1.15


def test_nothing_is_lost_where_nothing_is_shared() -> None:
    ours, least = measured("nothing shared", US, LEAST)
    assert replace(ours, router="") == replace(least, router="")


def test_a_prefix_that_everybody_uses_does_not_overload_the_replica_that_had_it_first() -> None:
    workload = replace(BY_NAME["shared system prompts"], systems=1, rate=20)
    ours = measure(workload, US, 4, 600)
    assert ours.hit_rate > 0.9
    assert ours.busiest < 1.2
    assert ours.ttft_p99 < 1.0


def test_two_gateways_balance_as_well_as_one_and_see_what_came_another_way() -> None:
    two, blind = "Rayscend, two gateways", "two gateways without the engines' counts"
    one, both = measured("nothing shared", US, two)
    assert both.spread < one.spread + 1
    seeing, unseeing = measured("nothing shared, half are busy", two, blind)
    assert seeing.ttft_p90 < unseeing.ttft_p90
    assert seeing.spread < 0.7 * unseeing.spread

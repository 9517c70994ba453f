"""Prefix-aware picking against other ways, on simulated replicas: hit rate, TTFT, balance.

    python -m scripts.benchmark.picking [--replicas 8] [--turns 6000] [--json FILE]

Deterministic: time is simulated, chance has a seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.benchmark.routers import Gateways, RayPrefixAffinity, RoundRobin
from scripts.benchmark.simulation import Router, Simulation, Workload

WORKLOADS = (
    Workload("chats", rate=5, question_tokens=150, turns=8, think_s=5),
    Workload(
        "chats with shared system prompts",
        rate=5,
        question_tokens=100,
        turns=6,
        think_s=5,
        systems=4,
        system_tokens=800,
    ),
    Workload("shared system prompts", rate=30, question_tokens=50, systems=64, system_tokens=1500),
    Workload("nothing shared", rate=35, question_tokens=1000),
    Workload("nothing shared, half are busy", rate=28, question_tokens=1000, occupied=10),
)
ROUTERS: dict[str, Callable[[int], Router]] = {
    "round robin": RoundRobin,
    "least requests": lambda n: Gateways(n, prefixes=False),
    "Ray's PrefixCacheAffinityRouter": RayPrefixAffinity,
    "the same, imbalanced_threshold=8": lambda n: RayPrefixAffinity(n, 8),
    "Rayscend": Gateways,
    "Rayscend, two gateways": lambda n: Gateways(n, gateways=2),
    "two gateways without the engines' counts": lambda n: Gateways(n, gateways=2, news=False),
}


@dataclass(frozen=True)
class Result:
    """One workload under one router.

    `hit_rate` is the share of prompt tokens found in a cache, TTFT in seconds, `busiest` the
    requests of the replica that got most, as a multiple of the mean, `spread` the mean difference
    between the most and the least requests that replicas have at once.
    """

    workload: str
    router: str
    hit_rate: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    busiest: float
    spread: float


def measure(workload: Workload, router: str, replicas: int, turns: int) -> Result:
    simulation = Simulation(workload, ROUTERS[router](replicas), replicas)
    served = simulation.run(turns)[turns // 5 :]  # caches are full by then
    cuts = statistics.quantiles((turn.ttft for turn in served), n=100)
    counts = Counter(turn.replica for turn in served)
    return Result(
        workload.name,
        router,
        hit_rate=sum(turn.cached for turn in served) / sum(turn.prompt for turn in served),
        ttft_p50=cuts[49],
        ttft_p90=cuts[89],
        ttft_p99=cuts[98],
        busiest=max(counts.values()) * replicas / len(served),
        spread=statistics.mean(simulation.spreads),
    )


def table(results: list[Result]) -> str:
    """Return Markdown."""
    lines = [
        "| workload | picked by | hit rate | TTFT P50 | P90 | P99 | busiest / mean | spread |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r.workload} | {r.router} | {r.hit_rate:.1%} | {r.ttft_p50 * 1e3:.0f} ms "
        f"| {r.ttft_p90 * 1e3:.0f} ms | {r.ttft_p99 * 1e3:.0f} ms | {r.busiest:.2f} "
        f"| {r.spread:.1f} |"
        for r in results
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6000, help="requests in each run")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    options = parser.parse_args()
    results = [
        measure(workload, router, options.replicas, options.turns)
        for workload in WORKLOADS
        for router in ROUTERS
    ]
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()

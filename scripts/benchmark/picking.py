"""Prefix-aware picking against other ways, on simulated replicas: hit rate, TTFT, balance.

    python -m scripts.benchmark.picking [--replicas 8] [--turns 6000] [--quick]

Deterministic: time is simulated, chance has a seed. It rewrites its section of
docs/measurements.md (with --quick: short runs, prints only).
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scripts.benchmark import report
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
    head = ["workload", "picked by", "hit rate", "TTFT ms P50", "P90", "P99"]
    rows = [
        [
            result.workload,
            result.router,
            f"{result.hit_rate:.1%}",
            *(f"{1e3 * s:.0f}" for s in (result.ttft_p50, result.ttft_p90, result.ttft_p99)),
            f"{result.busiest:.2f}",
            f"{result.spread:.1f}",
        ]
        for result in results
    ]
    return report.table([*head, "busiest / mean", "spread"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6000, help="requests in each run")
    parser.add_argument("--quick", action="store_true", help="short runs, no documents")
    options = parser.parse_args()
    turns = 600 if options.quick else options.turns
    results = [
        measure(workload, router, options.replicas, turns)
        for workload in WORKLOADS
        for router in ROUTERS
    ]
    text = f"{report.command()}: {options.replicas} replicas, {turns} requests in each run."
    text += f"\n\n{table(results)}"
    if not options.quick:
        report.write("picking", text)
    print(text)


if __name__ == "__main__":
    main()

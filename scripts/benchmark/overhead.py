"""What the stack costs: one engine process, asked directly and through HAProxy and the gateway.

    python -m scripts.benchmark.overhead [--quick] [--engine simulated|vllm]

It rewrites its section of docs/measurements.md and its pictures (with --quick: prints the tables
only), and writes build/benchmark/overhead.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from scripts.benchmark import plots, report
from scripts.benchmark.load import Load
from scripts.benchmark.measure import Result, Target, compare
from scripts.benchmark.server import OTHER, rayscend, rayscend_urls

DIRECT, THROUGH = "engine alone", "through Rayscend"
ROLES = ("gateway", "HAProxy", "engine", "client", OTHER)


@dataclass(frozen=True)
class Subject:
    """An engine to measure with: how it is served, and loads that suit its speed."""

    title: str
    args: tuple[str, ...]
    full: tuple[Load, ...]
    quick: tuple[Load, ...]


SUBJECTS = {
    "simulated": Subject(
        "Simulated engine (TTFT 50 ms, ITL 20 ms)",
        (
            "engine=simulated",
            "model=simulated",
            "max_ongoing_requests=1024",
            "engine_args=--ttft 0.05 --itl 0.02 --capacity 1024",
        ),
        (Load(10, 64, 1), Load(96, 64, 16), Load(512, 64, 128), Load(160, 64, rate=20)),
        (Load(3, 32, 1), Load(32, 32, 16), Load(256, 32, 128), Load(40, 32, rate=20)),
    ),
    "vllm": Subject(
        "vLLM on CPU (default model)",
        ("engine=vllm",),
        (Load(4, 32, 1), Load(48, 16, 16), Load(128, 16, 128), Load(24, 16, rate=2)),
        (Load(1, 16, 1), Load(16, 8, 16), Load(128, 4, 128), Load(8, 8, rate=2)),
    ),
}


def measure(subject: Subject, loads: Sequence[Load], rounds: int) -> list[Result]:
    """Serve `subject` and put `loads` on it, both ways."""
    with rayscend(*subject.args) as server:
        engine, stack = rayscend_urls(server)
        model = httpx.get(f"{engine}/v1/models").json()["data"][0]["id"]
        targets = [
            Target(name, url, model, server.cpu_seconds)
            for name, url in ((DIRECT, engine), (THROUGH, stack))
        ]
        return compare(targets, loads, rounds)


def added(results: Sequence[Result]) -> str:
    """The cost itself: what is added to the engine's TTFT and ITL, and what is left of its rate."""
    head = ["load", "added TTFT P50, ms", "added ITL P50, ms", "throughput kept"]
    head += ["gateway CPU, ms/request", "gateway + HAProxy CPU, ms per 1000 tokens"]
    rows = []
    for direct, through in zip(results[::2], results[1::2], strict=True):
        rows.append(
            [
                direct.load,
                f"{through.ttft_ms[50] - direct.ttft_ms[50]:.1f}",
                f"{through.itl_ms[50] - direct.itl_ms[50]:.2f}",
                f"{report.share(through, direct):.3f}",
                f"{through.cpu_ms_per_request('gateway'):.1f}",
                f"{1000 * sum(map(through.cpu_s_per_1000_tokens, ('gateway', 'HAProxy'))):.0f}",
            ]
        )
    return report.table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="short loads, one round, no documents")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=SUBJECTS, action="append", help="default: all")
    options = parser.parse_args()
    text, measured = [report.origin()], []
    for name in options.engine or SUBJECTS:
        subject = SUBJECTS[name]
        loads, rounds = (subject.quick, 1) if options.quick else (subject.full, options.rounds)
        results = measure(subject, loads, rounds)
        measured += results
        text += [f"### {subject.title}", added(results)]
        text += [report.latency_table(results, DIRECT), report.cpu_table(results, ROLES)]
        if not options.quick:
            image = plots.draw(f"overhead_{name}", subject.title, results, ROLES[:-1])
            text.append(f"![{subject.title}](images/{image.name})")
    report.keep("overhead", measured)
    print("\n\n".join(text))
    if not options.quick:
        report.write("overhead", "\n\n".join(text))


if __name__ == "__main__":
    main()

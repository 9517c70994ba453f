"""Rayscend beside `ray.serve.llm`: the same vLLM, model and load, turn by turn in one run.

    python -m scripts.benchmark.compare_serve_llm [--quick]

It needs requirements/bench.txt, and memory for three engines (10 GB). It rewrites its section of
docs/measurements.md and its picture (with --quick: prints the tables only), and writes
build/benchmark/serve_llm.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cluster.default_model import NAME, ensure_default_model
from cluster.environment import engine_value
from cluster.ports import free_port
from scripts.benchmark import plots, report
from scripts.benchmark.load import Load
from scripts.benchmark.measure import Target, compare
from scripts.benchmark.server import (
    OTHER,
    Roles,
    Server,
    command_of,
    rayscend,
    rayscend_urls,
)

BARE = "vLLM alone"
FULL = (Load(3, 32, 1), Load(32, 16, 16), Load(128, 16, 64))
QUICK = (Load(1, 8, 1), Load(16, 8, 16))
ROLES = ("gateway", "HAProxy", "engine", "client", OTHER)

# In its default mode the ingress replicas and Serve's Python proxy do what our gateway does.
SERVE_LLM_ROLES: Roles = {
    "gateway": lambda process: any(
        name in command_of(process) for name in ("OpenAiIngress", "LLMRouter", "ProxyActor")
    ),
    "HAProxy": lambda process: "haproxy" in process.name(),
    "engine": lambda process: "LLMServer" in command_of(process) or "VLLM" in command_of(process),
}
MODES = {
    "ray.serve.llm": {},
    "ray.serve.llm, direct": {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    },
}


@contextmanager
def serving(threads: int) -> Iterator[list[Target]]:
    """Start all three, one after another; the first target is the engine of ours, alone."""
    folder = str(ensure_default_model(print))
    vllm = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_NO_USAGE_STATS")
    environment = {name: engine_value(name) for name in vllm} | {"HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        ours = stack.enter_context(
            rayscend(
                f"model={folder}",
                f"served_model_name={NAME}",
                f'env={{"OMP_NUM_THREADS": "{threads}"}}',
            )
        )
        engine, gateway = rayscend_urls(ours)
        targets = [
            Target(BARE, engine, NAME, ours.cpu_seconds),
            Target("Rayscend", gateway, NAME, ours.cpu_seconds),
        ]
        for mode, settings in MODES.items():
            program = [sys.executable, "-m", "scripts.benchmark.serve_llm_server"]
            program += [folder, NAME, str(free_port()), str(threads)]
            theirs = stack.enter_context(Server(program, SERVE_LLM_ROLES, environment | settings))
            url = theirs.hears(r"ready at (http\S+) ")
            targets.append(Target(mode, url, NAME, theirs.cpu_seconds))
        yield targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="short loads, one round, no documents")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    loads, rounds = (QUICK, 1) if options.quick else (FULL, options.rounds)
    with serving(threads=os.cpu_count() or 1) as targets:
        results = compare(targets, loads, rounds)
    report.keep("serve_llm", results)
    text = [report.origin(), report.latency_table(results, BARE), report.cpu_table(results, ROLES)]
    if not options.quick:
        image = plots.draw("serve_llm", "Rayscend and ray.serve.llm", results, ROLES[:-1])
        text.append(f"![Rayscend and ray.serve.llm](images/{image.name})")
        report.write("serve.llm", "\n\n".join(text))
    print("\n\n".join(text))


if __name__ == "__main__":
    main()

"""The same loads on several targets, one after another again and again, and what came of it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from scripts.benchmark.load import Load
from scripts.benchmark.server import ROOT, CpuSeconds

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Target:
    """Where a load goes, and the CPU seconds so far of what serves it, by role."""

    name: str
    url: str
    model: str
    cpu_seconds: Callable[[], CpuSeconds]


@dataclass
class Result:
    """What one target did with one load in all rounds.

    Times are in milliseconds by percentile, over the requests of all rounds; rates have one value
    for each round; `cpu_s` is by role, `tokens` and `requests` are what it was spent on.
    """

    target: str
    load: str
    ttft_ms: dict[int, float] = field(default_factory=dict)
    itl_ms: dict[int, float] = field(default_factory=dict)
    tokens_per_s: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    requests: int = 0

    def cpu_ms_per_request(self, role: str) -> float:
        return 1000 * self.cpu_s.get(role, 0) / self.requests

    def cpu_s_per_1000_tokens(self, role: str) -> float:
        return 1000 * self.cpu_s.get(role, 0) / self.tokens


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """Nearest-rank percentiles of `values`, which may be few but not none."""
    ordered = sorted(values)
    return {p: ordered[max(0, -(-p * len(ordered) // 100) - 1)] for p in PERCENTILES}


def compare(targets: Sequence[Target], loads: Sequence[Load], rounds: int) -> list[Result]:
    """Measure every target under every load, interleaved: A B A B; a first turn warms up.

    One turn of each target follows the other closely, so what else the machine does meanwhile
    meets them all alike.
    """
    return [result for load in loads for result in _under(load, targets, rounds)]


def ratios(result: Result, base: Result) -> list[float]:
    """Throughput against `base`, round by round."""
    pairs = zip(result.tokens_per_s, base.tokens_per_s, strict=True)
    return [ours / theirs for ours, theirs in pairs]


def name_of(load: Load) -> str:
    if load.rate:
        return f"{load.rate:g} requests/s"
    return f"{load.streams} stream{'s' * (load.streams > 1)}"


def _under(load: Load, targets: Sequence[Target], rounds: int) -> list[Result]:
    results = {target.name: Result(target.name, name_of(load)) for target in targets}
    samples: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
    warm = Load(load.streams, min(load.max_tokens, 8), load.streams)
    for turn in range(rounds + 1):
        for number, target in enumerate(targets):
            before = target.cpu_seconds()
            seed = hash((turn, number, load))
            outcome = _load(target, load if turn else warm, seed)
            if not turn:
                continue
            _add(results[target.name], outcome, target.cpu_seconds(), before)
            samples[target.name] += outcome["records"]
            print(_line(results[target.name]), flush=True)
    for name, result in results.items():
        result.ttft_ms = percentiles([1000 * record["ttft"] for record in samples[name]])
        gaps = chain.from_iterable(record["gaps"] for record in samples[name])
        result.itl_ms = percentiles([1000 * gap for gap in gaps])
    return list(results.values())


def _load(target: Target, load: Load, seed: int) -> dict[str, Any]:
    """Run the load generator in a process of its own, so that its work is not counted as ours."""
    command = [sys.executable, "-m", "scripts.benchmark.load", "--url", target.url]
    command += ["--model", target.model, "--seed", str(seed)]
    for option, value in vars(load).items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        # Not through a pipe: results of 64 KiB and more arrived cut there.
        subprocess.run([*command, "--out", result.name], cwd=ROOT, check=True)
        outcome: dict[str, Any] = json.load(result)
    failures = Counter(record["failure"] for record in outcome["records"] if record["failure"])
    if failures:
        sys.exit(f"{target.name}, {name_of(load)}: requests failed: {dict(failures)}")
    return outcome


def _add(result: Result, outcome: dict[str, Any], after: CpuSeconds, before: CpuSeconds) -> None:
    requests = len(outcome["records"])
    tokens = sum(record["tokens"] for record in outcome["records"])
    result.requests += requests
    result.tokens += tokens
    result.requests_per_s.append(requests / outcome["wall_s"])
    result.tokens_per_s.append(tokens / outcome["wall_s"])
    used = {role: seconds - before.get(role, 0) for role, seconds in after.items()}
    for role, seconds in (used | {"client": outcome["cpu_s"]}).items():
        result.cpu_s[role] = result.cpu_s.get(role, 0) + seconds


def _line(result: Result) -> str:
    rate = statistics.median(result.tokens_per_s)
    return f"{result.load:>16}  {result.target:<24} {rate:8.0f} tokens/s"

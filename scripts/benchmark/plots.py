"""Pictures of the measurements, small enough to be kept beside the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from scripts.benchmark.measure import Result
from scripts.benchmark.server import ROOT

mpl.use("Agg")
from matplotlib import pyplot as plt

IMAGES = ROOT / "docs/images"


def draw(name: str, title: str, results: Sequence[Result], roles: Sequence[str]) -> Path:
    """Draw TTFT, ITL (bars: P50, whiskers: P99) and CPU by role; return the PNG's path."""
    figure, (ttft, itl, cpu) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title)
    _latency(ttft, "TTFT, ms", results, "ttft_ms")
    _latency(itl, "ITL, ms", results, "itl_ms")
    _cpu(cpu, results, roles)
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.png"
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return path


def _latency(axes: Any, title: str, results: Sequence[Result], field: str) -> None:
    loads, targets = _names(results)
    width = 0.8 / len(targets)
    for number, target in enumerate(targets):
        own = [getattr(result, field) for result in results if result.target == target]
        middle = [percentile[50] for percentile in own]
        above = [percentile[99] - percentile[50] for percentile in own]
        places = [place + number * width for place in range(len(loads))]
        axes.bar(places, middle, width, yerr=([0.0] * len(own), above), label=target, capsize=2)
    _label(axes, title, loads, 0.4 - width / 2)


def _cpu(axes: Any, results: Sequence[Result], roles: Sequence[str]) -> None:
    """Of every target but the first, which is the engine alone."""
    loads, targets = _names(results)
    shown = targets[1:]
    width = 0.8 / len(shown)
    colours = {role: f"C{number}" for number, role in enumerate(roles)}
    for number, target in enumerate(shown):
        own = [result for result in results if result.target == target]
        places = [place + number * width for place in range(len(loads))]
        below = [0.0] * len(own)
        for role in roles:
            heights = [result.cpu_s_per_1000_tokens(role) for result in own]
            label = role if not number else None
            axes.bar(places, heights, width, bottom=below, color=colours[role], label=label)
            below = [low + height for low, height in zip(below, heights, strict=True)]
    _label(axes, "CPU s per 1000 tokens", loads, 0.4 - width / 2)


def _label(axes: Any, title: str, loads: Sequence[str], middle: float) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.set_xticks([place + middle for place in range(len(loads))], loads, fontsize=8)
    axes.legend(fontsize=7)


def _names(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    loads = dict.fromkeys(result.load for result in results)
    return list(loads), list(dict.fromkeys(result.target for result in results))

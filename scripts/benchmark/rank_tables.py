"""Time and memory of rank tables from 100 to 10 000 devices, as a Markdown table.

python scripts/benchmark/rank_tables.py [--repeat 5] [--devices 100 1000 10000]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from ranktables import Consumer, Node, build, check, parse, read, render, write

_DEVICES_A_SERVER = 8


def _nodes(devices: int) -> list[Node]:
    def address(network: int, number: int) -> str:
        return f"{network}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    return [
        Node(
            address(10, index + 1),
            {
                device: address(11, index * _DEVICES_A_SERVER + device + 1)
                for device in range(min(_DEVICES_A_SERVER, devices - index * _DEVICES_A_SERVER))
            },
            container_ip=address(10, index + 1),
        )
        for index in range(-(-devices // _DEVICES_A_SERVER))
    ]


def _measured(step: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Milliseconds of the fastest run, and the peak of memory of one more run in MiB."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds) * 1000, peak / 2**20


def _row(devices: int, repeat: int, folder: Path) -> str:
    nodes = _nodes(devices)
    table = build(nodes)
    text, path = render(table), folder / "table.json"

    def everything() -> None:
        found, findings = read(path)
        if findings or check(found, Consumer.HCCL):
            raise SystemExit("the benchmark's own table has findings")
        write(found, path)

    write(table, path)
    steps: list[Callable[[], object]] = [
        lambda: build(nodes),
        lambda: parse(text),
        lambda: check(table, Consumer.HCCL),
        lambda: write(table, path),
        everything,
    ]
    measured = [_measured(step, repeat) for step in steps]
    times = " | ".join(f"{milliseconds:.1f}" for milliseconds, _ in measured)
    return f"| {devices} | {len(text) / 1000:.0f} | {times} | {measured[-1][1]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the fastest counts")
    parser.add_argument("--devices", type=int, nargs="+", default=[100, 300, 1000, 3000, 10000])
    args = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores.\n")
    print(
        "| devices | file, kB | build, ms | parse, ms | check, ms | write, ms "
        "| read + check + write, ms | peak of that, MiB |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for devices in args.devices:
            print(_row(devices, args.repeat, Path(folder)), flush=True)


if __name__ == "__main__":
    main()

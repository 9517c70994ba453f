"""Reads what `npu-smi info` prints, for Atlas A2, A3 and 300I Duo (310P), drivers 24.1 to 26.0.

Run it with LC_ALL=C. Every parser raises ConfigError where npu-smi could not talk to the driver,
or printed something that is not known. Layouts differ: A3 and 310P print a second id beside the
chip's, 310P has no HBM column, and driver 26 widens the table and adds the process id inside a
container.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from cluster.devices.chips import Board, Chip, MapRow, Process, Report, Topology, Usage
from cluster.errors import ConfigError

T = TypeVar("T")

_REFUSALS = {
    "-8005": (
        "the driver's files are not mounted here, or this user may not open the devices",
        "mount /usr/local/Ascend/driver, /usr/local/dcmi and the device files, or run as a member "
        "of HwHiAiUser",
    ),
    "-8020": (
        "a device is bound to another container",
        "stop that container, or give this one other devices",
    ),
}
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_MAP_COLUMNS = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID")


def _reads(command: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Make a parser of this command's output raise one error for all that it cannot read."""

    def decorate(parse: Callable[[str], T]) -> Callable[[str], T]:
        @functools.wraps(parse)
        def read(text: str) -> T:
            try:
                return parse(text)
            except (ValueError, KeyError, IndexError) as error:
                raise _unreadable(command, text) from error

        return read

    return decorate


@_reads("npu-smi info")
def parse_info(text: str) -> Report:
    """Read `npu-smi info`."""
    chips: dict[tuple[int, int], Chip] = {}
    first: list[str] | None = None
    in_processes = False
    for cells in _rows(text):
        if "Process id" in cells[1:2]:
            in_processes = True
        elif not re.match(r"\d+(\s|$)", cells[0]):
            continue
        elif in_processes:
            _add_process(chips, cells)
        elif first is None:
            first = cells
        else:
            chip = _chip(first, cells)
            chips[chip.npu_id, chip.chip_id] = chip
            first = None
    version = re.search(r"npu-smi (\S+)\s+Version: (\S+)", text)
    if not chips or not version:
        raise ValueError("no chips")
    return Report(version[2], tuple(chips.values()))


@_reads("npu-smi info -l")
def parse_list(text: str) -> dict[int, int]:
    """Read `npu-smi info -l`: the number of chips by NPU id."""
    fields = list(_fields(text))
    npus = [int(value) for key, value in fields if key == "NPU ID"]
    counts = [int(value) for key, value in fields if key == "Chip Count"]
    if ("Total Count", str(len(npus))) not in fields:
        raise ValueError("cut short")
    return dict(zip(npus, counts, strict=True))


@_reads("npu-smi info -m")
def parse_map(text: str) -> tuple[MapRow, ...]:
    """Read `npu-smi info -m`. Chips without a logical id (the board's MCU) are left out."""
    # The driver's library may have written lines of its own before the table.
    _, found, table = text.partition("NPU ID")
    header, *lines = (found + table).strip().splitlines()
    columns = [column for column in _MAP_COLUMNS if column in header]
    if columns[:2] != ["NPU ID", "Chip ID"]:
        raise ValueError("no header")
    rows = []
    for line in lines:
        values = line.split(None, len(columns))
        if len(values) <= len(columns):
            continue
        row = dict(zip(columns, values, strict=False))
        npu = row["NPU ID"]
        logical = row.get("Chip Logic ID", npu)  # Ascend 950 has one chip a card and no such column
        if not (npu.isdigit() and logical.isdigit()):
            continue
        device = row.get("Chip Phy-ID", "")
        rows.append(
            MapRow(int(npu), int(row["Chip ID"]), int(logical), _number(device), values[-1].strip())
        )
    return tuple(rows)


@_reads("npu-smi info -t usages")
def parse_usages(text: str) -> tuple[Usage, ...]:
    """Read `npu-smi info -t usages -i N`, one entry a chip: a chip's id ends its block."""
    block: dict[str, str] = {}
    usages = []
    for key, value in _fields(text):
        block[key] = value
        if key == "Chip ID":
            usages.append(_usage(block))
    if not usages:
        raise ValueError("no chip")
    return tuple(usages)


@_reads("npu-smi info -t board")
def parse_board(text: str) -> Board:
    """Read `npu-smi info -t board`."""
    fields = dict(_fields(text))
    return Board(
        int(fields["NPU ID"]),
        fields.get("Software Version", ""),
        fields.get("Firmware Version", ""),
        _number(fields.get("Faulty Chip Count", "")) or 0,
        fields.get("Product Name", ""),
        fields.get("Serial Number", ""),
        fields.get("Chip Name", ""),
        fields.get("NPU Name", ""),
    )


@_reads("npu-smi info -t topo")
def parse_topology(text: str) -> Topology:
    """Read `npu-smi info -t topo`."""
    name = re.compile(r"(?:NPU|Phy-ID)(\d+)")
    ids: list[int] = []
    links: dict[tuple[int, int], str] = {}
    cores: dict[int, tuple[int, ...]] = {}
    for line in text.split("Legend")[0].splitlines():
        words = line.split()
        if len(found := name.findall(line)) > 1 or (found and not ids):
            ids = [int(number) for number in found]
        elif found:
            row, values = int(found[0]), words[1:]
            links |= {(row, other): link for other, link in zip(ids, values, strict=False)}
            if len(values) > len(ids):
                cores[row] = parse_cores(values[len(ids)])
    if not links:
        raise ValueError("no matrix")
    return Topology({pair: link for pair, link in links.items() if link != "X"}, cores)


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores of a list like `0-23,48-71`, as the kernel and npu-smi write it."""
    spans = [part.partition("-") for part in text.split(",")]
    return tuple(core for low, _, high in spans for core in range(int(low), int(high or low) + 1))


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.lstrip().startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _chip(first: list[str], second: list[str]) -> Chip:
    npu, name = first[0].split(None, 1)
    ids = second[0].split()
    pairs = _PAIR.findall(second[2])
    used, total = pairs[-1] if pairs else (None, None)
    return Chip(
        int(npu),
        int(ids[0]),
        _number(ids[1]) if len(ids) > 1 else None,
        name,
        first[1],
        second[1],
        _number(second[2].split()[0]),
        int(used) if used else None,
        int(total) if total else None,
    )


def _add_process(chips: dict[tuple[int, int], Chip], cells: list[str]) -> None:
    npu, chip = map(int, cells[0].split())
    container = _number(cells[4]) if len(cells) > 4 else None
    process = Process(int(cells[1]), cells[2], _number(cells[3]) or 0, container)
    owner = chips[npu, chip]
    chips[npu, chip] = replace(owner, processes=(*owner.processes, process))


def _usage(block: dict[str, str]) -> Usage:
    kind = "HBM" if int(block.get("HBM Capacity(MB)", 0)) else "DDR"
    return Usage(
        int(block["NPU ID"]),
        int(block["Chip ID"]),
        int(block[f"{kind} Capacity(MB)"]),
        int(block[f"{kind} Usage Rate(%)"]),
        int(block["Aicore Usage Rate(%)"]),
    )


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _unreadable(command: str, text: str) -> ConfigError:
    for code, (why, remedy) in _REFUSALS.items():
        if f"ret is {code}" in text:
            return ConfigError(f"{command}: {text.strip().splitlines()[-1]}", why, remedy)
    said = text.strip()[:200] or "nothing"
    return ConfigError(
        f"{command} printed: {said}",
        "that is no output of npu-smi that Rayscend knows",
        "run it by hand; if it works, report its output and the driver's version",
    )

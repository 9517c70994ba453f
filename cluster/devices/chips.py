"""What npu-smi tells of chips, as data. Memory is in MB throughout (65536 is a 64 GB device)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Generation(StrEnum):
    A2 = "A2"
    A3 = "A3"
    P310 = "310P"


@dataclass(frozen=True)
class Process:
    """A process on a chip. `name` is often cut or empty; `container_pid` is known to driver 26."""

    pid: int
    name: str
    memory_mb: int
    container_pid: int | None = None


@dataclass(frozen=True)
class Chip:
    """One chip (on A3: one die): what an engine's rank runs on.

    `device_id` is the id beside the chip's (A3 and 310P; None on A2). Memory is HBM, on 310P
    LPDDR. A figure that npu-smi gives as NA is None.
    """

    npu_id: int
    chip_id: int
    device_id: int | None
    name: str
    health: str
    bus_id: str
    aicore_percent: int | None
    memory_used_mb: int | None
    memory_total_mb: int | None
    processes: tuple[Process, ...] = ()

    @property
    def generation(self) -> Generation | None:
        """The generation, by the name that npu-smi prints; None for other chips."""
        if re.fullmatch(r"910B\d\S*", self.name):  # a bare 910B is of the generation before A2
            return Generation.A2
        if self.name == "Ascend910":
            return Generation.A3
        return Generation.P310 if self.name.startswith("310P") else None


@dataclass(frozen=True)
class Report:
    """`npu-smi info`: the driver's version (inside a container: the host's) and all chips."""

    driver: str
    chips: tuple[Chip, ...]


@dataclass(frozen=True)
class MapRow:
    """A line of `npu-smi info -m`. `device_id` is the physical id (A3 only)."""

    npu_id: int
    chip_id: int
    logical_id: int
    device_id: int | None
    name: str


@dataclass(frozen=True)
class Usage:
    """`npu-smi info -t usages -i N`: one chip."""

    npu_id: int
    chip_id: int
    memory_total_mb: int
    memory_percent: int
    aicore_percent: int


@dataclass(frozen=True)
class Board:
    """`npu-smi info -t board -i N [-c M]`. Without -c the chip's fields are empty."""

    npu_id: int
    software_version: str
    firmware_version: str
    faulty_chips: int
    product: str
    serial_number: str
    chip_name: str
    npu_name: str

    @property
    def soc_name(self) -> str:
        """The chip as CANN names it: Ascend910B3, Ascend910_9382 (A3), Ascend310P3."""
        if self.npu_name:
            return f"{self.chip_name}_{self.npu_name}"
        return f"Ascend{self.chip_name}" if self.chip_name else ""


@dataclass(frozen=True)
class Topology:
    """`npu-smi info -t topo`: the link between two ids (HCCS, SIO, PIX, …), and each one's cores.

    Ids are NPU ids on A2 and physical ids on A3, which prints no cores.
    """

    links: dict[tuple[int, int], str]
    cores: dict[int, tuple[int, ...]]

"""Which NPUs this machine or container has, by its device files and by npu-smi where it is.

The device files are the truth about what a process can open; npu-smi adds names, health, memory.
Ray's own fallback counts `/dev/davinci?`, one character, and so loses every id from 10 up.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.devices.chips import Chip, Report
from cluster.devices.masks import VISIBLE, Mask, Numbering, read_mask
from cluster.devices.npu_smi import parse_info, parse_map
from cluster.errors import ConfigError
from cluster.findings import Finding, Level

Run = Callable[[Sequence[str]], str]

# An idle device holds 2.8 to 3.4 GB for the runtime.
IDLE_BELOW_MB = 4096
COMPANIONS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_RUNTIME_LINK = "https://github.com/gpustack/gpustack/issues/1432"
_MASK_LINK = "https://github.com/agentscope-ai/Trinity-RFT/pull/618"
_LOGICAL_LINK = "https://github.com/gpustack/gpustack/issues/3352"


@dataclass(frozen=True)
class Device:
    """One NPU: its ids (see `masks.py`) and what npu-smi says of it, if npu-smi could be asked."""

    logical_id: int
    physical_id: int
    chip: Chip | None = None


@dataclass(frozen=True)
class Inventory:
    """The devices here by ascending logical id, those of them in the mask, and what is wrong."""

    devices: tuple[Device, ...]
    mask: Mask
    driver: str | None
    findings: tuple[Finding, ...]

    @property
    def numbering(self) -> Numbering:
        return Numbering(tuple(device.physical_id for device in self.devices), self.mask.ids)

    @property
    def visible(self) -> tuple[Device, ...]:
        return tuple(self.devices[logical] for logical in self.mask.ids)


def run_tool(command: Sequence[str]) -> str:
    """Run a vendor's tool in the one language that can be parsed; what it prints, errors included.

    Raises:
        OSError: there is no such tool.
        subprocess.TimeoutExpired: it hangs, as npu-smi does on a device that is stuck.
    """
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"LC_ALL": "C"},
        timeout=30,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def device_files(root: Path = Path("/")) -> tuple[int, ...]:
    """The physical ids of all /dev/davinciN under `root`, ascending."""
    names = (path.name for path in (root / "dev").glob("davinci*"))
    return tuple(sorted(int(n[1]) for name in names if (n := re.fullmatch(r"davinci(\d+)", name))))


def detect(mask: str | None = None, root: Path = Path("/"), run: Run = run_tool) -> Inventory:
    """Find the devices under `root` and judge them; `mask` is $ASCEND_RT_VISIBLE_DEVICES.

    A machine without NPUs gives an empty inventory without findings. Never raises.
    """
    files = device_files(root)
    report, findings = _ask(run, bool(files))
    devices = _join(files, report, _logical_ids(run) if report else {})
    seen = read_mask(mask, len(devices))
    if devices:
        findings += [
            *_check_files(files, report, root),
            *_check_mask(mask, seen),
            *(found for logical in seen.ids for found in _check_device(devices[logical])),
        ]
    return Inventory(devices, seen, report.driver if report else None, tuple(findings))


def _ask(run: Run, expected: bool) -> tuple[Report | None, list[Finding]]:
    try:
        return parse_info(run(["npu-smi", "info"])), []
    except ConfigError as error:
        return None, [Finding.of("device-npu-smi", error)]
    except (OSError, subprocess.TimeoutExpired) as error:
        if not expected:
            return None, []
        return None, [
            Finding(
                "device-npu-smi",
                Level.WARNING,
                f"npu-smi info: {error}",
                "without it health, memory and users of the devices are not known, and "
                "vllm-mindspore cannot bind cores",
                "mount /usr/local/bin/npu-smi, /usr/local/dcmi and /usr/local/Ascend/driver",
            )
        ]


def _logical_ids(run: Run) -> dict[tuple[int, int], int]:
    try:
        rows = parse_map(run(["npu-smi", "info", "-m"]))
    except (ConfigError, OSError, subprocess.TimeoutExpired):
        return {}
    return {(row.npu_id, row.chip_id): row.logical_id for row in rows}


def _join(
    files: tuple[int, ...], report: Report | None, logical: dict[tuple[int, int], int]
) -> tuple[Device, ...]:
    """Pair chips with device files.

    Logical ids follow the ascending device files, so where there are as many chips as files the
    order decides. A2 prints no physical id; where the counts differ (a container whose npu-smi
    shows the whole host) its NPU id, equal on a host without empty slots, has to do.
    """
    if report is None:
        return tuple(Device(position, physical) for position, physical in enumerate(files))
    chips = sorted(
        report.chips,
        key=lambda chip: logical.get((chip.npu_id, chip.chip_id), len(logical) + chip.npu_id),
    )
    if len(files) == len(chips):
        pairs = zip(files, chips, strict=True)
        return tuple(Device(n, physical, chip) for n, (physical, chip) in enumerate(pairs))
    named = {chip.npu_id if chip.device_id is None else chip.device_id: chip for chip in chips}
    ids = files or tuple(sorted(named))
    return tuple(Device(n, physical, named.get(physical)) for n, physical in enumerate(ids))


def _check_files(files: tuple[int, ...], report: Report | None, root: Path) -> list[Finding]:
    findings = []
    missing = [name for name in COMPANIONS if not (root / "dev" / name).exists()]
    if missing or not files:
        lost = ", ".join(f"/dev/{name}" for name in missing or ["davinciN"])
        findings.append(
            Finding(
                "device-files",
                Level.ERROR,
                f"{lost} not found",
                "a process opens these beside the device itself",
                "start the container with ascend-docker-runtime, or with --device for each",
                _RUNTIME_LINK,
            )
        )
    if report and files and len(files) != len(report.chips):
        findings.append(
            Finding(
                "device-count",
                Level.WARNING,
                f"npu-smi shows {len(report.chips)} chips, /dev has {len(files)} devices",
                "only those in /dev can be used; logical ids count from 0 among them",
                "plan with the devices in /dev",
            )
        )
    npus = sorted({chip.npu_id for chip in report.chips}) if report else []
    if npus and npus != list(range(len(npus))) and report:
        findings.append(
            Finding(
                "device-sparse",
                Level.NOTE,
                f"NPU ids here are {', '.join(map(str, npus))}",
                f"a slot is empty, or this is a container: {VISIBLE} counts the devices from 0 up "
                "and does not take NPU ids",
                f"use logical ids, 0 to {len(report.chips) - 1}",
                _LOGICAL_LINK,
            )
        )
    return findings


def _check_mask(value: str | None, mask: Mask) -> list[Finding]:
    if not mask.ignored:
        return []
    left = ",".join(map(str, mask.ids)) or "no device"
    return [
        Finding(
            "device-mask",
            Level.ERROR,
            f'{VISIBLE}="{value}" leaves {left}',
            f"{mask.why}; CANN ignores that entry and all after it",
            "list logical ids in ascending order, separated by commas only",
            _MASK_LINK,
        )
    ]


def _check_device(device: Device) -> list[Finding]:
    chip = device.chip
    if chip is None:
        return []
    name = f"NPU {chip.npu_id} chip {chip.chip_id} (logical id {device.logical_id})"
    findings = []
    if chip.health != "OK":
        findings.append(
            Finding(
                "device-health",
                Level.WARNING if chip.health == "Warning" else Level.ERROR,
                f"{name}: health {chip.health}",
                "an engine that uses it fails to start, or later",
                f"npu-smi info -t health -i {chip.npu_id} -c {chip.chip_id} tells the fault; leave "
                "the device out of the mask until it is repaired",
            )
        )
    used = chip.memory_used_mb or 0
    if chip.processes or used >= IDLE_BELOW_MB:
        users = ", ".join(f"{one.name or 'process'} {one.pid}" for one in chip.processes)
        findings.append(
            Finding(
                "device-in-use",
                Level.WARNING,
                f"{name}: {used} of {chip.memory_total_mb} MB in use by "
                f"{users or 'a process that is not shown (of another container, or a residue)'}",
                "an engine takes a share of the whole memory and fails if less is free",
                "stop it, or leave the device out of the mask",
            )
        )
    return findings

"""Devices are found by their files, with npu-smi and without, and what is wrong with them is said.

A machine is a folder with device files and an npu-smi that prints a fixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from cluster.devices.detect import COMPANIONS, detect, device_files, run_tool
from cluster.devices.software import installed_software

FIXTURES = Path(__file__).parent / "fixtures" / "npu"


def machine(root: Path, ids: Iterable[int], companions: Iterable[str] = COMPANIONS) -> Path:
    (root / "dev").mkdir(parents=True)
    for name in (*companions, *(f"davinci{number}" for number in ids)):
        (root / "dev" / name).touch()
    return root


class NpuSmi:
    """Prints a fixture, or says what `says` holds."""

    def __init__(self, fixture: str = "", says: str = "") -> None:
        self.fixture, self.says = fixture, says

    def __call__(self, command: Sequence[str]) -> str:
        query = "map" if "-m" in command else "info"
        return self.says or (FIXTURES / self.fixture / f"{query}.txt").read_text("utf-8")


def no_tool(command: Sequence[str]) -> str:
    raise FileNotFoundError(command[0])


def test_ids_from_10_up_count_and_the_manager_does_not(tmp_path: Path) -> None:
    root = machine(tmp_path, range(16), (*COMPANIONS, "davinci_manager_docker"))
    assert device_files(root) == tuple(range(16))


def test_a_machine_without_npus_is_in_good_order(tmp_path: Path) -> None:
    inventory = detect(root=tmp_path, run=no_tool)
    assert (inventory.devices, inventory.findings) == ((), ())


def test_devices_are_known_without_npu_smi_too(tmp_path: Path) -> None:
    inventory = detect(root=machine(tmp_path, [10, 9, 14]), run=no_tool)
    assert [(d.logical_id, d.physical_id) for d in inventory.devices] == [(0, 9), (1, 10), (2, 14)]
    assert [finding.code for finding in inventory.findings] == ["device-npu-smi"]


# fixture, device files, mask: physical ids by logical id, codes of what is found
MACHINES = {
    "a2_64gb": (range(8), None, range(8), []),
    "a2_32gb": (range(8), "4,5,6,7", range(8), []),
    "a3_16_dies": (range(16), "0,1,2,3", range(16), []),
    "310p_duo": (range(4), None, range(4), ["device-sparse"]),
    "missing_slot": ([0, 1, 2, 4, 5, 6, 7], None, [0, 1, 2, 4, 5, 6, 7], ["device-sparse"]),
    "container": ([10, 12], "0", [10, 12], ["device-sparse"]),
    "sick_card": (range(8), None, range(8), ["device-health", "device-health"]),
    "card_in_use": (range(8), None, range(8), ["device-in-use"] * 3),
}


@pytest.mark.parametrize("fixture", MACHINES)
def test_every_machine_is_found_and_judged(tmp_path: Path, fixture: str) -> None:
    files, mask, physical, codes = MACHINES[fixture]
    inventory = detect(mask, machine(tmp_path, files), NpuSmi(fixture))
    assert [device.physical_id for device in inventory.devices] == list(physical)
    assert [device.logical_id for device in inventory.devices] == list(range(len(files)))
    assert all(device.chip for device in inventory.devices)
    assert [finding.code for finding in inventory.findings] == codes


def test_only_devices_in_the_mask_are_judged(tmp_path: Path) -> None:
    inventory = detect("0,1,2,3,4,7", machine(tmp_path, range(8)), NpuSmi("sick_card"))
    assert inventory.findings == ()
    assert [device.logical_id for device in inventory.visible] == [0, 1, 2, 3, 4, 7]


def test_memory_that_no_shown_process_holds_is_called_a_residue(tmp_path: Path) -> None:
    inventory = detect("3", machine(tmp_path, range(8)), NpuSmi("card_in_use"))
    assert "residue" in inventory.findings[0].saw


def test_a_chip_of_a_missing_slot_keeps_its_file_and_gets_the_next_logical_id(
    tmp_path: Path,
) -> None:
    files = [0, 1, 2, 4, 5, 6, 7]
    inventory = detect(None, machine(tmp_path, files), NpuSmi("missing_slot"))
    chips = [(d.logical_id, d.physical_id, d.chip.npu_id) for d in inventory.devices if d.chip]
    assert chips[3] == (3, 4, 4)


def test_a_container_whose_npu_smi_shows_the_host_has_its_own_devices_only(tmp_path: Path) -> None:
    inventory = detect(None, machine(tmp_path, [5, 6]), NpuSmi("sick_card"))
    health = [(d.logical_id, d.physical_id, d.chip.health) for d in inventory.devices if d.chip]
    assert health == [(0, 5, "Alarm"), (1, 6, "Warning")]
    assert "device-count" in [finding.code for finding in inventory.findings]


FAULTS = {
    "descending mask": ("1,0", COMPANIONS, NpuSmi("a2_64gb"), "device-mask"),
    "host ids as mask": ("8,9", COMPANIONS, NpuSmi("a2_64gb"), "device-mask"),
    "companions not mounted": (None, COMPANIONS[:1], NpuSmi("a2_64gb"), "device-files"),
    "driver not mounted": (
        None,
        COMPANIONS,
        NpuSmi(says="dcmi module initialize failed. ret is -8005"),
        "device-npu-smi",
    ),
    "used by another container": (
        None,
        COMPANIONS,
        NpuSmi(says="dcmi model initialized failed, because the device is used. ret is -8020"),
        "device-npu-smi",
    ),
}


@pytest.mark.parametrize(("mask", "companions", "run", "code"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(
    tmp_path: Path, mask: str | None, companions: tuple[str, ...], run: NpuSmi, code: str
) -> None:
    inventory = detect(mask, machine(tmp_path, range(8), companions), run)
    assert [finding.code for finding in inventory.findings] == [code]
    assert all(finding.why and finding.remedy for finding in inventory.findings)


def test_npu_smi_is_run_in_english_and_its_errors_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text('#!/bin/sh\necho "$LC_ALL $*"\necho "ret is -8005" >&2\nexit 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert run_tool(["npu-smi", "info", "-m"]) == "C info -m\nret is -8005\n"


def test_versions_are_read_from_where_the_driver_was_installed(tmp_path: Path) -> None:
    files = {
        "etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/Ascend\n",
        "opt/Ascend/driver/version.info": "# driver\nVersion=25.3.RC1\nascendhal_version=7\n",
        "opt/Ascend/firmware/version.info": "Version=7.8.0.2.212\n",
        "opt/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": (
            "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\ninnerversion=V100R001C23\n"
        ),
        "home/cann/aarch64-linux/ascend_toolkit_install.info": "version=8.5.0\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    expected = {"driver": "25.3.RC1", "firmware": "7.8.0.2.212", "cann": "8.3.RC1"}
    assert installed_software(tmp_path) == expected
    assert installed_software(tmp_path, tmp_path / "home/cann")["cann"] == "8.5.0"
    assert installed_software(tmp_path / "nowhere") == {}

"""Every layout that npu-smi prints is read alike; what is no layout is told, not half read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.devices.chips import Generation, Process
from cluster.devices.npu_smi import (
    parse_board,
    parse_cores,
    parse_info,
    parse_list,
    parse_map,
    parse_topology,
    parse_usages,
)
from cluster.errors import ConfigError

FIXTURES = Path(__file__).parent / "fixtures" / "npu"


def text(machine: str, query: str) -> str:
    return (FIXTURES / machine / f"{query}.txt").read_text("utf-8")


# machine: driver, NPU ids, chips a card, generation, device ids, memory in MB of the first chip
MACHINES = {
    "a2_64gb": ("25.3.rc1", range(8), 1, "A2", [None] * 8, (2850, 65536)),
    "a2_32gb": ("25.5.2", range(8), 1, "A2", [None] * 8, (2850, 32768)),
    "a3_16_dies": ("25.5.0", range(8), 2, "A3", list(range(16)), (3100, 65536)),
    "310p_duo": ("24.1.1", (0, 32), 2, "310P", [0, 1, 2, 3], (1700, 44278)),
    "missing_slot": ("25.3.rc1", (0, 1, 2, 4, 5, 6, 7), 1, "A2", [None] * 7, (2850, 65536)),
    "container": ("26.0.rc2", (10, 12), 1, "A2", [None] * 2, (3402, 65536)),
    "sick_card": ("25.3.rc1", range(8), 1, "A2", [None] * 8, (2850, 65536)),
    "card_in_use": ("25.3.rc1", range(8), 1, "A2", [None] * 8, (2828, 32768)),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_info_of_every_machine(machine: str) -> None:
    driver, npus, per_card, generation, device_ids, memory = MACHINES[machine]
    report = parse_info(text(machine, "info"))
    assert report.driver == driver
    assert [(chip.npu_id, chip.chip_id) for chip in report.chips] == [
        (npu, chip) for npu in npus for chip in range(per_card)
    ]
    assert {chip.generation for chip in report.chips} == {Generation(generation)}
    assert [chip.device_id for chip in report.chips] == device_ids
    assert (report.chips[0].memory_used_mb, report.chips[0].memory_total_mb) == memory


@pytest.mark.parametrize("machine", MACHINES)
def test_list_and_map_agree_with_info_and_leave_out_the_mcu(machine: str) -> None:
    chips = parse_info(text(machine, "info")).chips
    rows = parse_map(text(machine, "map"))
    assert [(row.npu_id, row.chip_id) for row in rows] == [(c.npu_id, c.chip_id) for c in chips]
    assert [row.logical_id for row in rows] == list(range(len(chips)))
    assert all("910" in row.name or "310P3" in row.name for row in rows)
    per_card = MACHINES[machine][2]
    assert parse_list(text(machine, "list")) == {chip.npu_id: per_card for chip in chips}


def test_physical_ids_are_in_the_map_of_a3() -> None:
    assert [row.device_id for row in parse_map(text("a3_16_dies", "map"))] == list(range(16))


def test_a_sick_card_is_read_though_its_figures_are_missing() -> None:
    health = {c.npu_id: c.health for c in parse_info(text("sick_card", "info")).chips}
    assert health == dict.fromkeys(range(8), "OK") | {5: "Alarm", 6: "Warning"}


PROCESSES = {
    "name cut or missing": (
        "card_in_use",
        {1: [Process(5922, "rayRayWorkerW", 25611)], 2: [Process(5930, "", 25609)]},
    ),
    "second die of a card": ("a3_16_dies", {15: [Process(1444275, "VLLMWorker_TP", 60970)]}),
    "ids of a container": (
        "container",
        {1: [Process(1712733, "sglangschedul", 48954, 742), Process(1712734, "python", 150)]},
    ),
}


@pytest.mark.parametrize(("machine", "expected"), PROCESSES.values(), ids=PROCESSES)
def test_processes_belong_to_their_chip(machine: str, expected: dict[int, list[Process]]) -> None:
    chips = parse_info(text(machine, "info")).chips
    found = {n: list(chip.processes) for n, chip in enumerate(chips) if chip.processes}
    assert found == expected


def test_usages_are_of_the_memory_that_the_chip_has() -> None:
    told = {m: parse_usages(text(m, "usages")) for m in ("a2_64gb", "a3_16_dies", "310p_duo")}
    assert [(u.npu_id, u.chip_id, u.memory_total_mb) for u in told["a2_64gb"]] == [(0, 0, 65536)]
    assert [(u.chip_id, u.memory_percent, u.aicore_percent) for u in told["a3_16_dies"]] == [
        (0, 5, 0),
        (1, 97, 83),
    ]
    assert [u.memory_total_mb for u in told["310p_duo"]] == [44278, 43693]


@pytest.mark.parametrize(
    ("machine", "soc"),
    [("a2_64gb", "Ascend910B3"), ("a3_16_dies", "Ascend910_9382"), ("310p_duo", "Ascend310P3")],
)
def test_board_tells_versions_and_with_a_chip_the_soc(machine: str, soc: str) -> None:
    board = parse_board(text(machine, "board"))
    assert board.software_version == MACHINES[machine][0]
    assert (board.faulty_chips, board.soc_name) == (0, "")
    assert parse_board(text(machine, "board_chip")).soc_name == soc


def test_topology_of_a2_has_links_and_cores() -> None:
    topology = parse_topology(text("a2_64gb", "topo"))
    assert set(topology.links.values()) == {"HCCS"}
    assert len(topology.links) == 8 * 7
    assert topology.cores[0] == tuple(range(144, 168))
    assert topology.cores[4] == tuple(range(24))


def test_topology_of_a3_counts_physical_ids_and_has_no_cores() -> None:
    topology = parse_topology(text("a3_16_dies", "topo"))
    assert topology.links[14, 15] == "SIO"
    assert topology.links[0, 15] == "HCCS_SW"
    assert topology.cores == {}


def test_cores_may_come_in_several_spans() -> None:
    assert parse_topology(text("310p_duo", "topo")).cores[0] == (*range(24), *range(48, 72))
    assert parse_cores("7") == (7,)


REFUSALS = {
    "dcmi module initialize failed. ret is -8005": "not mounted",
    "dcmi model initialized failed, because the device is used. ret is -8020": "another container",
    "": "printed: nothing",
    "bash: npu-smi: command not found": "command not found",
}


@pytest.mark.parametrize(("said", "told"), REFUSALS.items(), ids=[*REFUSALS.values()])
@pytest.mark.parametrize(
    "parse", [parse_info, parse_list, parse_map, parse_usages, parse_board, parse_topology]
)
def test_a_refusal_is_told_with_its_cause(
    parse: Callable[[str], object], said: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        parse(said)


@pytest.mark.parametrize("query", ["info", "list"])
def test_an_output_that_is_cut_short_is_refused(query: str) -> None:
    parse: dict[str, Callable[[str], object]] = {"info": parse_info, "list": parse_list}
    whole = text("a2_64gb", query)
    with pytest.raises(ConfigError, match="no output of npu-smi"):
        parse[query](whole[: whole.index("Chip ")])

"""Faults that only one consumer minds: MindIE over several nodes, Motor's global table."""

from __future__ import annotations

from typing import Any

import pytest

from ranktables import Chip, Consumer, Level, check, parse
from ranktables.rules import RULES
from tests.unit.ranktable_samples import WITHOUT, Fault, device, edited
from tests.unit.test_ranktables_rules import HCCL_FAULTS

_MINDIE, _MOTOR, _WARNING = Consumer.MINDIE, Consumer.MOTOR, Level.WARNING
_GLOBAL_DEVICE = "server_group_list.2.server_list.0.device.0"
_SERVER = {"server_id": "10.0.0.9", "container_ip": "10.244.0.9"}


def _servers(count: int, devices: int) -> list[dict[str, Any]]:
    return [
        {
            "server_id": f"10.1.0.{server + 1}",
            "container_ip": f"10.2.0.{server + 1}",
            "device": [device(index, server * devices + index) for index in range(devices)],
        }
        for server in range(count)
    ]


def _cluster(count: int, devices: int) -> dict[str, Any]:
    return {"server_list": _servers(count, devices), "server_count": str(count)}


_FAULTS = [
    Fault("layout.global", "global_v1_0", {}, ("server_group_list",), consumer=_MINDIE),
    Fault("layout.plain", "mindie", {}, ("server_list",), consumer=_MOTOR),
    Fault(
        "server_count.missing",
        "mindie",
        {"server_count": WITHOUT},
        ("server_count",),
        consumer=_MINDIE,
    ),
    Fault(
        "container_ip.missing",
        "mindie",
        {"server_list.0.container_ip": "", "server_list.1.container_ip": WITHOUT},
        ("server_list[0].container_ip", "server_list[1].container_ip"),
        consumer=_MINDIE,
    ),
    Fault(
        "container_ip.missing",
        "global_v1_0",
        {"server_group_list.1.server_list.0.server_ip": ""},
        ("server_group_list[1].server_list[0].server_ip",),
        consumer=_MOTOR,
    ),
    Fault(
        "container_ip.invalid",
        "mindie",
        {"server_list.1.container_ip": "127.0.0.1"},
        ("server_list[1].container_ip",),
        consumer=_MINDIE,
    ),
    Fault(
        "container_ip.invalid",
        "global_v1_0",
        {"server_group_list.0.server_list.0.server_ip": "coordinator"},
        ("server_group_list[0].server_list[0].server_ip",),
        consumer=_MOTOR,
    ),
    Fault(
        "container_ip.duplicate",
        "mindie",
        {"server_list.1.container_ip": "10.244.0.1"},
        ("server_list[1].container_ip",),
        consumer=_MINDIE,
    ),
    Fault(
        "device_ip.missing",
        "mindie",
        {"server_list.0.device.1.device_ip": WITHOUT},
        ("server_list[0].device[1].device_ip",),
        consumer=_MINDIE,
    ),
    Fault(
        "device_ip.missing",
        "global_v1_2",
        {f"{_GLOBAL_DEVICE}.device_ip": WITHOUT},
        ("server_group_list[2].server_list[0].device[0].device_ip",),
        consumer=_MOTOR,
    ),
    Fault(
        "port.invalid",
        "global_v1_0",
        {"server_group_list.2.server_list.0.predict_port": "65536"},
        ("server_group_list[2].server_list[0].predict_port",),
        consumer=_MOTOR,
    ),
    Fault("mindie.servers", "mindie", _cluster(1, 8), ("server_list",), consumer=_MINDIE),
    Fault(
        "mindie.servers",
        "mindie",
        _cluster(61, 1),
        ("server_list",),
        "61",
        consumer=_MINDIE,
        alone=False,
    ),
    Fault(
        "mindie.devices",
        "mindie",
        _cluster(2, 33),
        ("server_list[0].device", "server_list[1].device"),
        consumer=_MINDIE,
        alone=False,
    ),
    Fault(
        "mindie.device_id",
        "mindie",
        {"server_list.0.device.1.device_id": "64"},
        ("server_list[0].device[1].device_id",),
        consumer=_MINDIE,
    ),
    Fault(
        "mindie.rank_id",
        "mindie",
        _cluster(19, 27),
        ("server_list[18].device[26].rank_id",),
        "rank_id 512",
        consumer=_MINDIE,
        alone=False,
    ),
    Fault(
        "mindie.uneven",
        "mindie",
        {"server_list.1.device.2": device(2, 4)},
        ("server_list[1].device",),
        "3 devices, the first server has 2",
        consumer=_MINDIE,
    ),
    Fault(
        "mindie.beyond_support",
        "mindie",
        _cluster(5, 8),
        ("server_list",),
        "5 servers with 40 devices",
        consumer=_MINDIE,
        level=_WARNING,
    ),
    Fault(
        "mindie.chip",
        "mindie",
        {},
        ("server_list",),
        consumer=_MINDIE,
        chip=Chip.ASCEND_310P,
    ),
    Fault(
        "mindie.super_pods",
        "mindie",
        {},
        ("version",),
        consumer=_MINDIE,
        chip=Chip.A3,
        level=_WARNING,
        alone=False,
    ),
    Fault(
        "motor.groups",
        "global_v1_0",
        {
            "server_group_list": [
                {"group_id": str(number), "server_count": "1", "server_list": [_SERVER]}
                for number in range(99)
            ]
        },
        ("server_group_list",),
        consumer=_MOTOR,
        alone=False,
    ),
    Fault(
        "motor.servers",
        "global_v1_0",
        {"server_group_list.2.server_list": _servers(97, 1)},
        ("server_list",),
        consumer=_MOTOR,
        alone=False,
    ),
    Fault(
        "motor.coordinators",
        "global_v1_0",
        {
            "server_group_list.0.server_list": [{"server_ip": f"10.0.0.{n}"} for n in (1, 2, 3)],
            "server_group_list.0.server_count": "3",
        },
        ("server_group_list[0].server_list",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.device_id",
        "global_v1_0",
        {f"{_GLOBAL_DEVICE}.device_id": "2049"},
        ("server_group_list[2].server_list[0].device[0].device_id",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.rank_id",
        "global_v1_0",
        {f"{_GLOBAL_DEVICE}.rank_id": "2049"},
        ("server_group_list[2].server_list[0].device[0].rank_id",),
        consumer=_MOTOR,
        alone=False,
    ),
    Fault(
        "motor.super_device_id",
        "global_v1_2",
        {f"{_GLOBAL_DEVICE}.super_device_id": str(2**30 + 1)},
        ("server_group_list[2].server_list[0].device[0].super_device_id",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.group_missing",
        "global_v1_0",
        {"server_group_list.0.group_id": "4"},
        ("server_group_list",),
        "no group 0 (coordinators)",
        consumer=_MOTOR,
        alone=False,
    ),
    Fault(
        "motor.group_id",
        "global_v1_0",
        {"server_group_list.3.group_id": "2"},
        ("server_group_list[3].group_id",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.group_id",
        "global_v1_0",
        {"server_group_list.3.group_id": "decode"},
        ("server_group_list[3].group_id",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.server_id",
        "global_v1_0",
        {"server_group_list.2.server_list.0.server_id": "node_0"},
        ("server_group_list[2].server_list[0].server_id",),
        consumer=_MOTOR,
    ),
    Fault(
        "motor.logical_id",
        "global_v1_0",
        {f"{_GLOBAL_DEVICE}.device_logical_id": WITHOUT},
        ("server_group_list[2].server_list[0].device[0].device_logical_id",),
        consumer=_MOTOR,
    ),
]


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: f"{fault.code}-{fault.consumer}")
def test_a_fault_is_found_at_its_place(fault: Fault) -> None:
    fault.assert_found()


def test_every_rule_has_a_fault_for_each_consumer_that_it_singles_out() -> None:
    covered = {(fault.code, fault.consumer) for fault in HCCL_FAULTS + _FAULTS}
    everywhere = {rule.code for rule in RULES if len(rule.levels) == len(Consumer)}
    uncovered = {
        (rule.code, consumer)
        for rule in RULES
        for consumer in rule.levels
        if rule.code not in everywhere and (rule.code, consumer) not in covered
    }
    assert everywhere <= {code for code, _ in covered}
    assert uncovered == set()


def test_all_faults_of_a_table_are_told_at_once() -> None:
    table, findings = parse(
        edited(
            "mindie",
            {
                "server_count": 3,
                "server_list.0.container_ip": "",
                "server_list.0.device.0.device_ip": "-.-.-.-",
                "server_list.1.device.0.rank_id": "0",
                "server_list.1.device.1.device_id": "x",
            },
        )
    )
    codes = {finding.code for finding in findings + check(table, Consumer.MINDIE)}
    assert codes == {
        "field.not_string",
        "field.invalid",
        "server_count.wrong",
        "container_ip.missing",
        "device_ip.invalid",
        "rank.duplicate",
        "rank.gap",
        "rank.order",
    }

"""Faults that HCCL minds, and so every consumer."""

from __future__ import annotations

from typing import Any

import pytest

from ranktables import Chip, Consumer, Level, check, parse
from tests.unit.ranktable_samples import WITHOUT, Fault, device, edited

_WARNING = Level.WARNING
_IP_0_1 = "server_list[0].device[1].device_ip"

HCCL_FAULTS = [
    Fault("status.not_completed", "hccl_v1_0", {"status": "initializing"}, ("status",)),
    Fault("status.not_completed", "hccl_v1_0", {"status": WITHOUT}, ("status",), "no status"),
    Fault("version.unknown", "hccl_v1_0", {"version": "1.1"}, ("version",), '"1.1"'),
    Fault("version.unknown", "hccl_v1_0", {"version": WITHOUT}, ("version",), "no version"),
    Fault("version.chip", "hccl_v1_2", {}, ("version",), chip=Chip.A2),
    Fault("version.chip", "hccl_v1_2", {}, ("version",), chip=Chip.ASCEND_310P),
    Fault("version.no_super_pods", "hccl_v1_0", {}, ("version",), chip=Chip.A3, level=_WARNING),
    Fault("layout.global", "global_v1_0", {}, ("server_group_list",)),
    Fault("server.none", "hccl_v1_0", {"server_list": [], "server_count": "0"}, ("server_list",)),
    Fault(
        "device.none",
        "hccl_v1_0",
        {"server_list.1.device": []},
        ("server_list[1].device",),
        "node_1",
    ),
    Fault(
        "server_count.missing",
        "hccl_v1_0",
        {"server_count": WITHOUT},
        ("server_count",),
        level=_WARNING,
    ),
    Fault("server_count.wrong", "hccl_v1_0", {"server_count": "3"}, ("server_count",), "2 servers"),
    Fault(
        "server_id.missing",
        "hccl_v1_0",
        {"server_list.0.server_id": WITHOUT},
        ("server_list[0].server_id",),
    ),
    Fault(
        "server_id.long",
        "hccl_v1_0",
        {"server_list.0.server_id": "n" * 64},
        ("server_list[0].server_id",),
    ),
    Fault(
        "server_id.duplicate",
        "hccl_v1_0",
        {"server_list.1.server_id": "node_0"},
        ("server_list[1].server_id",),
        "server_list[0].server_id",
    ),
    Fault(
        "super_pod.none",
        "hccl_v1_2",
        {"super_pod_list": WITHOUT},
        ("super_pod_list",),
        level=_WARNING,
    ),
    Fault(
        "super_pod.ignored",
        "hccl_v1_2",
        {"version": "1.0"},
        ("super_pod_list",),
        level=_WARNING,
    ),
    Fault(
        "super_pod.id",
        "hccl_v1_2",
        {"super_pod_list.1.super_pod_id": "0"},
        ("super_pod_list[1].super_pod_id",),
        alone=False,
    ),
    Fault(
        "super_pod.id",
        "hccl_v1_2",
        {"super_pod_list.1.super_pod_id": ""},
        ("super_pod_list[1].super_pod_id",),
    ),
    Fault(
        "super_pod.servers",
        "hccl_v1_2",
        {"super_pod_list.0.server_list.1.server_id": "node_9"},
        ("super_pod_list[0].server_list[1].server_id", "server_list[1].server_id"),
    ),
    Fault(
        "super_pod.servers",
        "hccl_v1_2",
        {"super_pod_list.0.server_list.2": {"server_id": "node_2"}},
        ("super_pod_list[1].server_list[0].server_id",),
        "is also at",
        alone=False,
    ),
    Fault(
        "rank.duplicate",
        "hccl_v1_0",
        {"server_list.1.device.0.rank_id": "0"},
        ("server_list[1].device[0].rank_id",),
        "server_list[0].device[0].rank_id",
        alone=False,
    ),
    Fault(
        "rank.gap",
        "hccl_v1_0",
        {"server_list.1.device.1.rank_id": "7"},
        ("server_list",),
        "4 devices, but no rank_id 3",
    ),
    Fault(
        "rank.gap",
        "hccl_v1_0",
        {
            "server_list.0.device.0.rank_id": "1",
            "server_list.0.device.1.rank_id": "2",
            "server_list.1.device.0.rank_id": "3",
            "server_list.1.device.1.rank_id": "4",
        },
        ("server_list",),
        "no rank_id 0",
    ),
    Fault(
        "rank.order",
        "hccl_v1_0",
        {"server_list.0.device.0.rank_id": "1", "server_list.0.device.1.rank_id": "0"},
        ("server_list[0].device[1].rank_id",),
        "rank_id 0 after 1",
        level=_WARNING,
    ),
    Fault(
        "device_id.duplicate",
        "hccl_v1_0",
        {"server_list.1.device.1.device_id": "0"},
        ("server_list[1].device[1].device_id",),
    ),
    Fault("device_ip.missing", "hccl_v1_0", {"server_list.0.device.1.device_ip": ""}, (_IP_0_1,)),
    *(
        Fault(
            "device_ip.invalid",
            "hccl_v1_0",
            {"server_list.0.device.1.device_ip": placeholder},
            (_IP_0_1,),
            placeholder,
        )
        for placeholder in ("-.-.-.-", "none", "0.0.0.0", "::", "127.0.0.1", "10.0.0.256", "10.0.1")
    ),
    Fault(
        "device_ip.duplicate",
        "hccl_v1_0",
        {"server_list.0.device.1.device_ip": "192.168.1.8"},
        (_IP_0_1,),
        "server_list[0].device[0].device_ip",
    ),
    Fault(
        "device_ip.uneven",
        "hccl_v1_0",
        {"server_list.0.device.1.device_ip": "192.168.1.9,192.168.1.19"},
        (_IP_0_1,),
        "2 addresses",
    ),
    Fault(
        "backup_device_ip.invalid",
        "hccl_v1_2",
        {
            "server_list.0.device.0.backup_device_ip": "192.168.1.6",
            "server_list.0.device.1.backup_device_ip": "none",
        },
        (
            "server_list[0].device[0].backup_device_ip",
            "server_list[0].device[1].backup_device_ip",
        ),
    ),
    Fault(
        "port.invalid",
        "hccl_v1_0",
        {"server_list.0.device.0.device_port": "0", "server_list.0.device.1.device_port": 16667},
        ("server_list[0].device[0].device_port", "server_list[0].device[1].device_port"),
    ),
    Fault(
        "super_device_id.missing",
        "hccl_v1_2",
        {"server_list.0.device.0.super_device_id": WITHOUT},
        ("server_list[0].device[0].super_device_id",),
    ),
    Fault(
        "super_device_id.duplicate",
        "hccl_v1_2",
        {"server_list.1.device.1.super_device_id": "0"},
        ("server_list[1].device[1].super_device_id",),
        "server_list[0].device[0].super_device_id",
    ),
]


@pytest.mark.parametrize("fault", HCCL_FAULTS, ids=lambda fault: fault.code)
def test_a_fault_is_found_at_its_place(fault: Fault) -> None:
    fault.assert_found()


@pytest.mark.parametrize(
    ("sample", "edits", "consumer"),
    [
        # One server talks over HCCS alone, and so do the servers of one super pod.
        ("hccl_tools_node_0", {"server_list.0.device.2.device_ip": ""}, Consumer.HCCL),
        (
            "hccl_v1_2",
            {
                "server_list": [
                    {
                        "server_id": f"node_{n}",
                        "device": [
                            {"device_id": "0", "super_device_id": str(n), "rank_id": str(n)}
                        ],
                    }
                    for n in range(2)
                ],
                "server_count": "2",
                "super_pod_list": [
                    {
                        "super_pod_id": "0",
                        "server_list": [{"server_id": f"node_{n}"} for n in range(2)],
                    }
                ],
            },
            Consumer.HCCL,
        ),
        # HCCL takes servers with different numbers of devices.
        ("hccl_v1_0", {"server_list.1.device.2": device(2, 4)}, Consumer.HCCL),
        # Several instances of one server each in one group: ranks start anew on each.
        (
            "global_v1_0",
            {
                "server_group_list.2.server_count": "2",
                "server_group_list.2.server_list.1": {
                    "server_id": "192.0.2.1",
                    "server_ip": "10.0.1.3",
                    "device": [device(0, 0) | {"device_logical_id": "0"}],
                },
            },
            Consumer.MOTOR,
        ),
        ("hccl_v1_0", {"server_list.0.device.0.device_ip": "fd00::1"}, Consumer.HCCL),
    ],
    ids=["one server", "one super pod", "uneven", "instances in one group", "IPv6"],
)
def test_what_the_consumer_takes_is_no_fault(
    sample: str, edits: dict[str, Any], consumer: Consumer
) -> None:
    table, findings = parse(edited(sample, edits))
    assert findings + check(table, consumer) == []

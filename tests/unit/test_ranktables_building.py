from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ranktables import (
    Consumer,
    Node,
    RankTable,
    RankTableError,
    SuperPod,
    Variant,
    build,
    check,
    convert,
    global_table,
    merge,
    parse,
    render,
)
from tests.unit.ranktable_samples import sample

_PODS = {"10.0.0.1": "10.244.0.1", "10.0.0.2": "10.244.0.2"}


def _node(index: int, devices: int, **fields: Any) -> Node:
    addresses = {number: f"192.168.{index}.{number + 1}" for number in range(devices)}
    return Node(f"10.0.0.{index}", addresses, **fields)


def _pod_node(index: int, pod: str) -> Node:
    ids = {number: 16 * index + number for number in range(2)}
    return _node(index, 2, super_pod_id=pod, super_device_ids=ids)


def _ranks(table: RankTable) -> list[list[int]]:
    return [[device.rank for device in server.devices] for server in table.servers]


def test_ranks_are_cumulative_where_nodes_differ_in_devices() -> None:
    table = build([_node(1, 8), _node(2, 4), _node(3, 1)])
    assert _ranks(table) == [list(range(8)), [8, 9, 10, 11], [12]]
    assert (table.version, table.groups[0].server_count) == ("1.0", 3)


def test_devices_are_in_the_order_of_their_ids_whatever_the_order_given() -> None:
    shuffled = Node("10.0.0.1", {10: "192.168.1.10", 2: "192.168.1.2", 7: "192.168.1.7"})
    table = build([shuffled])
    assert [(device.device_id, device.rank) for device in table.servers[0].devices] == [
        (2, 0),
        (7, 1),
        (10, 2),
    ]


def test_nodes_of_super_pods_make_version_1_2() -> None:
    table = build([_pod_node(1, "a"), _pod_node(2, "b"), _pod_node(3, "a")])
    assert table.version == "1.2"
    assert table.groups[0].super_pods == (
        SuperPod("a", ("10.0.0.1", "10.0.0.3")),
        SuperPod("b", ("10.0.0.2",)),
    )
    assert table.servers[1].devices[1].super_device_id == 33


@pytest.mark.parametrize(
    ("nodes", "consumer", "told"),
    [
        ([], Consumer.HCCL, "no servers"),
        ([_node(1, 0)], Consumer.HCCL, "no devices"),
        ([_node(1, 2), _node(1, 2)], Consumer.HCCL, '"10.0.0.1" is also at'),
        ([_node(1, 2), Node("10.0.0.2", {0: ""})], Consumer.HCCL, "hccn_tool -i N -ip -g"),
        ([_node(1, 2), Node("10.0.0.2", {0: "-.-.-.-"})], Consumer.HCCL, '"-.-.-.-"'),
        ([_pod_node(1, "a"), _node(2, 2)], Consumer.HCCL, "no super_pod_id for 10.0.0.2"),
        ([_node(1, 1, super_pod_id="a")], Consumer.HCCL, "no super_device_id"),
        ([_node(1, 8), _node(2, 4)], Consumer.MINDIE, "container_ip"),
    ],
)
def test_a_table_that_would_be_refused_is_not_built(
    nodes: list[Node], consumer: Consumer, told: str
) -> None:
    with pytest.raises(RankTableError) as refused:
        build(nodes, consumer)
    assert told in str(refused.value)


def test_the_error_of_a_refused_table_holds_every_finding() -> None:
    with pytest.raises(RankTableError) as refused:
        build([_node(1, 8), _node(2, 4)], Consumer.MINDIE)
    assert [finding.code for finding in refused.value.findings] == [
        "container_ip.missing",
        "container_ip.missing",
        "mindie.uneven",
    ]


def test_merging_the_tables_of_nodes_gives_what_merge_hccl_means() -> None:
    merged = merge([sample("hccl_tools_node_0"), sample("hccl_tools_node_1")])
    assert merged == sample("merge_hccl")
    assert check(merged) == []


def test_merging_counts_ranks_in_the_order_given() -> None:
    merged = merge([sample("hccl_tools_node_1"), sample("hccl_tools_node_0")])
    assert [server.server_id for server in merged.servers] == ["10.0.0.2", "10.0.0.1"]
    assert _ranks(merged) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_merging_joins_super_pods_that_several_tables_name() -> None:
    merged = merge([build([_pod_node(index, "a")]) for index in (1, 2)])
    assert merged.groups[0].super_pods == (SuperPod("a", ("10.0.0.1", "10.0.0.2")),)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([], "no tables"),
        (["global_v1_0"], "global table"),
        (["hccl_v1_0", "hccl_v1_2"], "version 1.0 and 1.2"),
        (["hccl_tools_node_0", "hccl_tools_node_0"], '"10.0.0.1" is also at'),
        (["hccl_tools_node_0", "operator_initializing"], "initializing"),
    ],
)
def test_tables_that_do_not_go_together_are_not_merged(tables: list[str], told: str) -> None:
    with pytest.raises(RankTableError) as refused:
        merge([sample(name) for name in tables])
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("name", "to", "options", "consumer"),
    [
        ("hccl_v1_2", Variant.HCCL_1_0, {}, Consumer.HCCL),
        ("hccl_v1_2", Variant.HCCL_1_2, {}, Consumer.HCCL),
        ("merge_hccl", Variant.MINDIE, {"container_ips": _PODS}, Consumer.MINDIE),
        ("operator_completed", Variant.MINDIE, {}, Consumer.MINDIE),
        ("global_v1_2", Variant.HCCL_1_2, {"group_id": "3"}, Consumer.HCCL),
        ("global_v1_0", Variant.HCCL_1_0, {"group_id": "2"}, Consumer.HCCL),
        ("global_v1_0", Variant.GLOBAL, {}, Consumer.MOTOR),
        (
            "mindie",
            Variant.GLOBAL,
            {"coordinators": ["10.0.0.9"], "controllers": ["10.0.0.8"]},
            Consumer.MOTOR,
        ),
    ],
)
def test_a_converted_table_is_what_its_consumer_takes(
    name: str, to: Variant, options: dict[str, Any], consumer: Consumer
) -> None:
    converted = convert(sample(name), to, **options)
    again, findings = parse(render(converted))
    assert again == converted
    assert findings + check(converted, consumer) == []


def test_a_table_that_carries_super_pods_at_version_1_0_can_become_1_2() -> None:
    converted = convert(sample("hccl_v1_2", version="1.0"), Variant.HCCL_1_2)
    assert converted == sample("hccl_v1_2")


def test_version_1_0_keeps_ranks_and_addresses_and_drops_super_pods() -> None:
    converted = convert(sample("hccl_v1_2"), Variant.HCCL_1_0)
    assert (converted.version, converted.groups[0].super_pods) == ("1.0", ())
    devices = [device for server in converted.servers for device in server.devices]
    assert {device.super_device_id for device in devices} == {None}
    assert [device.rank for device in devices] == list(range(8))


def test_an_instance_and_the_global_table_turn_into_each_other() -> None:
    plain = sample("mindie")
    converted = convert(plain, Variant.GLOBAL, coordinators=["10.0.0.9"], controllers=["10.0.0.8"])
    instance = converted.groups[2]
    logical = [device.extra for server in instance.servers for device in server.devices]
    assert logical == [{"device_logical_id": number} for number in ("0", "1", "0", "1")]
    assert convert(converted, Variant.MINDIE) == plain


def test_the_global_table_numbers_its_instances_from_2() -> None:
    tables = [convert(sample("global_v1_0"), Variant.HCCL_1_0, group_id=g) for g in ("3", "2")]
    table = global_table(tables, ["10.0.0.9"], ["10.0.0.8"])
    assert [group.group_id for group in table.groups] == ["0", "1", "2", "3"]
    assert [server.container_ip for server in table.servers] == ["10.0.1.2", "10.0.1.1"]


def test_instances_of_one_group_get_ranks_through_all_of_them() -> None:
    second = {
        "server_id": "192.0.2.9",
        "server_ip": "10.0.1.9",
        "device": [{"device_id": "0", "device_ip": "192.168.9.1", "rank_id": "0"}],
    }
    table = sample("global_v1_0", server_group_list__2__server_list__1=second)
    assert _ranks(convert(table, Variant.HCCL_1_0, group_id="2")) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda: convert(sample("hccl_v1_0"), Variant.HCCL_1_2),
            "no super_device_id for rank 0, rank 1, rank 2, rank 3",
        ),
        (
            lambda: convert(
                sample("hccl_v1_2", version="1.0", super_pod_list=[]), Variant.HCCL_1_2
            ),
            "no super_pod_list entry for node_0",
        ),
        (
            lambda: convert(
                sample("hccl_v1_2", server_list__0__device__0__device_ip=""), Variant.HCCL_1_0
            ),
            "server_list[0].device[0].device_ip",
        ),
        (
            lambda: convert(sample("merge_hccl"), Variant.MINDIE),
            "no container_ip for 10.0.0.1, 10.0.0.2",
        ),
        (
            lambda: convert(
                sample("merge_hccl"), Variant.MINDIE, container_ips={"10.0.0.9": "10.244.0.9"}
            ),
            "an address for 10.0.0.9",
        ),
        (lambda: convert(sample("global_v1_0"), Variant.MINDIE), "the groups 2, 3"),
        (lambda: convert(sample("global_v1_0"), Variant.MINDIE, group_id="0"), "group 0"),
        (lambda: convert(sample("mindie"), Variant.GLOBAL), "no coordinators"),
        (lambda: convert(sample("mindie"), Variant.GLOBAL, coordinators=["x"]), "no controllers"),
        (
            lambda: convert(
                sample("mindie"), Variant.GLOBAL, coordinators=["x"], controllers=["10.0.0.8"]
            ),
            'server_group_list[0].server_list[0].server_ip: "x"',
        ),
        (
            lambda: global_table([sample("mindie"), sample("hccl_v1_2")], ["10.0.0.9"], ["x"]),
            "version 1.0 and 1.2",
        ),
        (lambda: convert(sample("operator_initializing"), Variant.HCCL_1_0), "initializing"),
    ],
)
def test_a_conversion_that_lacks_something_says_what(
    change: Callable[[], RankTable], told: str
) -> None:
    with pytest.raises(RankTableError) as refused:
        change()
    assert told in str(refused.value)

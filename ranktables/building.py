"""Make a rank table from the nodes of a cluster, or from the tables of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ranktables.checking import require
from ranktables.findings import RankTableError, listed
from ranktables.rules import Chip, Consumer
from ranktables.table import Device, Group, RankTable, Server, SuperPod


@dataclass(frozen=True, slots=True)
class Node:
    """One machine as the cluster knows it.

    `device_ips` gives the RoCE address of each device by its physical id, as in /etc/hccn.conf
    ("" where a device has none). A node of an A3 super pod has `super_pod_id`, and the
    `super_device_ids` of all its devices.
    """

    server_id: str
    device_ips: Mapping[int, str]
    container_ip: str = ""
    super_pod_id: str = ""
    super_device_ids: Mapping[int, int] = field(default_factory=dict)


def build(
    nodes: Iterable[Node], consumer: Consumer = Consumer.HCCL, chip: Chip | None = None
) -> RankTable:
    """The table of these nodes: version 1.2 if they are in super pods, else 1.0.

    Ranks follow the order of the nodes and, on a node, of the device ids. They are cumulative, so
    nodes may differ in their number of devices.

    Raises:
        RankTableError: some nodes are in super pods and some are not, or `consumer` would refuse
            the table.
    """
    nodes = tuple(nodes)
    outside = [node.server_id for node in nodes if not node.super_pod_id]
    if 0 < len(outside) < len(nodes):
        raise RankTableError(
            f"no super_pod_id for {listed(outside)}",
            "either every node is in a super pod, or none",
            "give the ids that `npu-smi info -t spod-info` prints on those nodes",
        )
    pods: dict[str, list[str]] = {}
    for node in nodes:
        if node.super_pod_id:
            pods.setdefault(node.super_pod_id, []).append(node.server_id)
    servers = tuple(
        Server(
            node.server_id,
            tuple(
                Device(number, 0, node.device_ips[number], node.super_device_ids.get(number))
                for number in sorted(node.device_ips)
            ),
            node.container_ip,
        )
        for node in nodes
    )
    super_pods = tuple(SuperPod(pod, tuple(server_ids)) for pod, server_ids in pods.items())
    table = plain_table("1.2" if pods else "1.0", servers, super_pods)
    return require(table, consumer, chip, f"{consumer.name} would refuse the table of these nodes")


def merge(
    tables: Sequence[RankTable], consumer: Consumer = Consumer.HCCL, chip: Chip | None = None
) -> RankTable:
    """One table of the servers of all `tables`, in their order, with ranks counted anew.

    Raises:
        RankTableError: a table is a global one or not completed, versions differ, or `consumer`
            would refuse the result (two tables of one server, for example).
    """
    if not tables or any(table.is_global for table in tables):
        raise RankTableError(
            "a global table" if tables else "no tables",
            "only plain tables, each with a server_list, can be merged",
            "convert it first" if tables else "",
        )
    versions = sorted({table.version for table in tables})
    if len(versions) > 1:
        raise RankTableError(
            f"tables of version {' and '.join(versions)}",
            "one table has one version",
            "convert them to the same one first",
        )
    if waiting := [table.status for table in tables if table.status != "completed"]:
        raise RankTableError(
            f'a table with status "{waiting[0]}"', "it lacks devices", "wait until it is completed"
        )
    groups = [group for table in tables for group in table.groups]
    pods: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for pod in group.super_pods:
            pods[pod.super_pod_id] = pods.get(pod.super_pod_id, ()) + pod.server_ids
    table = plain_table(
        versions[0],
        tuple(server for group in groups for server in group.servers),
        tuple(SuperPod(pod, server_ids) for pod, server_ids in pods.items()),
    )
    return require(table, consumer, chip, f"{consumer.name} would refuse the merged table")


def plain_table(
    version: str, servers: Iterable[Server], super_pods: tuple[SuperPod, ...] = ()
) -> RankTable:
    """A plain table of these servers, whose ranks are counted from 0 through all of them."""
    numbered, start = [], 0
    for server in servers:
        devices = tuple(
            replace(device, rank=rank) for rank, device in enumerate(server.devices, start)
        )
        numbered.append(replace(server, devices=devices))
        start += len(devices)
    return RankTable(version, (Group(tuple(numbered), super_pods, len(numbered)),))

"""Turn a table into another layout, where it holds what that layout needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from ranktables.building import plain_table
from ranktables.checking import require
from ranktables.findings import RankTableError, listed
from ranktables.rules import Consumer
from ranktables.table import CONTROLLERS, COORDINATORS, Group, RankTable, Server

# What only the global table holds.
_GLOBAL_FIELDS = (
    "device_logical_id",
    "predict_port",
    "mgmt_port",
    "metric_port",
    "inter_comm_port",
)


class Variant(StrEnum):
    """The layouts: HCCL 1.0, HCCL 1.2 (super pods), MindIE's multi-node one, the global table."""

    HCCL_1_0 = "1.0"
    HCCL_1_2 = "1.2"
    MINDIE = "mindie"
    GLOBAL = "global"


def convert(
    table: RankTable,
    to: Variant,
    group_id: str = "",
    container_ips: Mapping[str, str] | None = None,
    coordinators: Sequence[str] = (),
    controllers: Sequence[str] = (),
) -> RankTable:
    """The same devices in another layout.

    Args:
        table: any table; it is left as it is.
        to: the layout wanted.
        group_id: which instance of a global table, if it has several.
        container_ips: addresses of containers or pods by server id, for layouts that need them
            and tables that lack them. Without containers those are the servers' own addresses.
        coordinators: addresses for the global table.
        controllers: addresses for the global table.

    Raises:
        RankTableError: with what is missing.
    """
    if to is Variant.GLOBAL and table.is_global:
        return require(table, Consumer.MOTOR, None, "Motor would refuse the table")
    plain = _instance(table, group_id)
    if container_ips:
        plain = _with_container_ips(plain, container_ips)
    if to is Variant.GLOBAL:
        return global_table([plain], coordinators, controllers)
    if to is Variant.MINDIE:
        _demand(plain, "container_ip", [s.server_id for s in plain.servers if not s.container_ip])
        return require(plain, Consumer.MINDIE, None, "MindIE would refuse the table")
    wanted = _with_super_pods(plain) if to is Variant.HCCL_1_2 else _without_super_pods(plain)
    return require(wanted, Consumer.HCCL, None, f"HCCL would refuse it as version {to}")


def global_table(
    instances: Sequence[RankTable], coordinators: Sequence[str], controllers: Sequence[str]
) -> RankTable:
    """The global table for prefill-decode separation: one group for each plain table.

    `coordinators` and `controllers` are the addresses of their pods.

    Raises:
        RankTableError: addresses are missing, versions differ, or Motor would refuse the result.
    """
    for name, addresses in (("coordinators", coordinators), ("controllers", controllers)):
        if not addresses:
            raise RankTableError(f"no {name}", f"the global table lists the {name}' addresses")
    versions = sorted({table.version for table in instances})
    if len(versions) != 1:
        raise RankTableError(
            f"tables of version {' and '.join(versions)}" if versions else "no tables",
            "the global table has one version",
        )
    for table in instances:
        _demand(table, "container_ip", [s.server_id for s in table.servers if not s.container_ip])
    groups = [
        _bare_group(COORDINATORS, coordinators),
        _bare_group(CONTROLLERS, controllers),
        *(
            replace(
                group,
                group_id=str(number),
                servers=tuple(map(_with_logical_ids, group.servers)),
                extra={"deploy_server": "0"},
            )
            for number, table in enumerate(instances, 2)
            for group in table.groups
        ),
    ]
    table = RankTable(versions[0], tuple(groups))
    return require(table, Consumer.MOTOR, None, "Motor would refuse the global table")


def _bare_group(group_id: str, addresses: Iterable[str]) -> Group:
    servers = tuple(Server("", container_ip=address) for address in addresses)
    return Group(servers, server_count=len(servers), group_id=group_id)


def _instance(table: RankTable, group_id: str) -> RankTable:
    """The plain table of one instance; ranks are kept where they count through the group."""
    if not table.is_global:
        return table
    groups = {group.group_id or "": group for group in table.groups if group.holds_devices}
    if group_id not in groups and (group_id or len(groups) != 1):
        raise RankTableError(
            f"group {group_id or 'not named'}",
            f"the table's instances are the groups {listed(groups) or 'none'}",
            "name one of them",
        )
    group = groups[group_id] if group_id else next(iter(groups.values()))
    servers = tuple(map(_without_global_fields, group.servers))
    if len(group.rank_domains) > 1:
        return plain_table(table.version, servers, group.super_pods)
    plain = Group(servers, group.super_pods, len(servers))
    return replace(table, groups=(plain,))


def _without_global_fields(server: Server) -> Server:
    devices = tuple(
        replace(device, extra=_bare(device.extra)) if device.extra else device
        for device in server.devices
    )
    return replace(server, devices=devices, extra=_bare(server.extra))


def _bare(extra: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in extra.items() if key not in _GLOBAL_FIELDS}


def _with_logical_ids(server: Server) -> Server:
    order = {
        number: index for index, number in enumerate(sorted(d.device_id for d in server.devices))
    }
    devices = tuple(
        replace(device, extra={"device_logical_id": str(order[device.device_id]), **device.extra})
        for device in server.devices
    )
    return replace(server, devices=devices)


def _with_container_ips(table: RankTable, addresses: Mapping[str, str]) -> RankTable:
    unknown = sorted(set(addresses) - {server.server_id for server in table.servers})
    if unknown:
        raise RankTableError(
            f"an address for {listed(unknown)}",
            f"the table's servers are {listed(server.server_id for server in table.servers)}",
        )
    groups = tuple(
        replace(
            group,
            servers=tuple(
                replace(s, container_ip=addresses.get(s.server_id, s.container_ip))
                for s in group.servers
            ),
        )
        for group in table.groups
    )
    return replace(table, groups=groups)


def _with_super_pods(table: RankTable) -> RankTable:
    lacking = [
        f"rank {device.rank}"
        for server in table.servers
        for device in server.devices
        if device.super_device_id is None
    ]
    _demand(table, "super_device_id", lacking)
    if not any(group.super_pods for group in table.groups):
        _demand(table, "super_pod_list entry", [server.server_id for server in table.servers])
    return replace(table, version="1.2")


def _without_super_pods(table: RankTable) -> RankTable:
    groups = tuple(
        replace(
            group,
            super_pods=(),
            servers=tuple(
                replace(
                    server,
                    devices=tuple(replace(d, super_device_id=None) for d in server.devices),
                )
                for server in group.servers
            ),
        )
        for group in table.groups
    )
    return replace(table, version="1.0", groups=groups)


_REMEDIES = {
    "container_ip": "give the addresses of the servers' containers or pods",
    "super_device_id": "build the table from nodes with the SDID that "
    "`npu-smi info -t spod-info -i N -c C` prints",
    "super_pod_list entry": "build the table from nodes with their super pods' ids",
}


def _demand(table: RankTable, name: str, lacking: list[str]) -> None:
    if lacking:
        raise RankTableError(
            f"no {name} for {listed(lacking)}",
            f"the table of {len(table.servers)} servers does not hold it",
            _REMEDIES[name],
        )

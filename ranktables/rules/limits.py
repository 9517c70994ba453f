"""What only MindIE or Motor demand: how many, how large, and in which shape."""

from __future__ import annotations

from collections.abc import Iterator

from ranktables.findings import MINDIE, MINDIE_INSTALL, MOTOR, Level
from ranktables.rules.base import (
    Chip,
    Consumer,
    Rule,
    Seen,
    Subject,
    is_ip,
    only,
    outside,
    repeated,
)
from ranktables.table import CONTROLLERS, COORDINATORS

_MINDIE_ONLY = only(Consumer.MINDIE)
_MINDIE_WARNING = only(Consumer.MINDIE, Level.WARNING)
_MOTOR_ONLY = only(Consumer.MOTOR)


def _server_count(subject: Subject) -> Iterator[tuple[str, int]]:
    yield "server_list", len(subject.servers)


def _devices_a_server(subject: Subject) -> Iterator[tuple[str, int]]:
    # A server without devices has a finding of its own.
    return (
        (f"{place}.device", len(server.devices))
        for place, server in subject.servers
        if server.devices
    )


def _device_ids(subject: Subject) -> Iterator[tuple[str, int]]:
    return ((f"{place}.device_id", device.device_id) for place, device in subject.devices)


def _ranks(subject: Subject) -> Iterator[tuple[str, int]]:
    return ((f"{place}.rank_id", device.rank) for place, device in subject.devices)


def _super_device_ids(subject: Subject) -> Iterator[tuple[str, int]]:
    return (
        (f"{place}.super_device_id", device.super_device_id)
        for place, device in subject.devices
        if device.super_device_id is not None
    )


def _group_count(subject: Subject) -> Iterator[tuple[str, int]]:
    yield "server_group_list", len(subject.table.groups)


def _coordinator_count(subject: Subject) -> Iterator[tuple[str, int]]:
    for place, group in subject.groups:
        if group.group_id == COORDINATORS:
            yield f"{place}server_list", len(group.servers)


def _uneven(subject: Subject) -> Iterator[Seen]:
    counts = [(place, len(server.devices)) for place, server in subject.servers]
    for place, count in counts:
        if count != counts[0][1]:
            yield f"{place}.device", f"{count} devices, the first server has {counts[0][1]}"


def _beyond_support(subject: Subject) -> Iterator[Seen]:
    servers, devices = len(subject.servers), len(subject.devices)
    if servers > 4 or devices > 32:
        yield "server_list", f"{servers} servers with {devices} devices"


def _not_a2(subject: Subject) -> Iterator[Seen]:
    if subject.chip is Chip.ASCEND_310P:
        yield "server_list", "devices of type 310P"


def _super_pods(subject: Subject) -> Iterator[Seen]:
    if subject.chip is Chip.A3 or subject.table.version == "1.2":
        yield "version", "a table for A3"


def _groups_missing(subject: Subject) -> Iterator[Seen]:
    if not subject.table.is_global:
        return
    ids = {group.group_id for group in subject.table.groups}
    for group_id, name in ((COORDINATORS, "coordinators"), (CONTROLLERS, "controllers")):
        if group_id not in ids:
            yield "server_group_list", f"no group {group_id} ({name})"
    if ids <= {COORDINATORS, CONTROLLERS}:
        yield "server_group_list", "no group with devices"


def _group_ids(subject: Subject) -> Iterator[Seen]:
    if not subject.table.is_global:
        return
    ids = [(f"{place}group_id", group.group_id or "") for place, group in subject.groups]
    yield from repeated(ids, "group_id")
    for place, group_id in ids:
        if not (group_id.isascii() and group_id.isdecimal()):
            yield place, f'group_id "{group_id}"'


def _server_ids(subject: Subject) -> Iterator[Seen]:
    for place, server in subject.servers:
        if server.server_id and not is_ip(server.server_id):
            yield f"{place}.server_id", f'server_id "{server.server_id}"'


def _no_logical_ids(subject: Subject) -> Iterator[Seen]:
    if not subject.table.is_global:
        return
    for place, device in subject.devices:
        if "device_logical_id" not in device.extra:
            yield f"{place}.device_logical_id", "no device_logical_id"


RULES = (
    Rule(
        "mindie.servers",
        outside("servers:", _server_count, 2, 60),
        "2 to 60 servers; on one server leave RANK_TABLE_FILE unset and use no table",
        MINDIE,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.devices",
        outside("devices:", _devices_a_server, 1, 32),
        "1 to 32 devices a server",
        MINDIE,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.device_id",
        outside("device_id", _device_ids, 0, 63),
        "a device id from 0 to 63",
        MINDIE,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.rank_id",
        outside("rank_id", _ranks, 0, 511),
        "a rank from 0 to 511",
        MINDIE,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.uneven",
        _uneven,
        "the same number of devices on every server",
        MINDIE,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.beyond_support",
        _beyond_support,
        "up to 4 servers with 32 devices: the vendor supports no more",
        MINDIE_INSTALL,
        _MINDIE_WARNING,
    ),
    Rule(
        "mindie.chip",
        _not_a2,
        "Atlas 800I A2: MindIE does not run over several servers of 300I Duo",
        MINDIE_INSTALL,
        _MINDIE_ONLY,
    ),
    Rule(
        "mindie.super_pods",
        _super_pods,
        "Atlas 800I A2: the vendor names no other server for several nodes",
        MINDIE_INSTALL,
        _MINDIE_WARNING,
    ),
    Rule(
        "motor.groups",
        outside("groups:", _group_count, 1, 98),
        "up to 98 groups",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.servers",
        outside("servers:", _server_count, 0, 96),
        "up to 96 servers with devices",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.coordinators",
        outside("coordinators:", _coordinator_count, 1, 2),
        "1 or 2 coordinators",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.device_id",
        outside("device_id", _device_ids, 0, 2048),
        "a device id from 0 to 2048",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.rank_id",
        outside("rank_id", _ranks, 0, 2048),
        "a rank from 0 to 2048",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.super_device_id",
        outside("super_device_id", _super_device_ids, 0, 2**30),
        "a super_device_id up to 2^30",
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule(
        "motor.group_missing",
        _groups_missing,
        'group "0" with the coordinators, "1" with the controllers, "2" and up with instances',
        MOTOR,
        _MOTOR_ONLY,
    ),
    Rule("motor.group_id", _group_ids, "a number of its own, as a string", MOTOR, _MOTOR_ONLY),
    Rule("motor.server_id", _server_ids, "the server's IP address", MOTOR, _MOTOR_ONLY),
    Rule(
        "motor.logical_id",
        _no_logical_ids,
        "the device's place on its server, from 0",
        MOTOR,
        _MOTOR_ONLY,
    ),
)

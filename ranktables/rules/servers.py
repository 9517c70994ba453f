"""Rules on the table as a whole, its servers and its super pods."""

from __future__ import annotations

from collections.abc import Iterator

from ranktables.findings import HCCL_A2, HCCL_A3, MINDIE, MOTOR, OPERATOR, Level
from ranktables.rules.base import (
    ERROR,
    WARNING,
    Chip,
    Consumer,
    Rule,
    Seen,
    Subject,
    is_ip,
    only,
    repeated,
)
from ranktables.table import Server

_LONGEST_SERVER_ID = 63


def _not_completed(subject: Subject) -> Iterator[Seen]:
    if (status := subject.table.status) != "completed":
        yield "status", f'status "{status}"' if status else "no status"


def _unknown_version(subject: Subject) -> Iterator[Seen]:
    if (version := subject.table.version) not in ("1.0", "1.2"):
        yield "version", f'version "{version}"' if version else "no version"


def _super_pods_off_a3(subject: Subject) -> Iterator[Seen]:
    if subject.table.version == "1.2" and subject.chip in (Chip.A2, Chip.ASCEND_310P):
        yield "version", f"version 1.2 on {subject.chip}"


def _no_super_pods_on_a3(subject: Subject) -> Iterator[Seen]:
    if subject.table.version == "1.0" and subject.chip is Chip.A3:
        yield "version", "version 1.0 on A3"


def _is_global(subject: Subject) -> Iterator[Seen]:
    if subject.table.is_global:
        yield "server_group_list", f"a global table of {len(subject.table.groups)} groups"


def _is_plain(subject: Subject) -> Iterator[Seen]:
    if not subject.table.is_global:
        yield "server_list", "the table of one instance"


def _no_servers(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.groups:
        if not group.servers:
            yield f"{place}server_list", "no servers"


def _no_devices(subject: Subject) -> Iterator[Seen]:
    for place, server in subject.servers:
        if not server.devices:
            yield f"{place}.device", f"{server.server_id or 'the server'} has no devices"


def _count_missing(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.groups:
        if group.server_count is None:
            yield f"{place}server_count", "no server_count"


def _count_wrong(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.groups:
        stated, real = group.server_count, len(group.servers)
        if stated is not None and stated >= 0 and stated != real:
            yield f"{place}server_count", f"server_count {stated}, but {real} servers"


def _no_server_id(subject: Subject) -> Iterator[Seen]:
    for place, server in subject.servers:
        if not server.server_id:
            yield f"{place}.server_id", "no server_id"


def _long_server_id(subject: Subject) -> Iterator[Seen]:
    for place, server in subject.servers:
        if len(server.server_id) > _LONGEST_SERVER_ID:
            yield f"{place}.server_id", f"server_id of {len(server.server_id)} characters"


def _same_server_id(subject: Subject) -> Iterator[Seen]:
    # The servers of a global table are pods, and two pods may share a machine.
    if not subject.table.is_global:
        ids = ((f"{at}.server_id", server.server_id) for at, server in subject.servers)
        yield from repeated(
            ((place, server_id) for place, server_id in ids if server_id), "server_id"
        )


def _container_ips(subject: Subject) -> Iterator[tuple[str, Server]]:
    """Every server with the place of its address, coordinators and controllers too."""
    for place, group in subject.groups:
        name = "container_ip" if group.group_id is None else "server_ip"
        for index, server in enumerate(group.servers):
            yield f"{place}server_list[{index}].{name}", server


def _no_container_ip(subject: Subject) -> Iterator[Seen]:
    for place, server in _container_ips(subject):
        if not server.container_ip:
            yield place, f"no address for {server.server_id or 'the server'}"


def _bad_container_ip(subject: Subject) -> Iterator[Seen]:
    for place, server in _container_ips(subject):
        if server.container_ip and not is_ip(server.container_ip):
            yield place, f'"{server.container_ip}"'


def _same_container_ip(subject: Subject) -> Iterator[Seen]:
    known = ((place, server.container_ip) for place, server in _container_ips(subject))
    return repeated(((place, ip) for place, ip in known if ip), "the address")


def _no_super_pods(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.instances:
        if subject.table.version == "1.2" and not group.super_pods:
            yield f"{place}super_pod_list", "version 1.2, but no super_pod_list"


def _needless_super_pods(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.instances:
        if subject.table.version == "1.0" and group.super_pods:
            yield f"{place}super_pod_list", "version 1.0 with a super_pod_list"


def _super_pod_ids(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.instances:
        ids = [
            (f"{place}super_pod_list[{index}].super_pod_id", pod.super_pod_id)
            for index, pod in enumerate(group.super_pods)
        ]
        yield from repeated(((where, pod) for where, pod in ids if pod), "super_pod_id")
        yield from ((where, "no super_pod_id") for where, pod in ids if not pod)


def _super_pod_servers(subject: Subject) -> Iterator[Seen]:
    """Servers of super pods that are not in server_list, are in two pods, or are in none."""
    for place, group in subject.instances:
        known = {server.server_id for server in group.servers}
        listed = [
            (f"{place}super_pod_list[{at}].server_list[{index}].server_id", server_id)
            for at, pod in enumerate(group.super_pods)
            for index, server_id in enumerate(pod.server_ids)
        ]
        for where, server_id in listed:
            if server_id not in known:
                yield where, f'server_id "{server_id}" is not in server_list'
        yield from repeated(listed, "server_id")
        in_pods = {server_id for _, server_id in listed}
        for index, server in enumerate(group.servers):
            if group.super_pods and server.server_id not in in_pods:
                where = f"{place}server_list[{index}].server_id"
                yield where, f'server_id "{server.server_id}" is in no super pod'


_CONTAINER_IP = (
    "the address of the server's container or pod, of the server itself without one; "
    "MIES_CONTAINER_IP on that server must be the same"
)

RULES = (
    Rule(
        "status.not_completed",
        _not_completed,
        '"completed": whoever writes the table has not finished, wait for it',
        OPERATOR,
        ERROR,
    ),
    Rule(
        "version.unknown", _unknown_version, '"1.0", or "1.2" for super pods of A3', HCCL_A2, ERROR
    ),
    Rule("version.chip", _super_pods_off_a3, "version 1.0: no super pods", HCCL_A2, ERROR),
    Rule(
        "version.no_super_pods",
        _no_super_pods_on_a3,
        "version 1.2 if the servers share a super pod; with 1.0 they talk over RoCE only",
        HCCL_A3,
        WARNING,
    ),
    Rule(
        "layout.global",
        _is_global,
        "the table of one instance, with a server_list: convert it",
        HCCL_A2,
        {Consumer.HCCL: Level.ERROR, Consumer.MINDIE: Level.ERROR},
    ),
    Rule(
        "layout.plain",
        _is_plain,
        "the global table, with a server_group_list: convert it",
        MOTOR,
        only(Consumer.MOTOR),
    ),
    Rule("server.none", _no_servers, "at least one server", HCCL_A2, ERROR),
    Rule("device.none", _no_devices, "at least one device a server", HCCL_A2, ERROR),
    Rule(
        "server_count.missing",
        _count_missing,
        "the number of servers, as a string",
        MINDIE,
        {**WARNING, Consumer.MINDIE: Level.ERROR},
    ),
    Rule("server_count.wrong", _count_wrong, "the number of servers", HCCL_A2, ERROR),
    Rule("server_id.missing", _no_server_id, "an id or address of its own", HCCL_A2, ERROR),
    Rule("server_id.long", _long_server_id, "fewer than 64 characters", HCCL_A2, ERROR),
    Rule("server_id.duplicate", _same_server_id, "each server once", HCCL_A2, ERROR),
    Rule(
        "container_ip.missing",
        _no_container_ip,
        _CONTAINER_IP,
        MINDIE,
        {Consumer.MINDIE: Level.ERROR, Consumer.MOTOR: Level.ERROR},
    ),
    Rule(
        "container_ip.invalid",
        _bad_container_ip,
        _CONTAINER_IP,
        MINDIE,
        {Consumer.MINDIE: Level.ERROR, Consumer.MOTOR: Level.ERROR},
    ),
    Rule(
        "container_ip.duplicate",
        _same_container_ip,
        "an address of its own: it tells a daemon which server it is",
        MINDIE,
        only(Consumer.MINDIE),
    ),
    Rule("super_pod.none", _no_super_pods, "which servers share a super pod", HCCL_A3, WARNING),
    Rule(
        "super_pod.ignored",
        _needless_super_pods,
        "version 1.2, or no super_pod_list: HCCL reads it in version 1.2 only",
        HCCL_A3,
        WARNING,
    ),
    Rule("super_pod.id", _super_pod_ids, "an id of its own for each super pod", HCCL_A3, ERROR),
    Rule(
        "super_pod.servers",
        _super_pod_servers,
        "each server of server_list in exactly one super pod",
        HCCL_A3,
        ERROR,
    ),
)

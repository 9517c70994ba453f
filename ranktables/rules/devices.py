"""Rules on devices: ranks, ids, addresses, ports."""

from __future__ import annotations

from collections.abc import Iterator

from ranktables.findings import HCCL_A2, HCCL_A3, MINDIE, MINDIE_INSTALL, MOTOR, listed
from ranktables.rules.base import (
    ERROR,
    WARNING,
    Consumer,
    Rule,
    Seen,
    Subject,
    is_ip,
    only,
    repeated,
)
from ranktables.table import UNKNOWN, Device

_PORTS = ("device_port", "host_port", "backup_device_port", "device_vnic_port")
_SERVER_PORTS = ("predict_port", "mgmt_port", "metric_port", "inter_comm_port")


def _domains(subject: Subject) -> Iterator[tuple[str, list[tuple[str, Device]]]]:
    """Each set of devices whose ranks count from 0, with the place of the list it is in."""
    places = iter(subject.devices)
    for place, group in subject.instances:
        for servers in group.rank_domains:
            count = sum(len(server.devices) for server in servers)
            yield f"{place}server_list", [next(places) for _ in range(count)]


def _same_rank(subject: Subject) -> Iterator[Seen]:
    for _, devices in _domains(subject):
        known = ((f"{at}.rank_id", device.rank) for at, device in devices if device.rank >= 0)
        yield from repeated(known, "rank_id")


def _rank_gaps(subject: Subject) -> Iterator[Seen]:
    for place, devices in _domains(subject):
        ranks = {device.rank for _, device in devices}
        missing = [rank for rank in range(len(devices)) if rank not in ranks]
        if missing and UNKNOWN not in ranks:
            yield place, f"{len(devices)} devices, but no rank_id {listed(missing)}"


def _rank_order(subject: Subject) -> Iterator[Seen]:
    for _, devices in _domains(subject):
        highest, holder = UNKNOWN, ""
        for place, device in devices:
            if UNKNOWN < device.rank < highest:
                yield f"{place}.rank_id", f"rank_id {device.rank} after {highest} at {holder}"
            elif device.rank > highest:
                highest, holder = device.rank, place


def _same_device_id(subject: Subject) -> Iterator[Seen]:
    for place, server in subject.servers:
        known = (
            (f"{place}.device[{index}].device_id", device.device_id)
            for index, device in enumerate(server.devices)
            if device.device_id != UNKNOWN
        )
        yield from repeated(known, "device_id")


def _no_device_ip(subject: Subject) -> Iterator[Seen]:
    for place, device in subject.devices:
        if not device.device_ip:
            yield f"{place}.device_ip", f"no device_ip for rank {device.rank}"


def _no_needed_device_ip(subject: Subject) -> Iterator[Seen]:
    """Inside one server, and inside one super pod of A3, HCCL does without RoCE ports.

    Source: `TopoinfoRanktableConcise::GetSingleDeviceIp` of CANN's HCCL.
    """
    pods = sum(len(group.super_pods) for _, group in subject.instances)
    if len(subject.servers) > 1 and not (subject.table.version == "1.2" and pods == 1):
        yield from _no_device_ip(subject)


def _bad_device_ip(subject: Subject) -> Iterator[Seen]:
    return ((at, f'device_ip "{ip}"') for at, ip, valid in subject.device_ips if not valid)


def _same_device_ip(subject: Subject) -> Iterator[Seen]:
    return repeated(((at, ip) for at, ip, valid in subject.device_ips if valid), "device_ip")


def _uneven_device_ips(subject: Subject) -> Iterator[Seen]:
    first = 0
    for place, device in subject.devices:
        count = device.device_ip.count(",") + 1 if device.device_ip else 0
        first = first or count
        if count and count != first:
            yield f"{place}.device_ip", f"{count} addresses, the first device has {first}"


def _bad_backup_ip(subject: Subject) -> Iterator[Seen]:
    for place, device in subject.devices:
        backup = device.extra.get("backup_device_ip")
        if not backup:
            continue
        own = set(device.device_ip.split(","))
        for ip in str(backup).split(","):
            if not is_ip(ip) or ip in own:
                kind = "the device's own address" if ip in own else "no address"
                yield f"{place}.backup_device_ip", f'backup_device_ip "{ip}" is {kind}'


def _bad_ports(subject: Subject) -> Iterator[Seen]:
    holders = [(place, device.extra, _PORTS) for place, device in subject.devices if device.extra]
    holders += [(place, server.extra, _SERVER_PORTS) for place, server in subject.servers]
    for place, extra, names in holders:
        for name in names:
            port = extra.get(name)
            if port is None:
                continue
            number = isinstance(port, str) and port.isascii() and port.isdecimal()
            if not number or not 0 < int(port[:6]) < 65536:
                yield f"{place}.{name}", f"{name} is {port!r}"


def _no_super_device_id(subject: Subject) -> Iterator[Seen]:
    if subject.table.version == "1.2":
        for place, device in subject.devices:
            if device.super_device_id is None:
                yield f"{place}.super_device_id", f"no super_device_id for rank {device.rank}"


def _same_super_device_id(subject: Subject) -> Iterator[Seen]:
    for place, group in subject.instances:
        for pod in group.super_pods:
            members = set(pod.server_ids)
            known = (
                (f"{place}server_list[{at}].device[{index}].super_device_id", number)
                for at, server in enumerate(group.servers)
                if server.server_id in members
                for index, device in enumerate(server.devices)
                if (number := device.super_device_id) is not None and number != UNKNOWN
            )
            yield from repeated(known, "super_device_id")


_IP = (
    "the address of the NPU's RoCE port: `hccn_tool -i N -ip -g` on that server, N being the "
    "device id, or address_N in its /etc/hccn.conf; the administrator assigns it with "
    "`hccn_tool -i N -ip -s`"
)

RULES = (
    Rule("rank.duplicate", _same_rank, "each rank once", HCCL_A2, ERROR),
    Rule("rank.gap", _rank_gaps, "ranks from 0 to N-1 without a gap", HCCL_A2, ERROR),
    Rule(
        "rank.order",
        _rank_order,
        "ranks ascending through server_list, server after server",
        MINDIE_INSTALL,
        WARNING,
    ),
    Rule("device_id.duplicate", _same_device_id, "each device id once a server", HCCL_A2, ERROR),
    Rule("device_ip.missing", _no_needed_device_ip, _IP, HCCL_A2, only(Consumer.HCCL)),
    Rule("device_ip.missing", _no_device_ip, _IP, MINDIE, only(Consumer.MINDIE)),
    Rule("device_ip.missing", _no_device_ip, _IP, MOTOR, only(Consumer.MOTOR)),
    Rule("device_ip.invalid", _bad_device_ip, _IP, HCCL_A2, ERROR),
    Rule("device_ip.duplicate", _same_device_ip, "each address once: " + _IP, HCCL_A2, ERROR),
    Rule(
        "device_ip.uneven",
        _uneven_device_ips,
        "the same number of addresses for every device",
        HCCL_A2,
        ERROR,
    ),
    Rule(
        "backup_device_ip.invalid",
        _bad_backup_ip,
        "the address of the other die of the same card",
        HCCL_A3,
        ERROR,
    ),
    Rule("port.invalid", _bad_ports, "a port from 1 to 65535, as a string", HCCL_A2, ERROR),
    Rule(
        "super_device_id.missing",
        _no_super_device_id,
        "the die's SDID: `npu-smi info -t spod-info -i N -c C`",
        HCCL_A3,
        ERROR,
    ),
    Rule(
        "super_device_id.duplicate",
        _same_super_device_id,
        "each super_device_id once a super pod",
        HCCL_A3,
        ERROR,
    ),
)

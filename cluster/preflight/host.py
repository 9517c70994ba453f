"""Checks of a machine: devices, their network, software, environment, addresses, ports, memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

from cluster.devices.hccn import check_network
from cluster.devices.masks import VISIBLE
from cluster.environment.advice import check_environment
from cluster.findings import Finding, Level
from cluster.preflight.machine import Machine
from cluster.preflight.task import Task
from cluster.specifiers import applies
from cluster.versions import check_stack
from ranktables import Consumer, RankTableError, check_file, read
from ranktables import Finding as TableFinding
from ranktables import check as check_table

_GIB = 2**30
_OWN_ADDRESSES = ("VLLM_HOST_IP", "HCCL_IF_IP", "MIES_CONTAINER_IP", "HOST_IP")
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_RANK_TABLES = ("RANK_TABLE_FILE", "RANKTABLEFILE", "MIES_RANKTABLEFILE")
# Benchmarks' network, which proxies take for their tunnel: no peer is reached through it.
_TUNNEL = ipaddress.ip_network("198.18.0.0/15")
_HCCL_PORTS = 16
_MINDIE_PORTS = (1025, 1026, 1027, 1120, 1121)
_SHM_LEAST = _GIB
_ISSUES = "https://github.com/vllm-project/vllm-ascend/issues"


def devices(machine: Machine, task: Task) -> Iterator[Finding]:
    """Health, use, files and mask of the NPUs; two variables that number them differently."""
    yield from machine.inventory.findings
    by_runtime = machine.environment.get("ASCEND_VISIBLE_DEVICES")
    if by_runtime and machine.inventory.devices:
        yield Finding(
            "device-two-masks",
            Level.NOTE,
            f"ASCEND_VISIBLE_DEVICES={by_runtime}, {len(machine.inventory.devices)} devices here",
            "the container's runtime has applied it, by host ids; a process here counts from 0 and"
            f" is limited by {VISIBLE} alone",
            f"limit processes by {VISIBLE}, with ids from 0 up",
            f"{_ISSUES}/6063",
        )


def network(machine: Machine, task: Task) -> Iterator[Finding]:
    """The NPUs' own network, where it can be asked."""
    if not machine.inventory.visible:
        return
    if machine.nics is None:
        yield Finding(
            "network-unknown",
            Level.WARNING,
            "hccn_tool is not here" + ("" if machine.nic_conf else ", nor is /etc/hccn.conf"),
            "neither links nor addresses of the NPUs can be known: a rank table cannot be made",
            "mount /usr/local/Ascend/driver/tools/hccn_tool and /etc/hccn.conf into the container",
            "https://github.com/gpustack/runtime/pull/28",
        )
    else:
        yield from check_network(machine.nics, machine.nic_conf)


def software(machine: Machine, task: Task) -> Iterator[Finding]:
    yield from check_stack(machine.stack, "ms" if "mindie" in machine.stack else "")


def environment(machine: Machine, task: Task) -> Iterator[Finding]:
    """Variables that are missing, harmful, misspelt or of the wrong type."""
    node = {"device_count": str(len(machine.inventory.devices))}
    if machine.inventory.visible:
        node["devices"] = ",".join(map(str, machine.inventory.mask.ids))
    if task.address:
        node["address"] = task.address
    found = check_environment(machine.stack, machine.environment, task.traits(machine), node)
    yield from (one for one in found if machine.inventory.devices or one.code != "environment-set")


def addresses(machine: Machine, task: Task) -> Iterator[Finding]:
    """Addresses and interfaces that are not this node's, and a name that leads nowhere."""
    for name in _OWN_ADDRESSES:
        address = machine.environment.get(name)
        if address and address not in machine.addresses:
            yield Finding(
                "host-address",
                Level.ERROR,
                f"{name}={address}",
                f"{machine.host} does not have that address; it has {_listed(machine)}",
                f"give each node its own {name}; never copy one node's to the others",
                "https://github.com/allenai/open-instruct/pull/1781",
            )
        elif address and ":" not in address and ipaddress.ip_address(address) in _TUNNEL:
            yield Finding(
                "host-tunnel",
                Level.ERROR,
                f"{name}={address}",
                "it is the address of a proxy's tunnel, which no other node can reach",
                "take the address of the interface that the nodes share",
                f"{_ISSUES}/5949",
            )
    for name in _INTERFACES:
        if (value := machine.environment.get(name)) and not _has_interface(machine, value):
            yield Finding(
                "host-interface",
                Level.ERROR,
                f"{name}={value}",
                f"{machine.host} has {', '.join(machine.interfaces)}",
                "name the interface that holds this node's address",
                f"{_ISSUES}/5949",
            )
    loopback = [one for one in machine.host_addresses if one.startswith("127.") or one == "::1"]
    named = any(machine.environment.get(name) for name in _INTERFACES)
    ranks_meet = machine.inventory.devices and not named
    if ranks_meet and (loopback or not machine.host_addresses):
        to = ", ".join(machine.host_addresses) or "nothing"
        yield Finding(
            "host-name",
            Level.WARNING,
            f"{machine.host} resolves to {to}",
            "ranks of other nodes are told that name or address and cannot connect to it",
            "set HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME, or mend /etc/hosts",
            "https://github.com/vllm-project/vllm/issues/7074",
        )


def ports(machine: Machine, task: Task) -> Iterator[Finding]:
    """Ports with a fixed number that somebody has already."""
    if task.http:
        host, port = task.http
        if port in machine.listeners:
            yield _taken("port-http", port, machine, "the gateway could not listen there",
                         "give another http_port, or 0 for a free one")  # fmt: skip
        if not _is_local(host, machine):
            yield Finding(
                "port-address",
                Level.ERROR,
                f"http_host={host}",
                f"{machine.host} does not have that address; it has {_listed(machine)}",
                "give one of these, 127.0.0.1, or 0.0.0.0 for all",
                "https://github.com/gpustack/gpustack/issues/3894",
            )
    scheduler = machine.environment.get("MS_SCHED_PORT", "")
    if scheduler.isdecimal() and int(scheduler) in machine.listeners:
        yield _taken("port-scheduler", int(scheduler), machine,
                     "MindSpore's scheduler could not listen there, or ranks would meet a stranger",
                     "give this service another MS_SCHED_PORT")  # fmt: skip
    if machine.inventory.devices:
        base = machine.environment.get("HCCL_IF_BASE_PORT", "60000")
        first = int(base) if base.isdecimal() else 60000
        window = machine.listeners.keys() & set(range(first, first + _HCCL_PORTS))
        if window:
            yield _taken("port-hccl", min(window), machine,
                         "HCCL's ranks meet there: another job on this host has the same window",
                         f"give each job its own HCCL_IF_BASE_PORT, {_HCCL_PORTS} ports apart",
                         f"{_ISSUES}/405")  # fmt: skip
    if "mindie" in machine.stack:
        for port in sorted(machine.listeners.keys() & set(_MINDIE_PORTS)):
            yield _taken("port-mindie", port, machine, "MindIE listens there unless told otherwise",
                         "stop the other service, or change the ports in config.json")  # fmt: skip


def memory(machine: Machine, task: Task) -> Iterator[Finding]:
    """Shared memory, and what an engine that was killed left behind."""
    ranks = machine.inventory.devices or any(s.tensor_parallel_size > 1 for s in task.specs)
    if ranks and machine.shm_size is not None and machine.shm_size < _SHM_LEAST:
        yield Finding(
            "host-shm",
            Level.ERROR,
            f"/dev/shm has {machine.shm_size / _GIB:.2f} GiB",
            'ranks talk through it; with less than 1 GiB they abort with "futex facility"',
            "start the container with --shm-size=16g, or --ipc=host",
        )
    if machine.shm_leftovers:
        yield Finding(
            "host-shm-leftover",
            Level.WARNING,
            f"/dev/shm holds {', '.join(machine.shm_leftovers[:3])}",
            "MindIE left it behind and may take it for its own at the next start",
            "remove it when no MindIE runs here",
        )
    for pid, command in machine.leftovers.items():
        yield Finding(
            "host-leftover",
            Level.WARNING,
            f"process {pid} has no parent: {command}",
            "a part of an engine that was killed may hold a device, memory or a port",
            f"look at it and end it: kill {pid}",
            "https://github.com/gpustack/gpustack/issues/2636",
        )
    if not machine.workdir_writable and machine.inventory.devices:
        yield Finding(
            "host-workdir",
            Level.ERROR,
            f"{machine.workdir} is not writable",
            "MindSpore writes schedule.log and kernel_meta into the folder that it starts in",
            "start Ray in a folder that it may write to",
        )


def rank_tables(machine: Machine, task: Task) -> Iterator[Finding]:
    """The rank table that the environment names, where something reads it."""
    files = {machine.environment.get(name) for name in _RANK_TABLES} - {None, ""}
    if not applies("mindie", machine.stack):
        return
    for file in sorted(str(one) for one in files):
        try:
            table, found = read(file)
        except RankTableError as error:
            yield Finding("ranktable-unreadable", Level.ERROR, error.saw, error.why, error.remedy)
            continue
        found += [*check_table(table, Consumer.MINDIE), *check_file(file, Consumer.MINDIE)]
        yield from (of_rank_table(file, one) for one in found)


def of_rank_table(file: str | Path, found: TableFinding) -> Finding:
    """What `ranktables` found, told like all else."""
    place = "" if found.place == str(file) else f", {found.place}"
    return Finding(
        f"ranktable-{found.code}",
        Level(found.level),
        f"{file}{place}: {found.saw}",
        "",
        f"right is {found.right}",
        found.source.partition(" ")[0],
    )


def imports(machine: Machine, task: Task) -> Iterator[Finding]:
    """Our packages have generic names: all must come from one place."""
    folders = {name: found[0] for name, found in machine.modules.items()}
    if len(set(folders.values())) > 1:
        told = ", ".join(f"{name} from {folder or 'nowhere'}" for name, folder in folders.items())
        yield Finding(
            "imports-mixed",
            Level.ERROR,
            told,
            "the names are generic, and another distribution or folder stands first on the path",
            "take that one off PYTHONPATH, or start elsewhere; then pip install rayscend again",
        )


def _taken(
    code: str, port: int, machine: Machine, why: str, remedy: str, link: str = ""
) -> Finding:
    who = machine.listeners[port] or "another user's process"
    return Finding(code, Level.ERROR, f"port {port} is taken by {who}", why, remedy, link)


def _has_interface(machine: Machine, value: str) -> bool:
    """Whether a list of interfaces names one here: names or, for HCCL, prefixes; ^ excludes."""
    if value.startswith("^"):
        return True
    exact = value.startswith("=")
    wanted = value.lstrip("=").split(",")
    return any(
        name == one or (not exact and name.startswith(one))
        for name in machine.interfaces
        for one in wanted
    )


def _is_local(host: str, machine: Machine) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True  # a name: resolving it may take long
    return address.is_unspecified or address.is_loopback or host in machine.addresses


def _listed(machine: Machine) -> str:
    return ", ".join(sorted(machine.addresses)) or "none"

"""One model for every layout of a rank table.

A plain table (HCCL 1.0 and 1.2, MindIE's multi-node variant) is one group without an id; the
global table for prefill-decode separation is several groups with ids. Numbers are numbers here;
files hold them as strings, because HCCL and MindIE read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = -1
"""Stands for a number that the file lacks or spells in a way that no consumer reads."""

COORDINATORS, CONTROLLERS = "0", "1"
"""Ids of the global table's groups that hold no devices; every other id is an instance."""


@dataclass(frozen=True, slots=True)
class Device:
    """One NPU, which is one rank. On A3 that is one die, half a card.

    `device_id` is the physical id on its server, `device_ip` the address of its RoCE port (several
    are separated by commas), `super_device_id` its id within the super pod (None: not stated).
    `extra` holds the fields that only pass through, such as `device_port`.
    """

    device_id: int
    rank: int
    device_ip: str = ""
    super_device_id: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """One machine with its devices, in the file's order.

    `container_ip` is the address of the pod or container (of the machine itself where the engine
    runs on it directly); the global table calls it `server_ip`.
    """

    server_id: str
    devices: tuple[Device, ...] = ()
    container_ip: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuperPod:
    """The servers, by id, whose devices reach each other over HCCS."""

    super_pod_id: str
    server_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Servers that belong together.

    `server_count` is what the file states (None: nothing), `group_id` names the group in a global
    table (None: the table is a plain one).
    """

    servers: tuple[Server, ...]
    super_pods: tuple[SuperPod, ...] = ()
    server_count: int | None = None
    group_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds_devices(self) -> bool:
        return self.group_id not in (COORDINATORS, CONTROLLERS)

    @property
    def device_count(self) -> int:
        return sum(len(server.devices) for server in self.servers)

    @property
    def rank_domains(self) -> tuple[tuple[Server, ...], ...]:
        """The sets of servers over which ranks count from 0 to N-1.

        Normally all servers are one set. A global table may put several instances of one server
        each into one group (`ParseGroupServerNodes` of MindIE-Motor reads it so); then each server
        counts for itself.
        """
        starts = sum(any(device.rank == 0 for device in server.devices) for server in self.servers)
        if self.group_id is not None and starts > 1:
            return tuple((server,) for server in self.servers)
        return (self.servers,)


@dataclass(frozen=True, slots=True)
class RankTable:
    """A rank table. `status` is "completed" once whoever writes it has finished."""

    version: str
    groups: tuple[Group, ...]
    status: str = "completed"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_global(self) -> bool:
        return not self.groups or self.groups[0].group_id is not None

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers that hold devices, in the file's order."""
        return tuple(
            server for group in self.groups if group.holds_devices for server in group.servers
        )

    @property
    def device_count(self) -> int:
        return sum(len(server.devices) for server in self.servers)

"""A rule, what it looks at, and the shapes that many rules share."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from ranktables.findings import Level
from ranktables.table import Device, Group, RankTable, Server


class Consumer(StrEnum):
    """Who is to read the table: HCCL (and MindSpore's rank-table start), MindIE, Motor."""

    HCCL = "hccl"
    MINDIE = "mindie"
    MOTOR = "motor"


class Chip(StrEnum):
    """The generation of the NPUs, as far as rank tables differ."""

    A2 = "A2"
    A3 = "A3"
    ASCEND_310P = "310P"


Seen: TypeAlias = tuple[str, str]
"""The place of a fault and what was seen there."""

Levels: TypeAlias = Mapping[Consumer, Level]

ERROR: Levels = dict.fromkeys(Consumer, Level.ERROR)
WARNING: Levels = dict.fromkeys(Consumer, Level.WARNING)


def only(consumer: Consumer, level: Level = Level.ERROR) -> Levels:
    return {consumer: level}


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that holds for every good table.

    `find` yields the places where it does not, `right` says what should stand there, `source` who
    says so, `levels` how bad it is for each consumer (absent: the consumer does not mind).
    """

    code: str
    find: Callable[[Subject], Iterable[Seen]]
    right: str
    source: str
    levels: Levels


@dataclass(frozen=True)
class Subject:
    """The table under check, its servers and devices with their places; `chip` if it is known."""

    table: RankTable
    chip: Chip | None = None

    @cached_property
    def groups(self) -> list[tuple[str, Group]]:
        """All groups, each with the prefix of places inside it."""
        if not self.table.is_global:
            return [("", group) for group in self.table.groups]
        groups = enumerate(self.table.groups)
        return [(f"server_group_list[{index}].", group) for index, group in groups]

    @cached_property
    def instances(self) -> list[tuple[str, Group]]:
        """The groups whose servers hold devices."""
        return [(place, group) for place, group in self.groups if group.holds_devices]

    @cached_property
    def servers(self) -> list[tuple[str, Server]]:
        return [
            (f"{place}server_list[{index}]", server)
            for place, group in self.instances
            for index, server in enumerate(group.servers)
        ]

    @cached_property
    def devices(self) -> list[tuple[str, Device]]:
        return [
            (f"{place}.device[{index}]", device)
            for place, server in self.servers
            for index, device in enumerate(server.devices)
        ]

    @cached_property
    def device_ips(self) -> list[tuple[str, str, bool]]:
        """Every address of every device that has one, and whether it is valid."""
        return [
            (f"{place}.device_ip", ip, is_ip(ip))
            for place, device in self.devices
            if device.device_ip
            for ip in device.device_ip.split(",")
        ]


def repeated(items: Iterable[tuple[str, object]], name: str) -> Iterator[Seen]:
    """Those items whose value stands at an earlier place already."""
    first: dict[object, str] = {}
    for place, value in items:
        if (earlier := first.setdefault(value, place)) != place:
            yield place, f'{name} "{value}" is also at {earlier}'


def outside(
    name: str,
    numbers: Callable[[Subject], Iterable[tuple[str, int]]],
    low: int,
    high: int,
) -> Callable[[Subject], Iterator[Seen]]:
    """A finder of numbers that are not in [low, high]. Negative ones are unknown: `read` told."""

    def find(subject: Subject) -> Iterator[Seen]:
        for place, number in numbers(subject):
            if number >= 0 and not low <= number <= high:
                yield place, f"{name} {number}"

    return find


def is_ip(text: str) -> bool:
    """Whether `text` is an address that a device or host can have."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast)

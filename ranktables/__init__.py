"""Rank tables of Huawei Ascend clusters: read, check, build, convert, merge, write.

    table, findings = read("hccl.json")
    findings += check(table, Consumer.MINDIE) + check_file("hccl.json", Consumer.MINDIE)
    write(convert(table, Variant.MINDIE, container_ips=addresses), "mindie.json")

A rank table says which device of which server is which rank, and at which address the others
reach it. This package knows the layouts and what their consumers demand; it is pure Python and
imports nothing of Rayscend.
"""

from __future__ import annotations

from ranktables.building import Node, build, merge
from ranktables.checking import check, check_file
from ranktables.converting import Variant, convert, global_table
from ranktables.findings import Finding, Level, RankTableError, errors
from ranktables.reading import OPERATOR_FILE, parse, read, wait_until_complete
from ranktables.rules import Chip, Consumer
from ranktables.table import UNKNOWN, Device, Group, RankTable, Server, SuperPod
from ranktables.writing import render, write

__all__ = [
    "OPERATOR_FILE",
    "UNKNOWN",
    "Chip",
    "Consumer",
    "Device",
    "Finding",
    "Group",
    "Level",
    "Node",
    "RankTable",
    "RankTableError",
    "Server",
    "SuperPod",
    "Variant",
    "build",
    "check",
    "check_file",
    "convert",
    "errors",
    "global_table",
    "merge",
    "parse",
    "read",
    "render",
    "wait_until_complete",
    "write",
]

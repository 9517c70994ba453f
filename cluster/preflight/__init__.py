"""Everything that can be known to go wrong before an engine starts: checks of machines and models.

A check takes what a machine tells (`machine.look`) and what is to be served, and yields findings;
it runs nothing and imports no Ray. `survey.py` alone asks other nodes. docs/checks.md says which
reported problem is caught by which check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import psutil

from cluster.findings import Finding, Level
from cluster.preflight import host, models
from cluster.preflight.machine import Machine, look
from cluster.preflight.nodes import Node, compare
from cluster.preflight.task import Task
from cluster.specifiers import Stack

__all__ = [
    "CHECKS",
    "Machine",
    "Node",
    "Task",
    "compare",
    "examine",
    "judged_stack",
    "look",
    "preflight",
    "worst_first",
]

CHECKS: tuple[Callable[[Machine, Task], Iterable[Finding]], ...] = (
    host.devices,
    host.network,
    host.software,
    host.environment,
    host.addresses,
    host.ports,
    host.memory,
    host.rank_tables,
    host.imports,
    models.models,
)


def preflight(machine: Machine, task: Task) -> list[Finding]:
    """All that the checks find on one machine, the worst first."""
    return worst_first(found for check in CHECKS for found in check(machine, task))


def examine(task: Task, told: Stack) -> tuple[Machine, list[Finding]]:
    """Look at this machine and judge it, as if `told` were installed."""
    machine = look(_rays_environment(), python=task.python, models=task.folders)
    machine = replace(machine, stack=judged_stack(machine.stack, told))
    return machine, preflight(machine, task)


def _rays_environment() -> dict[str, str] | None:
    """What Ray was started with, inside a task; None elsewhere.

    A task's own environment is no measure: without an NPU asked for, Ray empties its device mask.
    """
    parent = psutil.Process().parent()
    try:
        return parent.environ() if parent and parent.name() == "raylet" else None
    except psutil.Error:
        return None


def judged_stack(installed: Stack, told: Stack) -> dict[str, str]:
    """What is installed, with what was told instead. A stack is that of one engine."""
    stack = {**installed, **told}
    if "mindie" in told and "vllm-mindspore" not in told:
        stack = {name: one for name, one in stack.items() if name not in ("vllm", "vllm-mindspore")}
    return stack


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: list(Level).index(finding.level))

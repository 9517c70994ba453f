"""`rayscend doctor`: whether this machine, or every node of a cluster, can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from cluster.findings import Finding
from cluster.preflight import CHECKS, Machine, Node, Task, compare, examine, worst_first
from serve_apps.cli.arguments import STACK, read_config, read_stack, spec_of
from serve_apps.cli.report import Report, progress, reports


@click.command(short_help="What would make a start fail, here or on every node.")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE ... | FILE]")
@click.option("--address", help="Ray's address, HOST:PORT: every node is asked, side by side.")
@STACK
@reports
def doctor(words: Sequence[str], address: str | None, stack: Sequence[str]) -> Report:
    """Look for what would make a start fail, on this machine or on every node of a cluster.

    Devices and their network, versions, environment, addresses, ports, memory, rank tables, and
    where our own packages come from.

    With key=value or a file as for `serve run app:deploy`, its models are judged on this machine
    too. Nothing is changed or started, and without --address Ray is not needed.
    """
    task, told = Task(), read_stack(stack)
    if words:
        config = read_config(words)
        specs = tuple(spec_of(model) for model in config.models)
        task = Task(specs, (config.http_host, config.http_port))
    if address:
        return _of_cluster(address, task, told)
    machine, findings = examine(task, told)
    text = str(machine)
    if not findings:
        text += f"\nNothing is wrong: {len(CHECKS)} groups of checks found nothing."
    return Report(text, {"machine": _shown(machine)}, findings)


def _of_cluster(address: str, task: Task, told: dict[str, str]) -> Report:
    from cluster.preflight.survey import survey  # imports Ray

    # The gateway of a running application has its port already.
    nodes = survey(address, replace(task, http=None), told, progress)
    findings = worst_first(
        [*compare(nodes), *(_named(one, node) for node in nodes for one in node.findings)]
    )
    lines = [f"{node.address:<16} {node.machine or 'no answer'}" for node in nodes]
    if not findings:
        lines.append(f"Nothing is wrong on {len(nodes)} nodes, nor between them.")
    data = [
        {
            "node_id": node.node_id,
            "address": node.address,
            "is_head": node.is_head,
            "total": node.total,
            "free": node.free,
            "machine": _shown(node.machine) if node.machine else None,
        }
        for node in nodes
    ]
    return Report("\n".join(lines), {"nodes": data}, findings)


def _named(finding: Finding, node: Node) -> Finding:
    return replace(finding, saw=f"{node.address}: {finding.saw}")


def _shown(machine: Machine) -> dict[str, object]:
    """What may be printed of a machine: its environment may hold secrets."""
    return {
        "host": machine.host,
        "devices": machine.inventory.devices,
        "visible": machine.inventory.mask.ids,
        "interfaces": machine.interfaces,
        "stack": machine.stack,
        "free_memory": machine.free_memory,
        "modules": machine.modules,
    }

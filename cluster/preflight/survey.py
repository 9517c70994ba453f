"""Ask every node of a Ray cluster to look at itself: one task on each, all at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.attach import attach
from cluster.preflight import examine, imports
from cluster.preflight.nodes import Node
from cluster.preflight.task import Task
from cluster.specifiers import Stack

_LIMIT_S = 120.0


def survey(
    address: str,
    task: Task,
    told: Stack,
    say: Callable[[str], None] = lambda line: None,
    limit_s: float = _LIMIT_S,
) -> tuple[Node, ...]:
    """Every node that is alive, with what it tells and finds within `limit_s` seconds.

    `task` is judged on every node, as if `told` were installed; `say` is told the progress.

    Raises:
        CoordinatorError: no Ray cluster answers at `address`.
    """
    attach(address)
    # By value: a node whose `cluster` is somebody else's still tells what it imports.
    ray.cloudpickle.register_pickle_by_value(imports)
    nodes = {node.node_id: node for node in _alive()}
    say(f"{len(nodes)} nodes in the cluster; asking each")
    looks = {
        _pinned(examine, one).remote(replace(task, address=node.address), told): one
        for one, node in nodes.items()
    }
    modules = {one: _pinned(imports.imported, one).remote() for one in nodes}
    waiting = list(looks)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=limit_s)
        if not done:
            break
        node = _told(nodes[looks[done[0]]], done[0], modules)
        nodes[node.node_id] = node
        say(f"{len(nodes) - len(waiting)}/{len(nodes)} {node.machine or node.address}")
    late = f"nothing within {limit_s:g} s: its CPUs or its Ray are stuck"
    for ref in waiting:
        ray.cancel(ref, force=True)
        nodes[looks[ref]] = replace(nodes[looks[ref]], why_silent=late)
    return tuple(nodes.values())


def _told(node: Node, ref: Any, modules: dict[str, Any]) -> Node:
    try:
        machine, findings = ray.get(ref)
    except Exception as error:  # whatever another node's code raises
        why = " ".join(str(getattr(error, "cause", None) or error).split())[-200:]
        return replace(node, why_silent=f"{why}; it imports {_imports(modules[node.node_id])}")
    return replace(node, machine=machine, findings=tuple(findings))


def _imports(ref: Any) -> str:
    try:
        found = ray.get(ref, timeout=5)
    except Exception:  # the node cannot run anything
        return "unknown"
    return ", ".join(f"{name} from {folder or 'nowhere'}" for name, (folder, _, _) in found.items())


def _alive() -> list[Node]:
    free = ray._private.state.available_resources_per_node()
    return [
        Node(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            is_head="node:__internal_head__" in node["Resources"],
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _pinned(function: Callable[..., Any], node_id: str) -> Any:
    return ray.remote(function).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    )

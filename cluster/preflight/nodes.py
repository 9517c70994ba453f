"""Nodes side by side: what has to be the same on all of them, and what must differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cluster.devices.hccn import check_tls
from cluster.environment import VARIABLES, Scope
from cluster.findings import Finding, Level
from cluster.preflight.machine import Machine

_STACK = ("vllm-mindspore", "vllm", "mindspore", "mindformers", "msadapter", "ray", "python")
_SOFTWARE = ("cann", "driver", "transformers")
_NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Node:
    """A node of a Ray cluster: what Ray says of it, and what it tells itself (None: nothing).

    `total` and `free` are Ray's resources, `findings` are those of its own checks, `why_silent` is
    why it does not tell anything.
    """

    node_id: str
    address: str
    is_head: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()
    why_silent: str = ""


def compare(nodes: tuple[Node, ...]) -> list[Finding]:
    """What is wrong between the nodes of a cluster."""
    return [
        *_silent(nodes),
        *_differing(nodes),
        *_tls(nodes),
        *_addresses(nodes),
        *(found for node in nodes for found in _resources(node)),
        *_head(nodes),
    ]


def _silent(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    for node in nodes:
        if node.machine is None:
            yield Finding(
                "node-silent",
                Level.ERROR,
                f"{node.address} did not answer: {node.why_silent}",
                "no replica can be started there",
                "see its raylet's log; install the same Rayscend on every node",
            )


def _differing(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    """Facts of which every node has to tell the same."""
    facts: tuple[tuple[str, Level, Callable[[Machine], Mapping[str, str]], str, str], ...] = (
        (
            "node-imports",
            Level.ERROR,
            lambda machine: {
                name: f"{digest} of {owner or 'a folder'}" if digest else ""
                for name, (_, owner, digest) in machine.modules.items()
            },
            "processes of one application would run different code",
            "install the same Rayscend on every node and take other copies off the path",
        ),
        (
            "node-stack",
            Level.ERROR,
            lambda machine: {name: machine.stack.get(name, "not there") for name in _STACK},
            "ranks of one replica need the same engine",
            "install the same list of requirements/ on every node",
        ),
        (
            "node-software",
            Level.WARNING,
            lambda machine: {name: machine.stack.get(name, "not there") for name in _SOFTWARE},
            "ranks may answer differently, or not start on one of the nodes",
            "install the same versions on every node",
        ),
        (
            "node-environment",
            Level.WARNING,
            _shared_variables,
            "it has to be the same on every node, and Ray does not copy it",
            "set it on every node before its Ray starts",
        ),
        (
            "node-model",
            Level.ERROR,
            lambda machine: {
                f"{folder}/{name}": digest
                for folder, files in machine.model_files.items()
                for name, digest in files.items()
            },
            "ranks with other settings than their peers can hang",
            "copy the model's folder from one node to all, at the same path",
        ),
    )
    machines = {node.address: node.machine for node in nodes if node.machine}
    for code, level, fact, why, remedy in facts:
        told = {address: fact(machine) for address, machine in machines.items()}
        for name in dict.fromkeys(name for one in told.values() for name in one):
            values = defaultdict(list)
            for address, one in told.items():
                values[one.get(name) or "not there"].append(address)
            if len(values) > 1:
                saw = "; ".join(f"{value} on {', '.join(on)}" for value, on in values.items())
                yield Finding(code, level, f"{name}: {saw}", why, remedy)


def _shared_variables(machine: Machine) -> dict[str, str]:
    return {
        name: value
        for name, value in machine.environment.items()
        if name in VARIABLES and VARIABLES[name].scope is Scope.SHARED
    }


def _tls(nodes: tuple[Node, ...]) -> list[Finding]:
    return check_tls(
        {
            f"{node.address} NPU {device}": told.get("tls")
            for node in nodes
            if node.machine
            for device, told in (node.machine.nics or {}).items()
        }
    )


def _addresses(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    """Addresses are a node's own: Ray's of every node, and the NPUs' over all nodes."""
    held = defaultdict(list)
    for node in nodes:
        held[node.address].append(f"node {node.node_id[:8]}")
        for device, told in ((node.machine and node.machine.nics) or {}).items():
            if address := told.get("address"):
                held[address].append(f"{node.address} NPU {device}")
    for address, holders in held.items():
        if len(holders) > 1:
            yield Finding(
                "node-address",
                Level.ERROR,
                f"{address} belongs to {' and '.join(holders)}",
                "each needs an address of its own to be reached by",
                "start Ray with --node-ip-address; give NPUs theirs with hccn_tool",
                "https://github.com/vllm-project/vllm/pull/43095",
            )


def _resources(node: Node) -> Iterator[Finding]:
    """What Ray believes that a node has, against what it has."""
    if node.machine is None or not node.machine.inventory.devices:
        return
    visible, npus = len(node.machine.inventory.visible), node.total.get("NPU", 0)
    if node.total.get("GPU"):
        yield Finding(
            "ray-gpu",
            Level.ERROR,
            f"{node.address} offers GPU: {node.total['GPU']:g} and has {visible} NPUs",
            "what asks for NPU finds none, and what asks for GPU finds no GPU",
            f"start Ray without --num-gpus, with --resources='{{\"NPU\": {visible}}}'",
            "https://github.com/vllm-project/vllm-ascend/issues/3114",
        )
    if npus != visible:
        yield Finding(
            "ray-npu",
            Level.ERROR,
            f"{node.address} offers NPU: {npus:g} and has {visible} visible",
            "Ray counts one-digit device files only, and not what Kubernetes calls"
            " huawei.com/Ascend910",
            f"start Ray with --resources='{{\"NPU\": {visible}}}' (KubeRay: rayStartParams)",
            "https://github.com/ray-project/kuberay/pull/5071",
        )
    if npus and node.free.get("NPU", 0) < npus:
        yield Finding(
            "ray-busy",
            Level.NOTE,
            f"{node.address} has {node.free.get('NPU', 0):g} of {npus:g} NPUs free in Ray",
            "replicas or placement groups hold the others",
            "ray list placement-groups shows whose they are; remove what nobody uses",
            "https://github.com/vllm-project/vllm-ascend/issues/8306",
        )
    if node.machine.environment.get(_NOSET) != "1":
        yield Finding(
            "ray-masks",
            Level.WARNING,
            f"{_NOSET} is not set where Ray runs on {node.address}",
            "Ray then hides all but one device from each rank, and vLLM looks for it under its old"
            " number",
            f"export {_NOSET}=1 on every node, before its Ray starts",
            "https://github.com/vllm-project/vllm-ascend/issues/167",
        )


def _head(nodes: tuple[Node, ...]) -> Iterator[Finding]:
    npus = [node for node in nodes if node.machine and node.machine.inventory.devices]
    if npus and not any(node.is_head for node in npus):
        yield Finding(
            "ray-head",
            Level.NOTE,
            "Ray's head has no NPU",
            "an engine over several nodes has to start on a node that has one",
            "start engines on a node with NPUs; a head without them may do all else",
            "https://github.com/vllm-project/vllm/issues/3190",
        )

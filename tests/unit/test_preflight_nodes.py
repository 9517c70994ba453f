"""Nodes side by side: what differs and must not is told with the nodes that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.preflight import Machine, Node, compare
from tests.unit.test_preflight import NIC, inventory

NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Node, ...]:
    """Two nodes with eight NPUs each, alike in all that matters."""
    return tuple(
        Node(
            node_id=f"{number}" * 8,
            address=f"10.0.0.{number}",
            is_head=number == 1,
            total={"CPU": 64, "NPU": 8},
            free={"CPU": 64, "NPU": 8},
            machine=Machine(
                host=f"n{number}",
                environment={NOSET: "1", "VLLM_HOST_IP": f"10.0.0.{number}"},
                inventory=inventory(tmp_path / str(number)),
                nics={0: NIC | {"address": f"29.0.0.{number}"}},
                stack={"mindspore": "2.7.1", "driver": "25.3.RC1"},
                modules={"cluster": ("/opt/rayscend", "rayscend 0.1.0", "0a1b")},
                model_files={"/models/m": {"config.json": "77"}},
            ),
        )
        for number in (1, 2)
    )


def test_nodes_that_are_alike_have_no_findings(nodes: tuple[Node, ...]) -> None:
    assert compare(nodes) == []


# Changes of the second node, changes of its machine, what is found
DIFFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "another Rayscend": (
        {},
        {"modules": {"cluster": ("/srv", "cluster 2.0", "ffff")}},
        ["node-imports"],
    ),
    "another MindSpore": (
        {},
        {"stack": {"mindspore": "2.7.0", "driver": "25.3.RC1"}},
        ["node-stack"],
    ),
    "another driver": (
        {},
        {"stack": {"mindspore": "2.7.1", "driver": "24.1.0"}},
        ["node-software"],
    ),
    "a variable on one node only": (
        {},
        {"environment": {NOSET: "1", "VLLM_MS_MODEL_BACKEND": "native"}},
        ["node-environment"],
    ),
    "a model that was not copied": ({}, {"model_files": {"/models/m": {}}}, ["node-model"]),
    "TLS on one node": (
        {},
        {"nics": {0: NIC | {"address": "29.0.0.2", "tls": "1"}}},
        ["network-tls"],
    ),
    "one address for two NPUs": (
        {},
        {"nics": {0: NIC | {"address": "29.0.0.1"}}},
        ["node-address"],
    ),
    "one address for two nodes": ({"address": "10.0.0.1"}, {}, ["node-address"]),
    "GPUs that are none": ({"total": {"GPU": 8, "NPU": 8}}, {}, ["ray-gpu"]),
    "Ray counts 10 of 16": ({"total": {"NPU": 10}, "free": {"NPU": 10}}, {}, ["ray-npu"]),
    "devices that a group holds": ({"free": {"NPU": 2}}, {}, ["ray-busy"]),
    "Ray masks devices": ({}, {"environment": {NOSET: "0"}}, ["node-environment", "ray-masks"]),
}


@pytest.mark.parametrize(("node", "machine", "found"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_found(
    nodes: tuple[Node, ...], node: dict[str, Any], machine: dict[str, Any], found: list[str]
) -> None:
    first, second = nodes
    assert second.machine
    second = replace(second, machine=replace(second.machine, **machine), **node)
    findings = compare((first, second))
    assert [finding.code for finding in findings] == found
    assert second.address in findings[0].saw


def test_a_node_that_does_not_answer_is_told_with_the_cause(nodes: tuple[Node, ...]) -> None:
    silent = replace(nodes[1], machine=None, why_silent="No module named 'cluster'")
    (finding,) = compare((nodes[0], silent))
    assert finding.code == "node-silent"
    assert "10.0.0.2" in finding.saw
    assert "No module named" in finding.saw


def test_a_head_without_npus_is_noted(nodes: tuple[Node, ...]) -> None:
    head = replace(nodes[0], machine=Machine(host="head"), total={"CPU": 8})
    assert "ray-head" in {finding.code for finding in compare((head, nodes[1]))}

"""`rayscend doctor --address` and `rayscend status`, typed against a running cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import ray

from cluster.preflight import Task
from cluster.preflight.survey import survey
from tests.cluster.harness import Cluster

ROOT = Path(__file__).parents[2]


def rayscend(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serve_apps.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def test_every_node_is_asked_and_told_side_by_side(cluster: Cluster) -> None:
    ended = rayscend("doctor", "engine=simulated", "--address", address(), "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1/1" in ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    (node,) = told["nodes"]
    assert node["is_head"]
    assert node["total"]["CPU"] == 16
    assert set(node["machine"]["modules"]) == {"app", "cluster", "serve_apps", "ranktables"}
    assert node["machine"]["stack"]["ray"] == ray.__version__


def test_nodes_are_judged_by_the_environment_that_their_ray_was_started_with(
    cluster: Cluster,
) -> None:
    (node,) = survey(address(), Task(), {})
    assert node.machine
    # Ray gives tasks another one, and empties the device mask of those that ask for no NPU.
    for name in ("OMP_NUM_THREADS", "ASCEND_RT_VISIBLE_DEVICES", "PATH"):
        assert node.machine.environment.get(name) == os.environ.get(name)


def test_a_fault_on_a_node_is_told_with_the_node(cluster: Cluster) -> None:
    missing = f"/no/such/{uuid.uuid4().hex}"
    ended = rayscend("doctor", f"model={missing}", "--address", address())
    assert ended.returncode == 1
    (node,) = ray.nodes()
    assert f"{node['NodeManagerAddress']}: model=" in ended.stdout
    assert "[model-refused]" in ended.stdout


def test_the_directory_is_shown_as_a_table_and_as_json(cluster: Cluster) -> None:
    cluster.deploy(engine="simulated", served_model_name="shown")
    ended = rayscend("status", "--address", address())
    assert ended.returncode == 0, ended.stderr
    head, row = ended.stdout.strip().splitlines()
    assert head.split()[:3] == ["MODEL", "REPLICA", "STATE"]
    assert row.split()[0] == "shown"
    picture = json.loads(rayscend("status", "--address", address(), "--json").stdout)["picture"]
    (replica,) = picture["replicas"]
    assert (replica["model"], replica["state"]) == ("shown", "ready")
    assert set(replica["ports"]) == {"http"}


def test_an_address_where_no_cluster_is_ends_with_one_line() -> None:
    for command in ("status", "doctor"):
        ended = rayscend(command, "--address", "127.0.0.1:1")
        assert ended.returncode == 1
        assert ended.stderr.strip().splitlines()[-1].startswith("no Ray cluster answers at")

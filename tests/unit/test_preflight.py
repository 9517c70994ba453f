"""Each check of a machine and of its models finds its fault, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.devices.detect import COMPANIONS, Inventory, detect
from cluster.devices.hccn import Nic
from cluster.engines import EngineSpec
from cluster.findings import Level
from cluster.preflight import CHECKS, Machine, Task, judged_stack, look, preflight

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = Path(__file__).parents[2] / "ranktables" / "samples"

STACK = {
    "vllm-mindspore": "0.5.1",
    "vllm": "0.11.0",
    "mindspore": "2.7.1",
    "mindformers": "1.7.0",
    "msadapter": "0.0.5",
    "python": "3.11.7",
}
# What stands on a node whose engine gets the advised environment.
GOOD = {
    "ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
    "RUN_MODE": "predict",
    "DEVICE_NUM_PER_NODE": "8",
    "HCCL_SOCKET_IFNAME": "eth0",
}
NIC = {"link": "UP", "health": "Success", "address": "29.0.0.1", "tls": "0"}
MINDIE = {
    **GOOD,
    "MINDIE_LLM_FRAMEWORK_BACKEND": "MS",
    "MIES_SERVICE_MONITOR_MODE": "1",
    "OMP_NUM_THREADS": "1",
}


def inventory(root: Path, fixture: str = "a2_64gb", count: int = 8) -> Inventory:
    (root / "dev").mkdir(parents=True)
    for name in (*COMPANIONS, *(f"davinci{number}" for number in range(count))):
        (root / "dev" / name).touch()

    def npu_smi(command: Sequence[str]) -> str:
        query = "map" if "-m" in command else "info"
        return (FIXTURES / "npu" / fixture / f"{query}.txt").read_text("utf-8")

    return detect(root=root, run=npu_smi)


@pytest.fixture
def npus(tmp_path: Path) -> Machine:
    """A node with eight NPUs in good order."""
    return Machine(
        host="n0",
        environment=GOOD,
        interfaces={"lo": ("127.0.0.1",), "eth0": ("10.0.0.1",), "tun0": ("198.18.0.1",)},
        host_addresses=("10.0.0.1",),
        inventory=inventory(tmp_path),
        nics={number: NIC | {"address": f"29.0.0.{number + 1}"} for number in range(8)},
        stack=STACK,
        free_memory=64 << 30,
        shm_size=16 << 30,
        modules=dict.fromkeys(("app", "cluster"), ("/opt/rayscend", "rayscend 0.1.0", "0a1b")),
    )


CPU = Machine(host="c0", interfaces={"lo": ("127.0.0.1",)}, free_memory=8 << 30)


def codes(machine: Machine, task: Task | None = None) -> list[str]:
    return [finding.code for finding in preflight(machine, task or Task())]


def test_machines_in_good_order_have_no_findings(npus: Machine) -> None:
    assert codes(npus) == []
    assert codes(CPU) == []


# What is changed on a good node with NPUs: the codes that are found then.
FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no hccn_tool in the container": ({"nics": None}, ["network-unknown"]),
    "a placeholder address": ({"nics": {0: NIC | {"address": "-.-.-.-"}}}, ["network-address"]),
    "a stale hccn.conf": (
        {"nics": {0: NIC}, "nic_conf": {0: Nic("29.0.0.9")}},
        ["network-stale-conf"],
    ),
    "a link that is down": ({"nics": {0: NIC | {"link": "DOWN"}}}, ["network-link"]),
    "another vLLM": ({"stack": STACK | {"vllm": "0.9.1"}}, ["versions-vllm"]),
    "torch beside msadapter": ({"stack": STACK | {"torch": "2.5.1"}}, ["versions-torch"]),
    "MindIE without its backend": (
        {"stack": {"mindie": "3.0.0"}, "environment": MINDIE},
        ["versions-mindie"],
    ),
    "the guide's yaml variable": (
        {"environment": GOOD | {"MINDFORMERS_MODEL_CONFIG": "/a.yaml"}},
        ["environment-unset"],
    ),
    "16 devices by default": (
        {"environment": {k: v for k, v in GOOD.items() if k != "DEVICE_NUM_PER_NODE"}},
        ["environment-set"],
    ),
    "a misspelt backend": (
        {"environment": GOOD | {"VLLM_MS_MODEL_BACKEND": "mindformer"}},
        ["environment-value"],
    ),
    "a misspelt name": (
        {"environment": GOOD | {"VLLM_MS_MODEL_BACKENDS": "native"}},
        ["environment-name"],
    ),
    "another node's address": (
        {"environment": GOOD | {"VLLM_HOST_IP": "10.0.0.2"}},
        ["host-address"],
    ),
    "a tunnel's address": ({"environment": GOOD | {"HCCL_IF_IP": "198.18.0.1"}}, ["host-tunnel"]),
    "an interface that is not here": (
        {"environment": GOOD | {"GLOO_SOCKET_IFNAME": "eth9"}},
        ["host-interface"],
    ),
    "HCCL's prefixes and exclusions": (
        {"environment": GOOD | {"HCCL_SOCKET_IFNAME": "eth", "TP_SOCKET_IFNAME": "^docker"}},
        [],
    ),
    "a name that is loopback": (
        {
            "host_addresses": ("127.0.1.1",),
            "environment": {k: v for k, v in GOOD.items() if k != "HCCL_SOCKET_IFNAME"},
        },
        ["host-name"],
    ),
    "the container runtime's mask": (
        {"environment": GOOD | {"ASCEND_VISIBLE_DEVICES": "4,5"}},
        ["device-two-masks"],
    ),
    "a job in HCCL's window": ({"listeners": {60000: "python"}}, ["port-hccl"]),
    "a job in a window of one's own": (
        {"listeners": {60132: ""}, "environment": GOOD | {"HCCL_IF_BASE_PORT": "60128"}},
        ["port-hccl"],
    ),
    "a second MindIE": (
        {"listeners": {1025: "mindie"}, "stack": {"mindie": "2.3.0"}, "environment": MINDIE},
        ["port-mindie"],
    ),
    "a scheduler's port that is taken": (
        {
            "listeners": {8119: "python"},
            "stack": {"mindie": "2.3.0"},
            "environment": MINDIE | {"MS_SCHED_PORT": "8119"},
        },
        ["port-scheduler"],
    ),
    "Docker's 64 MB": ({"shm_size": 64 << 20}, ["host-shm"]),
    "MindIE's residue": ({"shm_leftovers": ("a_llm_backend_0",)}, ["host-shm-leftover"]),
    "an orphan": ({"leftovers": {42: "python scheduler_init.py"}}, ["host-leftover"]),
    "a read-only folder": ({"workdir": "/", "workdir_writable": False}, ["host-workdir"]),
    "another cluster package": (
        {"modules": {"app": ("/opt/rayscend", "", "0a"), "cluster": ("/srv", "", "0b")}},
        ["imports-mixed"],
    ),
    **{
        f"MindIE without {name}": (
            {
                "stack": {"mindie": "2.3.0"},
                "environment": {key: value for key, value in MINDIE.items() if key != name},
            },
            ["environment-set"],
        )
        for name in ("MIES_SERVICE_MONITOR_MODE", "OMP_NUM_THREADS", "ASCEND_HOME_PATH")
    },
    "a rank table for nobody": (
        {"stack": {"mindie": "2.3.0"}, "environment": MINDIE | {"RANK_TABLE_FILE": "/no/such"}},
        ["ranktable-unreadable"],
    ),
}


@pytest.mark.parametrize(("changes", "found"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_machine_is_found(
    npus: Machine, changes: dict[str, Any], found: list[str]
) -> None:
    assert codes(replace(npus, **changes)) == found


@pytest.mark.parametrize("fixture", ["sick_card", "card_in_use"])
def test_what_is_wrong_with_devices_is_among_the_findings(
    npus: Machine, tmp_path: Path, fixture: str
) -> None:
    found = codes(replace(npus, inventory=inventory(tmp_path / fixture, fixture)))
    assert set(found) & {"device-health", "device-in-use"}


def test_the_rank_table_that_mindie_would_read_is_checked(npus: Machine, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    shutil.copy(SAMPLES / "merge_hccl.json", table)
    table.chmod(0o640)
    environment = MINDIE | {"RANK_TABLE_FILE": str(table), "RANKTABLEFILE": str(table)}
    mindie = replace(npus, stack={"mindie": "2.3.0"}, environment=environment)
    assert {"ranktable-field.not_string", "ranktable-container_ip.missing"} <= set(codes(mindie))
    assert codes(replace(npus, environment=GOOD | {"RANK_TABLE_FILE": str(table)})) == [
        "environment-unset"
    ], "vllm-mindspore reads none"


HTTP: dict[str, tuple[tuple[str, int], list[str]]] = {
    "free": (("127.0.0.1", 8001), []),
    "all addresses": (("0.0.0.0", 8001), []),
    "taken": (("127.0.0.1", 8000), ["port-http"]),
    "of another host": (("172.17.0.3", 8001), ["port-address"]),
}


@pytest.mark.parametrize(("http", "found"), HTTP.values(), ids=HTTP)
def test_the_gateways_address_is_judged(http: tuple[str, int], found: list[str]) -> None:
    assert codes(replace(CPU, listeners={8000: "nginx"}), Task(http=http)) == found


def test_the_environment_of_a_replica_over_nodes_is_judged_by_rays_address(npus: Machine) -> None:
    spec = EngineSpec("vllm", "owner/name", "m", tensor_parallel_size=16)
    found = preflight(npus, Task((spec,), address="10.0.0.1"))
    told = {finding.saw: finding.remedy for finding in found}
    assert told["VLLM_HOST_IP is not set"].startswith("export VLLM_HOST_IP=10.0.0.1")
    assert "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES is not set" in told
    old = replace(npus, stack={"vllm-mindspore": "0.2.0", "vllm": "0.8.3"})
    found = preflight(old, Task((spec,), address="10.0.0.1"))
    assert "RAY_CGRAPH_get_timeout is not set" in {finding.saw for finding in found}


def model(tmp_path: Path, name: str, *files: str) -> EngineSpec:
    folder = tmp_path / name
    shutil.copytree(FIXTURES / "models" / name, folder)
    for file in ("model.safetensors", *files):
        (folder / file).write_bytes(b"{}")
    return EngineSpec("vllm", str(folder), name)


# model, files beside its weights, changes of the spec, changes of the machine, codes
MODELS: dict[str, tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any], list[str]]] = {
    "in good order": ("Qwen3-8B", ("tokenizer.json",), {}, {}, []),
    "no tokenizer": ("Qwen3-8B", (), {}, {}, ["model-tokenizer"]),
    "heads that do not divide": (
        "Qwen3-8B",
        ("tokenizer.json",),
        {"tensor_parallel_size": 3},
        {},
        ["model-refused", "model-fit"],
    ),
    "too large": ("Qwen2.5-72B", ("tokenizer.json",), {}, {}, ["model-fit", "model-memory"]),
    "a context that does not fit": (
        "Qwen2.5-14B",
        ("tokenizer.json",),
        {"max_model_len": 32768},
        {"inventory": "a2_32gb"},
        ["model-fit"],
    ),
    "quantised, but config.json does not say so": (
        "Qwen3-8B",
        ("tokenizer.json", "quant_model_description.json"),
        {},
        {},
        ["model-quantisation"],
    ),
    "unknown to MindFormers": (
        "Qwen2.5-7B",
        ("tokenizer.json",),
        {},
        {"stack": STACK | {"mindformers": "1.6.0", "vllm-mindspore": "0.4.0"}},
        ["model-unsupported"],
    ),
    "a legacy model without its yaml": (
        "Qwen2.5-7B",
        ("tokenizer.json",),
        {},
        {"stack": {"mindie": "2.3.0", "mindformers": "1.6.0"}, "environment": MINDIE},
        ["predict-yaml-missing"],
    ),
}


@pytest.mark.parametrize(("name", "files", "spec", "machine", "found"), MODELS.values(), ids=MODELS)
def test_a_fault_of_a_model_is_found(
    npus: Machine,
    tmp_path: Path,
    name: str,
    files: tuple[str, ...],
    spec: dict[str, Any],
    machine: dict[str, Any],
    found: list[str],
) -> None:
    changes = dict(machine)
    if fixture := changes.pop("inventory", None):
        changes["inventory"] = inventory(tmp_path / "other", fixture)
    wanted = replace(model(tmp_path, name, *files), **spec)
    (Path(wanted.model) / "config.json").chmod(0o640)
    assert [
        code
        for code in codes(replace(npus, **changes), Task((wanted,)))
        if code.startswith(("model-", "predict-"))
    ] == found


def test_mindie_refuses_a_config_json_that_others_may_read(npus: Machine, tmp_path: Path) -> None:
    spec = model(tmp_path, "Qwen3-8B", "tokenizer.json")
    (Path(spec.model) / "config.json").chmod(0o644)
    mindie = replace(npus, stack={"mindie": "2.3.0"}, environment=MINDIE)
    assert codes(mindie, Task((spec,))) == ["model-mode"]
    assert codes(npus, Task((spec,))) == []


def test_weights_that_do_not_fit_into_a_hosts_memory_are_told(tmp_path: Path) -> None:
    spec = model(tmp_path, "Qwen3-8B", "tokenizer.json")
    assert codes(CPU, Task((spec,))) == ["model-memory"]


def test_looking_at_this_machine_finds_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 0.9}))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        machine = look(root=tmp_path, models=(str(folder),))
    assert port in machine.listeners
    assert "127.0.0.1" in machine.addresses
    assert machine.environment["PATH"] == os.environ["PATH"]
    assert machine.workdir_writable
    assert set(machine.model_files[str(folder)]) == {"generation_config.json"}
    folders = {folder for folder, _, _ in machine.modules.values()}
    assert folders == {str(Path(__file__).parents[2])}
    assert [code for code in codes(machine) if not code.startswith("host-leftover")] == []


def test_the_network_of_each_npu_is_asked(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").write_text("address_0=29.0.0.1\n")
    inventory(tmp_path)

    def tools(command: Sequence[str]) -> str:
        if command[0] == "hccn_tool":
            return "ipaddr:29.0.0.7\nnetmask:255.255.0.0" if "-ip" in command else ""
        query = "map" if "-m" in command else "info"
        return (FIXTURES / "npu" / "a2_64gb" / f"{query}.txt").read_text("utf-8")

    machine = look({}, tmp_path, tools)
    assert machine.nics is not None
    assert machine.nics[0] == {"address": "29.0.0.7"}
    assert machine.nic_conf[0].address == "29.0.0.1"
    assert machine.device_gib == 64


def test_a_told_stack_replaces_the_installed_engine() -> None:
    assert judged_stack(STACK, {"vllm": "0.9.1"})["vllm"] == "0.9.1"
    assert set(judged_stack(STACK, {"mindie": "2.3.0"})) & {"vllm", "vllm-mindspore"} == set()


def test_every_finding_says_why_or_what_to_do(npus: Machine) -> None:
    for changes, _ in FAULTS.values():
        for finding in preflight(replace(npus, **changes), Task()):
            assert finding.saw
            assert finding.remedy or finding.why, finding
            assert finding.level in Level
    assert len(CHECKS) == 10

"""What an engine's environment needs, must not hold and misspells, by version and layout."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cluster.environment.advice import check_environment, near_misses, to_set, to_unset
from cluster.environment.rules import Trait
from cluster.findings import Level

HOME = {"ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest"}
NODE = {
    "address": "10.0.0.1",
    "interface": "enp189s0f0",
    "devices": "0,1,2,3,4,5,6,7",
    "device_count": "8",
    "scheduler_host": "10.0.0.1",
    "scheduler_port": "8119",
    "lcal_port": "8129",
    "rank_table": "/data/ranktable.json",
}


def plugin(version: str) -> dict[str, str]:
    return {"vllm-mindspore": version, "vllm": "0.11.0", "mindspore": "2.7.1"}


def mindie(version: str) -> dict[str, str]:
    return {"mindie": version}


# stack, environment, traits: what to set (an error), what to unset (error or warning)
MULTI = (Trait.MULTI_NODE, Trait.RAY)
E, W = Level.ERROR, Level.WARNING
CASES = {
    "yaml required in 0.1": (plugin("0.1.1"), {}, (), ["MINDFORMERS_MODEL_CONFIG"], {}),
    "yaml required in 0.2": (plugin("0.2.0"), {}, (), ["MINDFORMERS_MODEL_CONFIG"], {}),
    "yaml optional in 0.3": (plugin("0.3.0"), {}, (), [], {}),
    "yaml welcome in 0.3": (plugin("0.3.0"), {"MINDFORMERS_MODEL_CONFIG": "/a.yaml"}, (), [], {}),
    "yaml for legacy models in 0.3": (
        plugin("0.3.0"),
        {},
        (Trait.LEGACY_MODEL,),
        ["MINDFORMERS_MODEL_CONFIG"],
        {},
    ),
    "yaml fatal in 0.4": (
        plugin("0.4.0"),
        {"MINDFORMERS_MODEL_CONFIG": "/a.yaml"},
        (),
        [],
        {"MINDFORMERS_MODEL_CONFIG": E},
    ),
    "yaml fatal in 0.6": (
        plugin("0.6.0.rc1"),
        {"MINDFORMERS_MODEL_CONFIG": "/a.yaml"},
        (),
        [],
        {"MINDFORMERS_MODEL_CONFIG": E},
    ),
    "leaks of msrun": (
        plugin("0.5.1"),
        {"MS_ROLE": "MS_WORKER", "RANK_ID": "0", "DEVICE_ID": "0", "RANK_TABLE_FILE": "/r.json"},
        (),
        [],
        {"RANK_TABLE_FILE": E, "MS_ROLE": E, "RANK_ID": E, "DEVICE_ID": E},
    ),
    "the deployment guide's exports": (
        plugin("0.5.1"),
        {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8090", "LCAL_IF_PORT": "8129"},
        (),
        [],
        {"MS_SCHED_HOST": W, "MS_SCHED_PORT": W, "LCAL_IF_PORT": W},
    ),
    "V0 forced in 0.5": (plugin("0.5.1"), {"VLLM_USE_V1": "0"}, (), ["VLLM_USE_V1"], {}),
    "V1 forced in 0.2": (
        plugin("0.2.0"),
        {"VLLM_USE_V1": "1", "MINDFORMERS_MODEL_CONFIG": "/a.yaml"},
        (),
        ["VLLM_USE_V1"],
        {},
    ),
    "several nodes": (
        plugin("0.5.1"),
        {},
        MULTI,
        ["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", "VLLM_HOST_IP"],
        {},
    ),
    "another node's address": (
        plugin("0.5.1"),
        {"VLLM_HOST_IP": "10.0.0.2"},
        (Trait.MULTI_NODE,),
        ["VLLM_HOST_IP"],
        {},
    ),
    "LCCL over nodes": (
        plugin("0.5.1"),
        {"MS_ENABLE_LCCL": "1", "VLLM_HOST_IP": "10.0.0.1"},
        (Trait.MULTI_NODE,),
        ["MS_ENABLE_LCCL"],
        {},
    ),
    "LCCL off, as MindSpore spells it": (
        plugin("0.5.1"),
        {"MS_ENABLE_LCCL": "0", "VLLM_HOST_IP": "10.0.0.1"},
        (Trait.MULTI_NODE,),
        [],
        {},
    ),
    "MindIE, one rank": (mindie("2.3.0"), {}, (), ["MINDIE_LLM_FRAMEWORK_BACKEND"], {}),
    "MindIE, ranks": (
        mindie("1.0.0"),
        {"MINDIE_LLM_FRAMEWORK_BACKEND": "ms", "RANK": "0"},
        (Trait.PARALLEL,),
        ["MS_SCHED_HOST", "MS_SCHED_PORT"],
        {"RANK": E},
    ),
    "MindIE, nodes": (
        mindie("3.0.0"),
        {"http_proxy": "http://p:1"},
        (Trait.MULTI_NODE,),
        ["RANKTABLEFILE", "RANK_TABLE_FILE", "MIES_CONTAINER_IP"],
        {"http_proxy": E},
    ),
    "vLLM on CPU": ({"vllm": "0.32.0"}, {"MS_ROLE": "MS_WORKER"}, (), [], {}),
    "nothing installed": ({}, {"MS_ROLE": "MS_WORKER", "VLLM_PORT": "x"}, MULTI, [], {}),
}


@pytest.mark.parametrize(
    ("stack", "environment", "traits", "set_", "unset"), CASES.values(), ids=CASES
)
def test_what_to_set_and_what_to_take_away(
    stack: dict[str, str],
    environment: dict[str, str],
    traits: tuple[Trait, ...],
    set_: list[str],
    unset: dict[str, Level],
) -> None:
    environment = HOME | environment
    changes = to_set(stack, environment, traits, NODE)
    assert [change.name for change in changes if change.level is E] == set_
    assert all(change.value and "<" not in change.value for change in changes if not set_)
    gone = to_unset(stack, environment, traits)
    assert {change.name: change.level for change in gone} == unset
    assert all(change.why for change in (*changes, *gone))


RENAMES = {
    "old name": ("0.4.0", {"vLLM_MODEL_BACKEND": "Native"}, {"VLLM_MS_MODEL_BACKEND": "Native"}),
    "both": ("0.5.1", {"vLLM_MODEL_BACKEND": "Native", "VLLM_MS_MODEL_BACKEND": "MindFormers"}, {}),
    "old value": ("0.5.1", {"vLLM_MODEL_BACKEND": "MINDFORMER_MODELS"}, {}),
    "new name": ("0.3.0", {"VLLM_MS_MODEL_BACKEND": "Native"}, {"vLLM_MODEL_BACKEND": "Native"}),
}


@pytest.mark.parametrize(("version", "environment", "expected"), RENAMES.values(), ids=RENAMES)
def test_a_renamed_variable_moves_to_the_name_that_the_version_reads(
    version: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    changes = {c.name: c.value for c in to_set(plugin(version), environment)}
    assert {name: changes[name] for name in changes if "BACKEND" in name} == expected
    (gone,) = to_unset(plugin(version), environment)
    assert gone.name == next(iter(environment))


def test_per_node_values_are_those_of_the_node_and_stay_open_where_unknown() -> None:
    stack, traits = plugin("0.5.1"), (Trait.MULTI_NODE, Trait.RAY)
    known = {change.name: change.value for change in to_set(stack, {}, traits, NODE)}
    assert known["VLLM_HOST_IP"] == "10.0.0.1"
    assert known["HCCL_SOCKET_IFNAME"] == known["GLOO_SOCKET_IFNAME"] == "enp189s0f0"
    assert known["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert known["DEVICE_NUM_PER_NODE"] == "8"
    assert known["ASCEND_HOME_PATH"] == "<cann_home>"


def test_an_environment_that_follows_the_advice_is_in_good_order() -> None:
    node = NODE | {"cann_home": "/usr/local/Ascend/ascend-toolkit/latest"}
    traits = (Trait.MULTI_NODE, Trait.RAY)
    for stack in (plugin("0.4.0"), plugin("0.5.1"), plugin("0.6.0rc1"), mindie("2.3.0")):
        advised = {c.name: c.value or "" for c in to_set(stack, {}, traits, node)}
        assert check_environment(stack, advised, traits, node) == []


MISSES = {
    "VLLM_MODEL_BACKEND": "VLLM_MS_MODEL_BACKEND",
    "VLLM_MS_MODEL_BACKENDS": "VLLM_MS_MODEL_BACKEND",
    "vllm_ms_model_backend": "VLLM_MS_MODEL_BACKEND",
    "MINDFORMER_MODEL_CONFIG": "MINDFORMERS_MODEL_CONFIG",
    "ASCEND_RT_VISIBLE_DEVICE": "ASCEND_RT_VISIBLE_DEVICES",
    "GLOO_SOCKET_IF_NAME": "GLOO_SOCKET_IFNAME",
    "HCCL_SOCKET_IFNAMES": "HCCL_SOCKET_IFNAME",
    "RAY_CGRAPH_GET_TIMEOUT": "RAY_CGRAPH_get_timeout",
    "RAYSCEND_CACHE_DIR": "RAYSCEND_CACHE",
    "ms_role": "MS_ROLE",
}


@pytest.mark.parametrize(("name", "meant"), MISSES.items(), ids=MISSES)
def test_a_near_miss_is_told_with_the_name_that_was_meant(name: str, meant: str) -> None:
    assert near_misses(plugin("0.5.1"), {name: "x", "PATH": "/bin"}) == {name: meant}


def test_strangers_are_left_alone() -> None:
    names = ["PATH", "VLLM_HOST_PORT", "VLLM_LOGGING_LEVEL", "MKL_NUM_THREADS", "RANK", "LANG"]
    names += ["RAY_ADDRESS", "HF_HOME", "ASCEND_PROCESS_LOG_PATH", "NCCL_SOCKET_IFNAME"]
    assert near_misses(plugin("0.5.1"), dict.fromkeys(names, "x")) == {}


def test_findings_come_worst_first_with_remedy_and_reason() -> None:
    environment = {"MS_SCHED_HOST": "h", "MS_ROLE": "MS_WORKER", "VLLM_PORT": "tcp://10.0.0.1:80"}
    findings = check_environment(plugin("0.5.1"), HOME | environment, (), NODE)
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, key=list(Level).index)
    texts = {finding.saw: finding for finding in findings}
    assert texts["MS_ROLE=MS_WORKER"].remedy == "unset MS_ROLE"
    assert "Kubernetes" in texts["VLLM_PORT=tcp://10.0.0.1:80"].why
    assert texts["RUN_MODE is not set"].remedy.startswith("export RUN_MODE=predict on every node")
    assert [finding.saw for finding in findings].count("MS_SCHED_HOST=h") == 1


def test_the_advice_needs_no_engine() -> None:
    code = (
        "import sys, cluster.environment.advice, cluster.versions, cluster.devices.detect;"
        "assert not {'ray', 'vllm', 'torch', 'mindspore'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

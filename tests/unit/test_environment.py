"""Every variable that our code names stands in the table, and nothing stands there for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.environment import VARIABLES, Scope, Variable, engine_value
from cluster.environment.advice import check_environment
from cluster.environment.rules import RULES, Kind, Rule
from cluster.environment.variable import KINDS, RANGE
from cluster.specifiers import Stack, applies, parse_requirements

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "cluster" / "environment"
SOURCES = [
    path
    for folder in ("cluster", "serve_apps", "ranktables")
    for path in (ROOT / folder).rglob("*.py")
    if path.parent != TABLES and path.name != "serve_settings.py"
]
FAMILIES = (
    "RAYSCEND|VLLM|vLLM|HF|MS|XDG|OMP|SPT|TORCHINDUCTOR|DO_NOT|ASCEND|HCCL|LCAL|MINDIE|MIES"
    "|MINDFORMERS"
)
NAME = re.compile(rf"[\"']((?:{FAMILIES})_[A-Z_]+)[\"']")

ENGINE_SCOPES = (Scope.SHARED, Scope.PER_NODE, Scope.FORBIDDEN)
OF_ENGINES = {n: v for n, v in VARIABLES.items() if v.scope in ENGINE_SCOPES}
STACKS: list[Stack] = [
    *(
        {"vllm-mindspore": version, "vllm": "0.11.0"}
        for version in ("0.1", "0.2.0", "0.3.0", "0.4.0", "0.5.1", "0.6.0rc1")
    ),
    {"vllm": "0.11.0"},
    {"mindspore": "2.7.1", "mindformers": "1.7.0"},
    *({"mindie": v} for v in ("1.0.RC3", "2.3.0", "3.0.0")),
]


def named() -> set[str]:
    return {name for path in SOURCES for name in NAME.findall(path.read_text("utf-8"))}


def test_every_variable_in_the_code_stands_in_the_table() -> None:
    assert named() - set(VARIABLES) == set()


def test_what_rayscend_reads_or_sets_by_the_table_is_named_by_its_code() -> None:
    assert set(VARIABLES) - set(OF_ENGINES) - named() == set()


@pytest.mark.parametrize("variable", OF_ENGINES.values(), ids=OF_ENGINES)
def test_an_engines_variable_is_judged_wherever_it_is_read(variable: Variable) -> None:
    """A wrong value, or a wrongly spelt name, of each is found for an engine that reads it."""
    stacks = [stack for stack in STACKS if variable.applies(stack)]
    assert stacks
    misspelt = variable.name.swapcase()
    wrong = {misspelt: "x"} if misspelt not in VARIABLES else {variable.name: ""}
    for stack in stacks:
        seen = [finding.saw for finding in check_environment(stack, wrong)]
        assert any(saw.startswith(next(iter(wrong))) and "not set" not in saw for saw in seen)


def test_a_variable_is_listed_once() -> None:
    listed = [line for path in TABLES.glob("*.py") for line in path.read_text("utf-8").split("\n")]
    names = re.findall(r"Variable\(\s*\"(\w+)\"", "\n".join(listed))
    assert len(names) == len(set(names))


@pytest.mark.parametrize("variable", VARIABLES.values(), ids=VARIABLES)
def test_types_versions_and_defaults_of_the_table_are_sound(variable: Variable) -> None:
    assert "|" in variable.type or variable.type in KINDS or RANGE.fullmatch(variable.type)
    assert variable.versions == "all" or parse_requirements(variable.versions)
    assert variable.default is None or variable.takes(variable.default)
    assert not variable.takes("")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.kind}-{rule.when}")
def test_rules_are_on_variables_that_their_engines_read(rule: Rule) -> None:
    stacks = [stack for stack in STACKS if applies(rule.when, stack)]
    assert stacks
    if rule.kind in (Kind.REQUIRED, Kind.ADVISED, Kind.KEEP, Kind.RENAMED):
        variable = VARIABLES[rule.value if rule.kind is Kind.RENAMED else rule.name]
        assert all(variable.applies(stack) for stack in stacks)
        known = [] if rule.kind is Kind.RENAMED or "<" in rule.value else rule.value.split("|")
        assert all(variable.takes(value) for value in known)
    else:
        assert rule.name in VARIABLES


TYPES = {
    "VLLM_PORT": (["8000"], ["tcp://10.0.0.1:8000", "0", "65536", "-1"]),
    "VLLM_MS_MODEL_BACKEND": (["MindFormers", "native"], ["mindformer", "auto"]),
    "ASCEND_RT_VISIBLE_DEVICES": (["0,1", "4,5,10"], ["1,0", "0, 1", "0-7", ""]),
    "HCCL_CONNECT_TIMEOUT": (["120", "7200"], ["60", "2h", "7201"]),
    "HCCL_IF_BASE_PORT": (["60000"], ["65521", "80"]),
    "HCCL_SOCKET_IFNAME": (["eth0", "^docker", "=eth0", "eth0,eth1", "enp189s0f0"], ["eth 0"]),
    "LCAL_COMM_ID": (["127.0.0.1:10068"], ["10.0.0.1:10068", "127.0.0.1"]),
    "MS_SCHED_HOST": (["10.0.0.1"], ["node0", "::1", "10.0.0.256"]),
    "VLLM_HOST_IP": (["10.0.0.1", "fd00::1"], ["node0"]),
    "VLLM_PP_LAYER_PARTITION": (["32,32"], ["32;32"]),
    "HCCL_NPU_SOCKET_PORT_RANGE": (["auto", "61000-61050", "61000"], ["a-b"]),
    "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": (["auto", "shm"], ["nccl"]),
}


@pytest.mark.parametrize(("name", "values"), TYPES.items(), ids=TYPES)
def test_values_are_checked_by_their_type(name: str, values: tuple[list[str], list[str]]) -> None:
    good, bad = values
    assert [value for value in good if not VARIABLES[name].takes(value)] == []
    assert [value for value in bad if VARIABLES[name].takes(value)] == []


def test_what_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert engine_value("VLLM_CPU_KVCACHE_SPACE") == "1"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert engine_value("VLLM_CPU_KVCACHE_SPACE") == "4"

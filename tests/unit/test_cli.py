"""`rayscend` as it is typed: what it prints, as text and JSON, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from serve_apps.cli import main

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "unit" / "fixtures" / "models"
SAMPLES = ROOT / "ranktables" / "samples"


def rayscend(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def told(*words: object) -> Any:
    return json.loads(rayscend(*words, "--json").output)


def codes(*words: object) -> set[str]:
    return {finding["code"] for finding in told(*words)["findings"]}


def test_every_command_helps_and_speaks_json() -> None:
    assert rayscend("-h").exit_code == 0
    ranktable = main.commands["ranktable"].commands  # type: ignore[attr-defined]
    for words in [[name] for name in main.commands] + [["ranktable", name] for name in ranktable]:
        helped = rayscend(*words, "-h")
        assert helped.exit_code == 0
        assert "--json" in helped.output or words == ["ranktable"]


# Four devices of 64 GiB: the guide's example, with the model that its support list names.
def test_the_plan_for_four_cards_is_what_an_operator_would_put_together() -> None:
    ended = rayscend("plan", f"model={MODELS / 'Qwen2.5-72B'}", "--devices", "1x4x64")
    assert ended.exit_code == 0, ended.output
    for line in (
        "recommended: TP4, 1 replica on 1 node: 33.9 GiB of weights",
        "export VLLM_MS_MODEL_BACKEND=MindFormers",
        "export DEVICE_NUM_PER_NODE=4",
        """ray start --head --port=6379 '--node-ip-address=<node0>' '--resources={"NPU": 4}'""",
        "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3",
        "--served-model-name Qwen2.5-72B --host 127.0.0.1 --port 20000 --tensor-parallel-size 4"
        " --dtype bfloat16 --max-model-len 32768 --no-enforce-eager --gpu-memory-utilization 0.9"
        " --distributed-executor-backend mp",
        "60000  Qwen2.5-72B replica 0, HCCL",
        "[plan-by-hand]",
    ):
        assert line in ended.output, line
    assert "VLLM_CPU" not in ended.output


def test_the_plan_for_two_nodes_has_an_environment_for_each() -> None:
    ended = rayscend(
        *("plan", f"model={MODELS / 'Qwen3-235B-A22B'}", "--devices", "2x8x64"),
        *("--node", "10.0.0.1", "--node", "10.0.0.2", "--interface", "enp189s0f0"),
    )
    assert ended.exit_code == 0, ended.output
    head, worker = ended.output.split("# node 1")[0], ended.output.split("# node 1")[1]
    for line in (
        "recommended: TP16, 1 replica on 2 nodes: 27.4 GiB of weights and 23.5 GiB of KV cache",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
        "export RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1",
        "export VLLM_HOST_IP=10.0.0.1",
        "export HCCL_SOCKET_IFNAME=enp189s0f0",
        "export GLOO_SOCKET_IFNAME=enp189s0f0",
        "export TP_SOCKET_IFNAME=enp189s0f0",
        "export HCCL_CONNECT_TIMEOUT=600",
    ):
        assert line in head, line
    for line in (
        "export VLLM_HOST_IP=10.0.0.2",
        "ray start --head --port=6379 --node-ip-address=10.0.0.1",
        "ray start --address=10.0.0.1:6379 --node-ip-address=10.0.0.2",
        "--host 10.0.0.1 --port 20000 --tensor-parallel-size 16",
        "--distributed-executor-backend ray",
    ):
        assert line in worker, line


# words, exit code, codes
PLANS: dict[str, tuple[list[str], int, set[str]]] = {
    "too large": (["model=Qwen2.5-72B", "--devices", "1x2x64"], 1, {"plan-fit", "model-weights"}),
    "a split that cannot be": (
        ["model=Qwen2.5-72B", "tensor_parallel_size=3", "--devices", "1x4x64"],
        1,
        {"plan-fit", "model-weights"},
    ),
    "versions that do not fit": (
        ["model=Qwen3-8B", "--devices", "1x1x64", "--stack", "vllm=0.9.1"],
        1,
        {"versions-vllm", "model-weights", "plan-by-hand"},
    ),
    "no weights yet": (["model=Qwen3-8B"], 0, {"model-weights"}),
    "a simulated engine": (["engine=simulated"], 0, set()),
    "an engine's flag": (["model=owner/name", "engine_args=--port 1"], 1, {"plan-refused"}),
    "devices that are not understood": (
        ["model=Qwen3-8B", "--devices", "8"],
        1,
        {"refused"},
    ),
}


@pytest.mark.parametrize(("words", "exit_code", "found"), PLANS.values(), ids=PLANS)
def test_a_plan_tells_what_is_wrong(words: list[str], exit_code: int, found: set[str]) -> None:
    words = [word.replace("model=Qwen", f"model={MODELS}/Qwen") for word in words]
    assert rayscend("plan", *words).exit_code == exit_code
    assert codes("plan", *words) == found


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "num_replica=2"],
        ["plan", "deploy.yml"],
        ["plan", "a=b", "c"],
        ["plan", "--nodes", "2"],
        ["doctor", "--stack", "mindie"],
        ["ranktable", "check"],
        ["ranktable", "build"],
        ["nothing"],
    ],
)
def test_a_wrong_call_ends_with_2(words: list[str]) -> None:
    ended = rayscend(*words)
    assert ended.exit_code == 2
    assert "Error: " in ended.output


def test_a_serve_config_file_is_planned_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    models = [{"engine": "simulated", "served_model_name": name} for name in ("a", "b")]
    application = {"name": "one", "import_path": "app:deploy", "args": {"models": models}}
    content = {"http_options": {"port": 8123}, "applications": [application]}
    file.write_text(yaml.safe_dump(content))
    assert told("plan", "--check", file)["models"] == ["a", "b"]
    assert "8123   gateway, HTTP" in rayscend("plan", file).output
    application["args"] = {"model": "a", "tensor_parallel_size": "x"}
    file.write_text(yaml.safe_dump(content))
    for ended in (rayscend("plan", "--check", file), rayscend("plan", file)):
        assert ended.exit_code == 1
        assert "tensor_parallel_size" in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1


def test_a_file_with_the_keys_of_one_application_is_planned_too(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("engine: simulated\nserved_model_name: mine\n")
    assert "mine replica 0" in rayscend("plan", file).output


def test_rank_tables_are_built_converted_merged_and_checked(tmp_path: Path) -> None:
    confs = []
    for node, count in ((1, 8), (2, 4)):
        conf = tmp_path / f"hccn{node}.conf"
        lines = [f"address_{number}=29.0.{node}.{number + 1}" for number in range(count)]
        conf.write_text("\n".join(lines))
        confs += ["--node", f"10.0.0.{node}={conf}"]
    built, mindie = tmp_path / "table.json", tmp_path / "mindie.json"
    assert rayscend("ranktable", "build", *confs, "-o", built).exit_code == 0
    ranks = [device["rank_id"] for server in json.loads(built.read_text())["server_list"]
             for device in server["device"]]  # fmt: skip
    assert ranks == [str(rank) for rank in range(12)], "cumulative where nodes differ"
    assert codes("ranktable", "check", built) == set()
    assert codes("ranktable", "check", built, "--for", "mindie") == {"ranktable-mindie.uneven"}
    assert rayscend("ranktable", "convert", built, "--to", "mindie").exit_code == 1, "uneven"
    nodes = [SAMPLES / f"hccl_tools_node_{number}.json" for number in (0, 1)]
    assert rayscend("ranktable", "merge", *nodes, "-o", built).exit_code == 0
    ips = ["--container-ip", "10.0.0.1=10.0.0.1", "--container-ip", "10.0.0.2=10.0.0.2"]
    made = rayscend("ranktable", "convert", built, "--to", "mindie", *ips, "-o", mindie)
    assert made.exit_code == 0, made.output
    assert rayscend("ranktable", "check", mindie, "--for", "mindie").exit_code == 0
    assert rayscend("ranktable", "check", SAMPLES / "merge_hccl.json").exit_code == 1


def test_an_empty_hccn_conf_makes_no_rank_table(tmp_path: Path) -> None:
    conf = tmp_path / "hccn.conf"
    conf.touch()
    ended = rayscend("ranktable", "build", "--node", f"10.0.0.1={conf}")
    assert ended.exit_code == 1
    assert "holds no address_N" in ended.stderr
    assert codes("ranktable", "build", "--node", f"10.0.0.1={conf}") == {"refused"}


def test_nodes_of_a_rank_table_may_come_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(yaml.safe_dump([{"server_id": "10.0.0.1", "device_ips": {0: "29.0.0.1"}}]))
    assert told("ranktable", "build", file)["devices"] == 1
    file.write_text("- server: 10.0.0.1")
    assert codes("ranktable", "build", file) == {"refused"}


def test_a_model_is_described_with_the_splits_that_it_allows() -> None:
    ended = rayscend("model", MODELS / "Qwen3-30B-A3B")
    assert ended.exit_code == 0
    assert "8 of 128 experts" in ended.output
    data = told("model", MODELS / "Qwen2.5-7B")
    assert data["tensor_parallel_sizes"] == [1, 2, 4]
    assert "attention heads" in data["tensor_parallel_obstacles"]["8"]
    assert rayscend("model", "/no/such/model").exit_code == 1


def test_the_environment_shows_what_is_set_and_what_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_IF_BASE_PORT", "60100")
    assert "HCCL_IF_BASE_PORT = 60100" in rayscend("env", "hccl_if").output
    shown = {one["name"] for one in told("env", "--set")["variables"]}
    assert "HCCL_IF_BASE_PORT" in shown
    assert "MS_ROLE" not in shown
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    found = codes("env", "--stack", "vllm-mindspore=0.5.1")
    assert "environment-unset" in found
    assert "VLLM_MS_MODEL_BACKEND" in rayscend("env").output


def test_the_doctor_judges_models_as_if_another_stack_were_there() -> None:
    model = f"model={MODELS / 'Qwen2.5-7B'}"
    found = codes("doctor", model, "http_port=0", "--stack", "mindie=2.3.0")
    assert {"model-refused", "model-tokenizer"} <= found


def test_secrets_of_the_environment_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in rayscend("doctor", "--json").output


def test_a_healthy_machine_is_told_so_in_seconds_and_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "from serve_apps.cli import main\n"
        "for words in (['doctor'], ['plan', 'engine=simulated'], ['env'], "
        f"['plan', 'model={MODELS / 'Qwen3-8B'}', '--devices', '1x1x64']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code == 0, words\n"
        "heavy = {'ray', 'vllm', 'torch', 'mindspore', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Nothing is wrong" in done.stdout
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "serve_apps.cli", "doctor"], cwd=ROOT, check=True)
    assert time.monotonic() - started < 10, "3 s on an idle machine"

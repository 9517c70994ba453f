"""What would run: devices, environments, ports and command lines of planned layouts."""

from __future__ import annotations

import pytest

from cluster.blueprint import ASCEND_STACK, Served, on_cpu, on_devices, place, wishes_of
from cluster.engines import EngineSpec
from cluster.errors import ConfigError
from cluster.layouts import Devices, Layout, Wishes
from cluster.planner import plan
from tests.unit.fixture_models import fixture_model


def served(name: str, devices: str, replicas: int = 1, **wishes: int) -> Served:
    profile = fixture_model(name)
    found = plan(profile, Devices.parse(devices), Wishes(num_replicas=replicas, **wishes))
    spec = EngineSpec("vllm", str(profile.path), name)
    return Served(spec, replicas, found.recommended, profile)


def layout(tensor: int, pipeline: int = 1) -> Layout:
    return Layout(tensor, pipeline, 1, 1, 1, 1, 0, 0, 0, 0, 0)


# Free devices by node, the layouts to place in turn, what each gets by node.
PLACES: dict[str, tuple[list[int], list[Layout], list[dict[int, list[int]]]]] = {
    "disjoint devices on one node": (
        [8],
        [layout(4), layout(4)],
        [{0: [0, 1, 2, 3]}, {0: [4, 5, 6, 7]}],
    ),
    "whole on the node that can": ([2, 8], [layout(4)], [{1: [0, 1, 2, 3]}]),
    "over two nodes where none can": (
        [8, 8],
        [layout(16)],
        [{0: list(range(8)), 1: list(range(8))}],
    ),
    "pipeline stages stay whole": ([4, 4], [layout(4, 2)], [{0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}]),
    "uneven nodes take equal shares of one rank group": (
        [6, 2],
        [layout(8)],
        [{0: [0, 1, 2, 3, 4, 5], 1: [0, 1]}],
    ),
}


@pytest.mark.parametrize(("counts", "layouts", "masks"), PLACES.values(), ids=PLACES)
def test_replicas_get_devices_of_their_own(
    counts: list[int], layouts: list[Layout], masks: list[dict[int, list[int]]]
) -> None:
    free = [list(range(count)) for count in counts]
    assert [place(one, free, "m") for one in layouts] == masks


def test_more_replicas_than_devices_are_refused_with_what_is_left() -> None:
    with pytest.raises(ConfigError, match=r"one more replica of 8.*4\+2 devices are left"):
        place(layout(8), [[0, 1, 2, 3], [0, 1]], "m")


def test_replicas_of_one_host_share_no_port_and_no_device() -> None:
    models = [served("Qwen2.5-7B", "1x8x64", replicas=4, tensor_parallel_size=2)]
    made = on_devices(models, Devices.parse("1x8x64"), ASCEND_STACK, 8000)
    engines = [command for command in made.commands if command.what != "Ray"]
    masks = [command.env["ASCEND_RT_VISIBLE_DEVICES"] for command in engines]
    assert masks == ["0,1", "2,3", "4,5", "6,7"]
    bases = [int(command.env.get("HCCL_IF_BASE_PORT", 60000)) for command in engines]
    assert bases == [60000, 60032, 60064, 60096]
    ports = [port.port for port in made.ports]
    assert len(ports) == len(set(ports))


def test_the_backend_is_named_as_the_version_reads_it() -> None:
    models = [served("Qwen3-8B", "1x1x64")]
    for version, name in (("0.3.0", "vLLM_MODEL_BACKEND"), ("0.5.1", "VLLM_MS_MODEL_BACKEND")):
        stack = {**ASCEND_STACK, "vllm-mindspore": version}
        made = on_devices(models, Devices.parse("1x1x64"), stack, 8000)
        assert made.environments[0][name] == "MindFormers"


def test_a_legacy_model_of_0_3_needs_its_yaml() -> None:
    models = [served("Qwen2.5-7B", "1x8x64")]
    stack = {"vllm-mindspore": "0.3.0", "vllm": "0.8.3", "mindformers": "1.6.0"}
    made = on_devices(models, Devices.parse("1x8x64"), stack, 8000)
    assert "MINDFORMERS_MODEL_CONFIG" in made.environments[0]


@pytest.mark.parametrize(
    ("args", "wishes", "rest"),
    [
        ((), Wishes(), ()),
        (
            ("-pp", "2", "--max-num-seqs", "4"),
            Wishes(pipeline_parallel_size=2),
            ("--max-num-seqs", "4"),
        ),
        (
            ("--data-parallel-size=2", "--enable-expert-parallel"),
            Wishes(data_parallel_size=2, expert_parallel=True),
            (),
        ),
        (("--gpu-memory-utilization", "0.8"), Wishes(memory_utilization=0.8), ()),
    ],
)
def test_the_engines_arguments_are_wishes_too(
    args: tuple[str, ...], wishes: Wishes, rest: tuple[str, ...]
) -> None:
    assert wishes_of(EngineSpec("vllm", "m", "m", engine_args=args), None) == (wishes, rest)


def test_an_argument_without_a_sound_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine_args.*invalid int"):
        wishes_of(EngineSpec("vllm", "m", "m", engine_args=("-pp", "two")), None)


def test_cpu_cores_are_shared_out_among_all_ranks() -> None:
    spec = EngineSpec("vllm", "owner/name", "m", tensor_parallel_size=2)
    made = on_cpu([Served(spec, 2)], 8, 8000)
    assert [command.env["OMP_NUM_THREADS"] for command in made.commands] == ["2", "2"]
    assert [port.port for port in made.ports] == [8000, 20000, 20001]

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.layouts import BLOCK_TOKENS, GIB, Devices, Wishes
from cluster.planner import plan
from tests.unit.fixture_models import fixture_model

# The smallest layout at 90 % utilisation with room for one sequence of 32k tokens: tensor parallel
# size, GiB of weights on each device, thousands of tokens in the KV cache; nodes of eight devices.
_SMALLEST: list[tuple[str, int, tuple[int, float, int], tuple[int, float, int]]] = [
    # model, bits of a weight, on 64 GiB, on 32 GiB
    ("Qwen2.5-0.5B", 16, (1, 0.9, 4364), (1, 0.9, 1977)),
    ("Qwen2.5-1.5B", 16, (1, 2.9, 1797), (1, 2.9, 774)),
    ("Qwen2.5-3B", 16, (1, 5.7, 1314), (1, 5.7, 518)),
    ("Qwen2.5-7B", 16, (1, 14.2, 686), (1, 14.2, 175)),
    ("Qwen2.5-14B", 16, (1, 27.5, 127), (2, 13.8, 106)),
    ("Qwen2.5-32B", 16, (2, 30.5, 166), (4, 15.3, 135)),
    ("Qwen2.5-72B", 16, (4, 33.9, 223), (8, 16.9, 173)),
    ("Qwen3-0.6B", 16, (1, 1.1, 465), (1, 1.1, 210)),
    ("Qwen3-1.7B", 16, (1, 3.2, 446), (1, 3.2, 190)),
    ("Qwen3-4B", 16, (1, 7.5, 315), (1, 7.5, 116)),
    ("Qwen3-8B", 16, (1, 15.3, 259), (1, 15.3, 60)),
    ("Qwen3-14B", 16, (1, 27.5, 153), (2, 13.8, 128)),
    ("Qwen3-32B", 16, (2, 30.5, 166), (4, 15.3, 135)),
    ("Qwen3-30B-A3B", 16, (2, 28.4, 490), (4, 14.2, 407)),
    ("Qwen3-30B-A3B", 8, (1, 29.3, 235), (2, 14.6, 194)),
    ("Qwen3-235B-A22B", 16, (16, 27.4, 524), (32, 13.7, 220)),
    ("Qwen3-235B-A22B", 8, (8, 28.2, 506), (16, 14.1, 210)),
    ("DeepSeek-V3", 16, (32, 39.1, 180), (64, 19.5, 61)),
    ("DeepSeek-V3", 8, (16, 40.2, 162), (32, 20.1, 52)),
    ("DeepSeek-V3", 4, (8, 43.7, 108), (32, 10.9, 192)),
]


@pytest.mark.parametrize("gib", [64, 32])
@pytest.mark.parametrize(
    ("model", "bits", "on_64", "on_32"), _SMALLEST, ids=[f"{row[0]}-{row[1]}" for row in _SMALLEST]
)
def test_the_smallest_layouts_of_the_support_list(
    model: str, bits: int, on_64: tuple[int, float, int], on_32: tuple[int, float, int], gib: int
) -> None:
    size, weights, thousands = on_64 if gib == 64 else on_32
    profile = replace(fixture_model(model), weight_bits=bits)
    smallest = plan(profile, Devices((8,) * 8, gib)).smallest
    assert smallest is not None
    assert (smallest.tensor_parallel_size, smallest.pipeline_parallel_size) == (size, 1)
    assert (smallest.num_replicas, smallest.replica_nodes) == (1, -(-size // 8))
    assert round(smallest.weight_bytes / GIB, 1) == weights
    # The table counts tokens, the cache comes in whole blocks.
    tokens = smallest.kv_bytes // smallest.kv_bytes_per_token
    assert tokens // 1000 == thousands
    assert smallest.kv_tokens == tokens - tokens % BLOCK_TOKENS


# vllm-ascend's FAQ: Qwen3-32B on four devices of 64 GiB.
@pytest.mark.parametrize(
    ("model", "devices", "split", "replicas", "nodes"),
    [
        ("Qwen3-32B", "1x8x64", "TP4", 2, 1),
        ("Qwen2.5-7B", "1x8x64", "TP1", 8, 1),
        ("Qwen2.5-7B", "1x8x32", "TP2", 4, 1),
        ("Qwen2.5-72B", "1x4x64", "TP4", 1, 1),
        ("Qwen2.5-72B", "2x8x64", "TP8", 2, 2),
        ("Qwen3-235B-A22B", "2x8x64", "TP16", 1, 2),
        ("Qwen3-235B-A22B", "5x8x64", "TP16", 2, 4),
        ("Qwen3-235B-A22B", "1x16x64", "TP16", 1, 1),
    ],
)
def test_the_recommended_layout_has_room_and_fills_the_devices(
    model: str, devices: str, split: str, replicas: int, nodes: int
) -> None:
    recommended = plan(fixture_model(model), Devices.parse(devices)).recommended
    assert recommended is not None
    assert (recommended.split, recommended.num_replicas) == (split, replicas)
    assert recommended.nodes == nodes


# Free devices of each node. A split stays inside a node where one holds it, and takes equal shares
# of several where none does.
@pytest.mark.parametrize(
    ("per_node", "wishes", "replicas", "replica_nodes"),
    [
        ((6, 2), {"tensor_parallel_size": 8}, 1, 2),
        ((8, 2), {"tensor_parallel_size": 8}, 1, 1),
        ((4, 4), {"tensor_parallel_size": 8}, 1, 2),
        ((6, 6, 6, 6), {"tensor_parallel_size": 16}, 1, 4),
        ((8, 4, 4), {"tensor_parallel_size": 4, "pipeline_parallel_size": 4}, 1, 3),
        ((8, 8), {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 1, 2),
        ((8, 8), {"tensor_parallel_size": 4, "data_parallel_size": 4}, 1, 2),
        ((8, 8), {"tensor_parallel_size": 4, "data_parallel_size": 2}, 2, 1),
    ],
)
def test_replicas_are_placed_on_what_the_nodes_have(
    per_node: tuple[int, ...], wishes: dict[str, int], replicas: int, replica_nodes: int
) -> None:
    layout = plan(fixture_model("Qwen3-32B"), Devices(per_node, 64), Wishes(**wishes)).recommended
    assert layout is not None
    assert (layout.num_replicas, layout.replica_nodes) == (replicas, replica_nodes)


@pytest.mark.parametrize(
    ("wishes", "changed"),
    [
        ({"graph_capture": True}, -2.0),
        ({"memory_utilization": 0.8}, -6.1),
        ({"weight_bits": 8}, 14.8),
    ],
)
def test_wishes_move_the_memory_left_for_the_cache(wishes: dict[str, Any], changed: float) -> None:
    profile, devices = fixture_model("Qwen3-32B"), Devices.parse("1x8x64")
    plain = plan(profile, devices, Wishes(tensor_parallel_size=2)).smallest
    wished = plan(profile, devices, Wishes(tensor_parallel_size=2, **wishes)).smallest
    assert plain is not None
    assert wished is not None
    assert round((wished.kv_bytes - plain.kv_bytes) / GIB, 1) == changed


def test_data_parallel_ranks_copy_all_but_the_experts() -> None:
    """DeepSeek W8A8 as DP4 TP4 EP16: 17.1 / 4 + 653.9 / 16 GB at 1.03 bytes, on 2x8x64."""
    wishes = Wishes(
        tensor_parallel_size=4, data_parallel_size=4, expert_parallel=True, weight_bits=8
    )
    layout = plan(fixture_model("DeepSeek-V3"), Devices.parse("2x8x64"), wishes).smallest
    assert layout is not None
    assert round(layout.weight_bytes / 1e9, 1) == round(1.03 * (17.1 / 4 + 653.9 / 16), 1)
    assert layout.kv_tokens > 4 * layout.max_model_len - 4 * BLOCK_TOKENS
    assert (layout.replica_devices, layout.replica_nodes) == (16, 2)


def test_the_longest_sequence_is_the_models_own_or_what_the_cache_holds() -> None:
    fits = plan(fixture_model("Qwen3-8B"), Devices.parse("1x1x64")).smallest
    assert fits is not None
    assert fits.max_model_len == 40960
    tight = plan(
        replace(fixture_model("DeepSeek-V3"), weight_bits=4), Devices.parse("1x8x64")
    ).smallest
    assert tight is not None
    assert tight.max_model_len == tight.kv_tokens < 163840


def test_a_pipeline_is_the_last_resort() -> None:
    """Qwen2.5-7B splits by 4 at most; beyond that only stages help."""
    small = plan(fixture_model("Qwen2.5-7B"), Devices.parse("2x4x8")).smallest
    assert small is not None
    assert small.pipeline_parallel_size > 1
    enough = plan(fixture_model("Qwen2.5-7B"), Devices.parse("2x4x16")).smallest
    assert enough is not None
    assert enough.split == "TP2"


@pytest.mark.parametrize(
    ("model", "devices", "wishes", "why", "remedies"),
    [
        (
            "Qwen3-235B-A22B",
            "1x8x64",
            {},
            "at TP8 weights take 54.7 GiB of each device; of its 60.97 usable GiB,"
            " memory_utilization 0.9 leaves 50.9 GiB",
            {"more nodes": ("TP16", 2), "8-bit weights": ("TP8", 1), "4-bit weights": ("TP4", 1)},
        ),
        (
            "Qwen3-14B",
            "1x1x32",
            {},
            "weights take 27.5 GiB",
            {
                "more nodes": ("TP2", 2),
                "8-bit weights": ("TP1", 1),
                "4-bit weights": ("TP1", 1),
                "devices of 64 GiB": ("TP1", 1),
            },
        ),
        (
            "DeepSeek-V3",
            "1x8x64",
            {"weight_bits": 8},
            "weights take 80.5 GiB",
            {"more nodes": ("TP16", 2), "4-bit weights": ("TP8", 1)},
        ),
        (
            "DeepSeek-V3",
            "2x8x32",
            {"weight_bits": 4},
            "25600 tokens of cache remain, and one sequence needs 32768",
            {
                "more nodes": ("TP32", 4),
                "devices of 64 GiB": ("TP8", 1),
                "max_model_len=25600": ("TP16", 2),
            },
        ),
        (
            "Qwen2.5-14B",
            "2x8x64",
            {"tensor_parallel_size": 16},
            "40 attention heads, which do not divide by 16; allowed: 1, 2, 4, 8",
            {"another split": ("TP1", 1)},
        ),
        (
            "Qwen3-30B-A3B",
            "1x2x64",
            {"tensor_parallel_size": 8},
            "1x2x64 does not hold a replica of 8 devices",
            {"more nodes": ("TP8", 4), "another split": ("TP2", 1)},
        ),
        (
            "Qwen3-32B",
            "1x4x64",
            {"num_replicas": 3},
            "3 replicas of 2 devices are asked for, and the 4 devices hold 2",
            {
                "more nodes": ("TP2", 2),
                "8-bit weights": ("TP1", 1),
                "4-bit weights": ("TP1", 1),
                "fewer replicas": ("TP2", 1),
            },
        ),
        (
            "Qwen3-30B-A3B",
            "2x4x64",
            {"tensor_parallel_size": 8, "data_parallel_size": 2},
            "does not hold a replica of 16 devices, 8 of them on one node for each of 2",
            {"another split": ("TP1", 1)},
        ),
        (
            "Qwen3-8B",
            "1x8x64",
            {"max_model_len": 131072},
            "max_model_len=131072 is beyond the model's own 40960",
            {},
        ),
        ("Qwen3-8B", "1x8x64", {"expert_parallel": True}, "the model is none", {}),
        (
            "Qwen3-30B-A3B",
            "4x8x64",
            {"tensor_parallel_size": 8, "data_parallel_size": 3, "expert_parallel": True},
            "128 experts, which do not divide by 24 ranks; allowed: none",
            {},
        ),
        (
            "Qwen3-8B",
            "8x8x64",
            {"pipeline_parallel_size": 40},
            "more than the 36 layers",
            {"another split": ("TP1", 1)},
        ),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    model: str,
    devices: str,
    wishes: dict[str, Any],
    why: str,
    remedies: dict[str, tuple[str, int]],
) -> None:
    found = plan(fixture_model(model), Devices.parse(devices), Wishes(**wishes))
    assert found.smallest is None
    assert found.recommended is None
    assert why in found.why_not
    given = {r.change: (r.layout.split.split()[0], r.layout.nodes) for r in found.remedies}
    assert given == remedies


def test_a_remedy_does_what_it_promises() -> None:
    profile, devices = fixture_model("Qwen3-235B-A22B"), Devices.parse("1x8x64")
    remedies = {remedy.change: remedy.layout for remedy in plan(profile, devices).remedies}
    assert plan(profile, Devices.parse("2x8x64")).smallest == remedies["more nodes"]
    quantised = replace(profile, weight_bits=8)
    assert plan(quantised, devices).smallest == remedies["8-bit weights"]


def test_plans_print_and_serialise() -> None:
    found = plan(fixture_model("Qwen2.5-72B"), Devices.parse("2x8x64"))
    assert "recommended: TP8, 2 replicas on 2 nodes: 16.9 GiB of weights" in str(found)
    told = json.loads(json.dumps(asdict(found)))
    assert told["recommended"]["tensor_parallel_size"] == 8
    missing = plan(fixture_model("Qwen3-14B"), Devices.parse("1x1x32"))
    assert "Qwen3-14B does not fit on 1x1x32: " in str(missing)
    assert "it fits with devices of 64 GiB: TP1, 1 replica on 1 node" in str(missing)


@pytest.mark.parametrize("text", ["", "8x64", "2x8x64x1", "2x0x64", "2 by 8 by 64", "2x8x-1"])
def test_devices_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='write it as "2x8x64"'):
        Devices.parse(text)


def test_devices_are_read_and_written_alike() -> None:
    for text in ("2x8x64", "1x16x32", "4x2x21.5"):
        assert str(Devices.parse(text)) == text
    assert Devices.parse("2x8x64").count == 16
    assert str(Devices((6, 2), 64)) == "6+2x64"


def test_ten_thousand_devices_are_planned_at_once() -> None:
    found = plan(fixture_model("Qwen3-235B-A22B"), Devices((8,) * 1250, 64)).recommended
    assert found is not None
    assert (found.num_replicas, found.nodes) == (625, 1250)


def test_wished_expert_parallelism_opens_more_splits() -> None:
    """Experts 100 wide cannot be cut into 8 parts, but 128 whole ones can be shared out."""
    profile = fixture_model("Qwen3-30B-A3B")
    assert profile.experts is not None
    profile = replace(profile, experts=replace(profile.experts, intermediate_size=100))
    wishes = Wishes(tensor_parallel_size=8)
    assert plan(profile, Devices.parse("1x8x64"), wishes).smallest is None
    whole = replace(wishes, expert_parallel=True)
    assert plan(profile, Devices.parse("1x8x64"), whole).smallest is not None

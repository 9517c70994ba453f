from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.models import (
    Experts,
    LatentAttention,
    check_tensor_parallel,
    count_parameters,
    kv_bytes_per_token,
    read_model,
    tensor_parallel_obstacle,
    tensor_parallel_obstacles,
    tensor_parallel_sizes,
    weight_bytes,
)
from tests.unit.fixture_models import FACTS, fixture_model

_SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def _read(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(_SMALL | changes), encoding="utf-8")
    return read_model(folder, weights=False)


@pytest.mark.parametrize("name", FACTS)
def test_sizes_computed_from_the_geometry_are_the_published_ones(name: str) -> None:
    facts, profile = FACTS[name], fixture_model(name)
    count = count_parameters(profile)
    assert count.total == facts["params"]
    assert count.experts == facts.get("expert_params", 0)
    if "active_params" in facts:
        assert count.active == facts["active_params"]
    assert weight_bytes(profile) == facts["bf16_bytes"]
    kv = facts.get("kv_bytes_per_token", facts.get("kv_bytes_per_token_per_rank"))
    assert kv_bytes_per_token(profile) == kv
    assert [n for n in tensor_parallel_sizes(profile) if n <= 64] == facts["valid_tp"]


# Ranks beyond the number of key-value heads hold copies; latent attention is never split.
@pytest.mark.parametrize(
    ("name", "size", "number_bytes", "held"),
    [
        ("Qwen2.5-72B", 4, 2, 81920),
        ("Qwen2.5-72B", 8, 2, 40960),
        ("Qwen2.5-72B", 16, 2, 40960),
        ("Qwen3-235B-A22B", 16, 2, 48128),
        ("DeepSeek-V3", 1, 2, 70272),
        ("DeepSeek-V3", 32, 2, 70272),
        ("Qwen3-32B", 2, 1, 65536),
    ],
)
def test_cache_bytes_of_one_rank(name: str, size: int, number_bytes: int, held: int) -> None:
    assert kv_bytes_per_token(fixture_model(name), size, number_bytes) == held


# Published: DeepSeek-R1 W8A8 takes about 691 GB, W4A8 about 376 GB.
@pytest.mark.parametrize(("bits", "gigabytes"), [(16, 1342), (8, 691), (4, 376)])
def test_quantised_weights_keep_scales_and_embeddings(bits: int, gigabytes: int) -> None:
    profile = fixture_model("DeepSeek-V3")
    assert round(weight_bytes(profile, bits) / 1e9) == gigabytes
    assert weight_bytes(replace(profile, weight_bits=bits)) == weight_bytes(profile, bits)


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4}, 4),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "awq"}, 4),
        ({"quant_method": "ptq", "weight_dtype": "int8", "activation_dtype": "int8"}, 8),
        ({"quant_method": "golden-stick"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            4,
        ),
        (None, 16),
    ],
)
def test_bits_of_a_quantised_weight(tmp_path: Path, quantisation: object, bits: int) -> None:
    assert _read(tmp_path, quantization_config=quantisation).weight_bits == bits


def test_tied_embeddings_are_counted_once(tmp_path: Path) -> None:
    untied = count_parameters(_read(tmp_path)).total
    assert untied - count_parameters(_read(tmp_path, tie_word_embeddings=True)).total == 100 * 64


@pytest.mark.parametrize(
    ("keys", "experts"),
    [
        (
            {"num_local_experts": 8, "num_experts_per_tok": 2},
            Experts(layers=4, count=8, per_token=2, intermediate_size=128, shared_size=0),
        ),
        (
            {
                "n_routed_experts": 8,
                "n_shared_experts": 2,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "first_k_dense_replace": 1,
            },
            Experts(layers=3, count=8, per_token=2, intermediate_size=32, shared_size=64),
        ),
        (
            {
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 48,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [3],
            },
            Experts(layers=1, count=8, per_token=2, intermediate_size=32, shared_size=48),
        ),
        ({}, None),
    ],
)
def test_experts_are_read_in_the_words_of_every_family(
    tmp_path: Path, keys: dict[str, Any], experts: Experts | None
) -> None:
    profile = _read(tmp_path, **keys)
    assert profile.experts == experts
    all_sparse = experts is not None and experts.layers == 4
    assert profile.intermediate_size == (None if all_sparse else 128)


def test_latent_attention_is_read() -> None:
    profile = fixture_model("DeepSeek-V3")
    assert profile.latent_attention == LatentAttention(512, 1536, 128, 64, 128)
    assert profile.kv_heads == 1


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("Qwen2.5-7B", 8, "28 attention heads, which do not divide by 8"),
        ("Qwen2.5-14B", 16, "40 attention heads, which do not divide by 16"),
        ("Qwen2.5-7B", 7, "4 key-value heads, which 7 ranks can neither share out nor copy"),
        ("Qwen2.5-1.5B", 6, "intermediate_size 8960, which does not divide by 6"),
        ("Qwen3-8B", 5, "32 attention heads, which do not divide by 5"),
        ("Qwen3-8B", 8, ""),
    ],
)
def test_every_size_that_is_not_valid_has_its_reason(name: str, size: int, why: str) -> None:
    profile = fixture_model(name)
    assert tensor_parallel_obstacles(profile).get(size, "") == why
    if why:
        with pytest.raises(ConfigError, match="allowed: 1, 2"):
            check_tensor_parallel(profile, size)


@pytest.mark.parametrize(
    ("changes", "rules", "why"),
    [
        ({"vocab_size": 151}, {}, ""),
        ({"vocab_size": 151}, {"pads_vocabulary": False}, "vocab_size 151"),
        ({"num_experts": 8, "moe_intermediate_size": 33}, {}, "moe_intermediate_size 33"),
        ({"num_experts": 8, "moe_intermediate_size": 33}, {"expert_parallel": True}, ""),
    ],
)
def test_mindformers_vocabulary_and_expert_parallelism_change_what_divides(
    tmp_path: Path, changes: dict[str, Any], rules: dict[str, bool], why: str
) -> None:
    obstacle = tensor_parallel_obstacle(_read(tmp_path, **changes), 2, **rules)
    assert obstacle == (f"{why}, which does not divide by 2" if why else "")


def test_expert_parallelism_allows_sizes_that_cut_no_expert(tmp_path: Path) -> None:
    profile = _read(tmp_path, num_experts=8, moe_intermediate_size=33)
    with pytest.raises(ConfigError, match=r"moe_intermediate_size 33.*allowed: 1\."):
        check_tensor_parallel(profile, 4)
    check_tensor_parallel(profile, 4, expert_parallel=True)
    assert tensor_parallel_sizes(profile, expert_parallel=True) == [1, 2, 4]

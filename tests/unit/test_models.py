from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.models import (
    check_max_model_len,
    check_tensor_parallel,
    looks_like_folder,
    read_model,
    tensor_parallel_sizes,
)

_SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
_WITHOUT: Any = object()


def _folder(path: Path, config: dict[str, Any] | str, weights: str = "model.safetensors") -> Path:
    path.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8")
    (path / weights).write_bytes(b"weights")
    return path


def _changed(**changes: Any) -> dict[str, Any]:
    config = _SMOLLM2 | changes
    return {key: value for key, value in config.items() if value is not _WITHOUT}


def test_a_profile_holds_what_config_json_says(tmp_path: Path) -> None:
    profile = read_model(_folder(tmp_path / "SmolLM2", _SMOLLM2))
    assert (profile.name, profile.architectures) == ("SmolLM2", ("LlamaForCausalLM",))
    assert (profile.attention_heads, profile.kv_heads, profile.head_dim) == (9, 3, 64)
    assert (profile.layers, profile.vocab_size, profile.dtype) == (30, 49152, "bfloat16")
    assert profile.quantisation is None


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (_changed(dtype=_WITHOUT, torch_dtype="float16"), "dtype", "float16"),
        (_changed(num_key_value_heads=_WITHOUT), "kv_heads", 9),
        (_changed(head_dim=128), "head_dim", 128),
        (_changed(quantization_config={"quant_method": "awq"}), "quantisation", "awq"),
        (
            {
                "architectures": ["Qwen2_5_VLForConditionalGeneration"],
                "text_config": _changed(architectures=_WITHOUT, num_attention_heads=12),
            },
            "attention_heads",
            12,
        ),
        (
            {
                "architectures": ["GPT2LMHeadModel"],
                "n_embd": 768,
                "n_layer": 12,
                "n_head": 12,
                "n_positions": 1024,
                "vocab_size": 50257,
            },
            "max_position_embeddings",
            1024,
        ),
        (
            _changed(rope_scaling={"type": "linear", "factor": 4.0}),
            "max_position_embeddings",
            32768,
        ),
        (
            _changed(
                rope_scaling={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 8192,
                }
            ),
            "max_position_embeddings",
            32768,
        ),
        (
            _changed(rope_scaling={"rope_type": "llama3", "factor": 8.0}),
            "max_position_embeddings",
            8192,
        ),
        (_changed(intermediate_size=[1536, 3072]), "intermediate_size", None),
        (_changed(max_position_embeddings=_WITHOUT), "max_position_embeddings", None),
    ],
)
def test_other_ways_to_write_a_config_are_understood(
    tmp_path: Path, config: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(read_model(_folder(tmp_path, config)), field) == value


# Heads, key-value heads, intermediate size -> sizes that vLLM accepts.
@pytest.mark.parametrize(
    ("model", "config", "sizes"),
    [
        ("SmolLM2-135M", _SMOLLM2, [1, 3]),
        (
            "Qwen2.5-0.5B",
            _changed(num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864),
            [1, 2],
        ),
        (
            "Qwen2.5-3B",
            _changed(num_attention_heads=16, num_key_value_heads=2, intermediate_size=11008),
            [1, 2, 4, 8, 16],
        ),
        (
            "Qwen2.5-14B",
            _changed(num_attention_heads=40, num_key_value_heads=8, intermediate_size=13824),
            [1, 2, 4, 8],
        ),
        (
            "Qwen3-30B-A3B",
            _changed(
                num_attention_heads=32,
                num_key_value_heads=4,
                intermediate_size=6144,
                num_experts=128,
            ),
            [1, 2, 4, 8, 16, 32],
        ),
        (
            "DeepSeek-V3",
            _changed(
                num_attention_heads=128,
                num_key_value_heads=128,
                intermediate_size=18432,
                n_routed_experts=256,
                kv_lora_rank=512,
            ),
            [1, 2, 4, 8, 16, 32, 64, 128],
        ),
    ],
)
def test_tensor_parallel_sizes(
    tmp_path: Path, model: str, config: dict[str, Any], sizes: list[int]
) -> None:
    assert tensor_parallel_sizes(read_model(_folder(tmp_path / model, config))) == sizes


@pytest.mark.parametrize(
    ("config", "size", "why"),
    [
        (_SMOLLM2, 2, "9 attention heads, which do not divide by 2"),
        (_SMOLLM2, 9, "intermediate_size 1536, which does not divide by 9"),
        (
            _changed(num_attention_heads=12, num_key_value_heads=4),
            6,
            "4 key-value heads, which 6 ranks can neither share out nor copy",
        ),
    ],
)
def test_a_tensor_parallel_size_that_cannot_be_is_refused_with_the_ones_that_can(
    tmp_path: Path, config: dict[str, Any], size: int, why: str
) -> None:
    profile = read_model(_folder(tmp_path / "model", config))
    with pytest.raises(ConfigError) as refused:
        check_tensor_parallel(profile, size)
    assert f"tensor_parallel_size={size}. model has {why}. allowed: 1," in str(refused.value)
    check_tensor_parallel(profile, 1)


def test_a_context_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    profile = read_model(_folder(tmp_path, _SMOLLM2))
    check_max_model_len(profile, 8192)
    with pytest.raises(ConfigError, match=r"max_model_len=8193\..*allowed: 1 to 8192"):
        check_max_model_len(profile, 8193)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"architectures": ["A"],\n oops}', "at line 2, column 2"),
        ("[1, 2]", "it holds a list, not an object"),
        (_changed(num_attention_heads=_WITHOUT), "config.json lacks num_attention_heads"),
        (_changed(architectures=_WITHOUT), "config.json lacks architectures"),
        (_changed(hidden_size="576"), "hidden_size='576'. it must be a whole number above 0"),
        (_changed(num_attention_heads=0), "num_attention_heads=0"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_a_faulty_config_json_is_told_by_file_and_key(
    tmp_path: Path, config: dict[str, Any] | str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_model(_folder(tmp_path, config))
    assert str(tmp_path / "config.json") in str(refused.value)
    assert says in str(refused.value)


def test_a_missing_folder_is_told_with_its_nearest_neighbour(tmp_path: Path) -> None:
    _folder(tmp_path / "Qwen2.5-7B", _SMOLLM2)
    with pytest.raises(ConfigError, match=r'did you mean ".*/Qwen2\.5-7B"\?.*or a hub id'):
        read_model(tmp_path / "Qwen2-7B")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no config.json; it holds nothing"),
        ({"notes.txt": b"x"}, "holds no config.json; it holds notes.txt"),
        ({"model.Q4.gguf": b"GGUF"}, "GGUF files are not served as they are"),
        ({"config.json": b"{}", "tokenizer.json": b"{}"}, "holds no weights (*.safetensors"),
        ({"config.json": b"{}", "model.safetensors": b""}, "holds no weights"),
        (
            {"config.json": b"{}", "model.safetensors": b"version https://git-lfs.github.com/"},
            "it is a Git LFS pointer",
        ),
        (
            {
                "config.json": b"{}",
                "a-1-of-2.safetensors": b"x",
                "model.safetensors.index.json": b'{"weight_map": {"w": "a-1-of-2.safetensors",'
                b' "v": "a-2-of-2.safetensors"}}',
            },
            "1 of 2 weight files are missing: a-2-of-2.safetensors",
        ),
    ],
)
def test_an_incomplete_folder_is_told_with_what_is_missing(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_model(tmp_path)
    assert says in str(refused.value)


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="it is a file"):
        read_model(tmp_path / "model.gguf")


def test_local_folders_and_hub_ids_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    local = ("/models/a", "./a", "../a", "~/a", "here")
    hub = ("Qwen/Qwen2.5-0.5B-Instruct", "gpt2", "")
    assert [looks_like_folder(name) for name in local] == [True] * len(local)
    assert [looks_like_folder(name) for name in hub] == [False] * len(hub)

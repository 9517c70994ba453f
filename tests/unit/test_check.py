"""What is refused before Ray or an engine starts, in the words that CLI, log and status share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from serve_apps.check import check
from serve_apps.config import DeployConfig

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def checked(**args: Any) -> DeployConfig:
    return check(DeployConfig.from_args(args), say=lambda line: None)


def test_a_sound_configuration_is_resolved(model: Path) -> None:
    (found,) = checked(model=str(model), tensor_parallel_size="2").models
    assert found.engine == "vllm"
    assert found.name == model.name


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"tensor_parallel_size": 3}, r"tensor_parallel_size=3.*14"),
        ({"tensor_parallel_size": 28}, r"tensor_parallel_size=28"),
        ({"max_model_len": 40000}, r"max_model_len=40000.*32768"),
        ({"engine_args": "--max-num-seq 4"}, r'--max-num-seq.*did you mean "max-num-seqs"'),
        ({"engine_args": "--port 8000"}, r"--port.*sets it itself"),
        ({"engine_args": "-tp 2"}, r"-tp.*sets it itself"),
        ({"engine_python": "/no/such/python"}, r'engine_python="/no/such/python".*no such'),
    ],
)
def test_what_vllm_would_refuse_is_refused_first(
    model: Path, args: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        checked(model=str(model), **args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        "--max-num-seqs 4",
        "--max_num_seqs=4",
        "--no-enable-prefix-caching",
        "--compilation-config.mode 0",
    ],
)
def test_flags_in_every_spelling_that_vllm_takes_pass(model: Path, flags: str) -> None:
    checked(model=str(model), engine_args=flags)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"hidden_size": ', r"config\.json.*line 1"),
        ("[]", r"config\.json.*object"),
        ('{"model_type": "qwen2"}', r"config\.json"),
    ],
)
def test_a_config_json_at_fault_is_named(model: Path, content: str, told: str) -> None:
    (model / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=told):
        checked(model=str(model))


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/no/such/folder"):
        checked(model="/no/such/folder")

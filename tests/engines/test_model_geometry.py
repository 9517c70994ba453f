from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.models import count_parameters, read_model

_SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "pad_token_id": 0,
}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
_ROUTED = _EXPERTS | {"n_routed_experts": 8, "first_k_dense_replace": 1}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("mixtral", {"num_local_experts": 4}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3_moe", _EXPERTS | {"num_experts": 4, "mlp_only_layers": [1]}),
        ("glm4", {}),
        ("glm4_moe", _ROUTED),
        ("gemma2", {}),
        ("deepseek_v2", _ROUTED | {"q_lora_rank": None}),
        ("deepseek_v3", _ROUTED | {"n_group": 2, "topk_group": 1, "q_lora_rank": 32}),
    ],
)
def test_parameters_are_those_of_the_network_itself(
    tmp_path: Path, model_type: str, keys: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **_SHAPE, **keys)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(network).__name__]
    config.save_pretrained(tmp_path)
    real = sum(parameter.numel() for parameter in network.parameters())
    # Routers' biases are loaded from the checkpoint, but are no parameters to torch.
    real += sum(b.numel() for name, b in network.named_buffers() if "score_correction" in name)
    assert count_parameters(read_model(tmp_path, weights=False)).total == real

"""How many parameters a model has and how many bytes it takes, from its geometry alone.

Exact for decoders with gated feed-forward layers and the attention of Llama, Qwen, GLM, Mixtral
and DeepSeek; within a percent for older families, whose biases and position tables are left out.
Vision towers and multi-token-prediction layers are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.models.profile import ModelProfile

# model_type -> what its attention has beyond four plain matrices, told by no key of config.json.
_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"}
_QK_NORM = {"qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"}
_OUTPUT_BIAS = {"llama", "qwen3", "qwen3_moe"}  # `attention_bias` covers the output matrix too
_FOUR_NORMS = {"glm4", "gemma2", "gemma3_text"}
_ROUTER_BIAS = {"deepseek_v3", "glm4_moe"}
_UNGATED = {
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "mpt",
    "opt",
    "phi",
    "starcoder2",
}

# Bytes for one parameter, by bits of a weight. Quantised checkpoints keep scales, and norms and
# embeddings in 16 bits; the averages are those of DeepSeek-R1 W8A8 and W4A8 and Qwen3 W8A8.
_BYTES = {16: 2.0, 8: 1.03, 4: 0.56}


@dataclass(frozen=True)
class Parameters:
    """Counts of parameters: `experts` are those of routed experts, `active` work for one token."""

    total: int
    experts: int
    active: int


def count_parameters(profile: ModelProfile) -> Parameters:
    """Count the parameters of `profile`."""
    hidden, experts = profile.hidden_size, profile.experts
    embeddings = profile.vocab_size * hidden * (1 if profile.tied_embeddings else 2)
    norms = (4 if profile.model_type in _FOUR_NORMS else 2) * hidden
    total = embeddings + hidden + profile.layers * (_attention(profile) + norms)
    dense_layers = profile.layers - (experts.layers if experts else 0)
    total += dense_layers * _feed_forward(profile, profile.intermediate_size or 4 * hidden)
    if experts is None:
        return Parameters(total, 0, total)
    router = experts.count * (hidden + (profile.model_type in _ROUTER_BIAS))
    total += experts.layers * (router + _feed_forward(profile, experts.shared_size))
    one = experts.layers * _feed_forward(profile, experts.intermediate_size)
    return Parameters(
        total + experts.count * one, experts.count * one, total + experts.per_token * one
    )


def weight_bytes(profile: ModelProfile, bits: int | None = None) -> int:
    """Bytes of all weights in `bits` bits (None: as the model is)."""
    return round(count_parameters(profile).total * bytes_per_parameter(bits or profile.weight_bits))


def bytes_per_parameter(bits: int) -> float:
    """Bytes that one parameter takes on average in a model of `bits` bits, scales included."""
    return _BYTES.get(bits, bits / 8)


def kv_bytes_per_token(
    profile: ModelProfile, tensor_parallel_size: int = 1, number_bytes: int = 2
) -> int:
    """Bytes of KV cache that one rank holds for one token, over all layers.

    Ranks share out key-value heads until each has one; beyond that they hold copies. The cache of
    multi-head latent attention is not split at all. Sliding windows are not taken off.
    """
    if latent := profile.latent_attention:
        numbers = latent.kv_rank + latent.rope_dim
    else:
        numbers = 2 * max(profile.kv_heads // tensor_parallel_size, 1) * profile.head_dim
    return profile.layers * numbers * number_bytes


def _feed_forward(profile: ModelProfile, size: int) -> int:
    return (2 if profile.model_type in _UNGATED else 3) * profile.hidden_size * size


def _attention(profile: ModelProfile) -> int:
    hidden, heads = profile.hidden_size, profile.attention_heads
    if latent := profile.latent_attention:
        query = heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        return (
            (rank * (hidden + 1 + query) if rank else hidden * query)
            + hidden * (latent.kv_rank + latent.rope_dim)
            + latent.kv_rank * (1 + heads * (latent.nope_dim + latent.value_dim))
            + heads * latent.value_dim * hidden
        )
    queries, keys = heads * profile.head_dim, profile.kv_heads * profile.head_dim
    count = 2 * hidden * (queries + keys)
    if profile.attention_bias or profile.model_type in _QKV_BIAS:
        count += queries + 2 * keys
    if profile.attention_bias and profile.model_type in _OUTPUT_BIAS:
        count += hidden
    if profile.model_type in _QK_NORM:
        count += 2 * profile.head_dim
    return count

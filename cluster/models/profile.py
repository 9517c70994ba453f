"""What a model folder holds, read from its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.models.folder import check_folder, check_weights, read_object

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")

# The same number under the names that older model families gave it.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "head_dim": ("head_dim", "kv_channels"),
}
_REQUIRED = ("hidden_size", "layers", "attention_heads", "vocab_size")
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
)
_EXPERT_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERT_SIZES = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k")

# Where quantisation tools write how many bits a weight has; some write a type such as "int8".
_BITS = ("bits", "w_bit", "weight_bits", "num_bits", "weight_dtype")
_BITS_OF_METHOD: Mapping[str, int] = {"awq": 4, "gptq": 4, "mxfp4": 4, "bitsandbytes": 8}
_QUANTISED_BITS = 8


@dataclass(frozen=True)
class Experts:
    """The feed-forward layers of a mixture of experts.

    `layers` of the model have them: `count` routed experts each, `per_token` of them at work for
    a token. `intermediate_size` is that of one expert, `shared_size` that of all experts together
    that every token passes (0: none).
    """

    layers: int
    count: int
    per_token: int
    intermediate_size: int
    shared_size: int


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek), in numbers for one token.

    The cache holds `kv_rank + rope_dim` of them. `query_rank` is None where queries are not
    compressed; `nope_dim`, `rope_dim` and `value_dim` are for one head.
    """

    kv_rank: int
    query_rank: int | None
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class ModelProfile:
    """A model, as its config.json describes it.

    `max_position_embeddings` is the longest context in tokens, scaled RoPE included (None: not
    told). `intermediate_size` is that of the dense feed-forward layers, None where no layer is
    dense or layers differ. `kv_heads` is 1 for multi-head latent attention, whose cache every rank
    holds whole. `weight_bits` is 16 for weights that are not quantised, whatever `dtype` says:
    NPUs compute in 16 bits.
    """

    name: str
    path: Path
    architectures: tuple[str, ...]
    model_type: str
    hidden_size: int
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int | None
    max_position_embeddings: int | None
    dtype: str | None
    quantisation: str | None
    weight_bits: int
    tied_embeddings: bool
    attention_bias: bool
    experts: Experts | None
    latent_attention: LatentAttention | None


def read_model(folder: str | Path, *, weights: bool = True) -> ModelProfile:
    """Read the profile of the model in `folder`.

    Its weights must be complete, except with `weights=False`, for planning before a download.

    Raises:
        ConfigError: the folder is missing or incomplete, or its config.json is at fault.
    """
    path = Path(folder).expanduser().absolute()
    check_folder(path)
    config = read_object(path / "config.json")
    if weights:
        check_weights(path)
    return _profile(path, config)


def _profile(path: Path, config: dict[str, Any]) -> ModelProfile:
    file = path / "config.json"
    nested: dict[str, Any] = next(
        (config[key] for key in _TEXT_CONFIGS if isinstance(config.get(key), dict)), {}
    )
    text = config | {key: value for key, value in nested.items() if value is not None}
    sizes = {field: _size(file, text, names) for field, names in _NAMES.items()}
    missing = [_NAMES[field][0] for field in _REQUIRED if sizes[field] is None]
    architectures = config.get("architectures") or nested.get("architectures")
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        missing.insert(0, "architectures")
    if missing:
        raise ConfigError(
            f"{file} lacks {', '.join(missing)}",
            "an engine cannot tell how the model is built",
            "take config.json from where the model comes from",
        )
    heads, hidden = sizes["attention_heads"] or 1, sizes["hidden_size"] or 1
    experts = _experts(file, text, sizes["layers"] or 1)
    latent_attention = _latent_attention(file, text)
    single_kv_head = latent_attention is not None or text.get("multi_query")
    quantisation = text.get("quantization_config") or text.get("compression_config")
    if not isinstance(quantisation, dict):
        quantisation = None
    return ModelProfile(
        name=path.name,
        path=path,
        architectures=tuple(architectures or ()),
        model_type=str(config.get("model_type", "")),
        hidden_size=hidden,
        layers=sizes["layers"] or 1,
        attention_heads=heads,
        kv_heads=1 if single_kv_head else sizes["kv_heads"] or heads,
        head_dim=sizes["head_dim"] or hidden // heads,
        vocab_size=sizes["vocab_size"] or 1,
        intermediate_size=(
            None if experts and experts.layers == sizes["layers"] else sizes["intermediate_size"]
        ),
        max_position_embeddings=_longest_context(file, text),
        dtype=text.get("dtype") or text.get("torch_dtype"),
        quantisation=str(quantisation.get("quant_method", "unknown")) if quantisation else None,
        weight_bits=_weight_bits(quantisation) if quantisation else 16,
        # Where the key is missing, families differ; untied is the count that is safe.
        tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings"))),
        attention_bias=bool(text.get("attention_bias", text.get("qkv_bias"))),
        experts=experts,
        latent_attention=latent_attention,
    )


def _experts(file: Path, config: Mapping[str, Any], layers: int) -> Experts | None:
    count = next((config[name] for name in _EXPERT_COUNTS if config.get(name)), None)
    if count is None:
        return None
    size = _size(file, config, _EXPERT_SIZES) or 4 * config["hidden_size"]
    shared = config.get("shared_expert_intermediate_size") or size * (
        config.get("n_shared_experts") or config.get("num_shared_experts") or 0
    )
    # Qwen and DeepSeek each have a way to say which layers stay dense.
    step, dense = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    first = config.get("first_k_dense_replace") or 0
    sparse = [i for i in range(first, layers) if (i + 1) % step == 0 and i not in dense]
    return Experts(
        layers=len(sparse),
        count=_size(file, config, _EXPERT_COUNTS) or 1,
        per_token=_size(file, config, _EXPERTS_PER_TOKEN) or 1,
        intermediate_size=size,
        shared_size=shared,
    )


def _latent_attention(file: Path, config: Mapping[str, Any]) -> LatentAttention | None:
    kv_rank = _size(file, config, ("kv_lora_rank",))
    if kv_rank is None:
        return None
    nope_dim = _size(file, config, ("qk_nope_head_dim",)) or 128
    return LatentAttention(
        kv_rank=kv_rank,
        query_rank=_size(file, config, ("q_lora_rank",)),
        nope_dim=nope_dim,
        rope_dim=_size(file, config, ("qk_rope_head_dim",)) or 64,
        value_dim=_size(file, config, ("v_head_dim",)) or nope_dim,
    )


def _weight_bits(quantisation: Mapping[str, Any]) -> int:
    """How many bits a quantised weight has, by what the tool wrote or by its method."""
    if quantisation.get("load_in_4bit"):
        return 4
    groups = quantisation.get("config_groups")
    if isinstance(groups, dict):
        told = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    else:
        told = [quantisation]
    for place in (place for place in told if isinstance(place, Mapping)):
        for name in _BITS:
            if digits := re.search(r"\d+", str(place.get(name, ""))):
                return int(digits[0])
    return _BITS_OF_METHOD.get(str(quantisation.get("quant_method")), _QUANTISED_BITS)


def _size(file: Path, config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of `names` that is there, which must be a whole number above 0.

    A list (one number for each layer) counts as not told.
    """
    for name in names:
        value = config.get(name)
        if value is None or isinstance(value, list):
            continue
        if type(value) is not int or value < 1:
            raise ConfigError(f"{file}: {name}={value!r}", "it must be a whole number above 0")
        return value
    return None


def _longest_context(file: Path, config: Mapping[str, Any]) -> int | None:
    """The longest context that any engine version grants.

    vLLM 0.11 multiplies YaRN's original length by its factor, 0.32 takes max_position_embeddings
    as scaled already; both multiply for linear and dynamic scaling (`_get_and_verify_max_len`).
    """
    lengths = [length for name in _LENGTHS if (length := _size(file, config, (name,)))]
    if not lengths:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, dict) and isinstance(rope.get("factor"), (int, float)):
        kind = rope.get("rope_type", rope.get("type"))
        original = rope.get("original_max_position_embeddings")
        if kind in ("linear", "dynamic"):
            lengths.append(int(lengths[0] * rope["factor"]))
        elif kind == "yarn" and isinstance(original, int):
            lengths.append(int(original * rope["factor"]))
    return max(lengths)

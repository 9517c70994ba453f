"""Which tensor parallel sizes and contexts a model allows, and why not the others."""

from __future__ import annotations

from cluster.errors import ConfigError
from cluster.models.profile import ModelProfile


def tensor_parallel_sizes(profile: ModelProfile, *, expert_parallel: bool = False) -> list[int]:
    """Every tensor parallel size that the model can be split by."""
    return [
        size
        for size in range(1, profile.attention_heads + 1)
        if not tensor_parallel_obstacle(profile, size, expert_parallel=expert_parallel)
    ]


def tensor_parallel_obstacles(profile: ModelProfile, up_to: int = 64) -> dict[int, str]:
    """Why the model cannot be split, for each size up to `up_to` that is not valid."""
    reasons = {size: tensor_parallel_obstacle(profile, size) for size in range(1, up_to + 1)}
    return {size: why for size, why in reasons.items() if why}


def tensor_parallel_obstacle(
    profile: ModelProfile,
    size: int,
    *,
    pads_vocabulary: bool = True,
    expert_parallel: bool = False,
) -> str:
    """Why `size` ranks cannot share the model; an empty string if they can.

    vLLM pads the vocabulary to any size, MindFormers does not (`VocabEmbedding` raises "which is
    not divisible by size of tensor parallel"). With expert parallelism whole experts are shared
    out, so that their width does not matter.
    """
    heads, kv_heads, experts = profile.attention_heads, profile.kv_heads, profile.experts
    if size < 1 or heads % size:
        return f"{heads} attention heads, which do not divide by {size}"
    # Ranks either share out the key-value heads or hold copies of them, evenly.
    if kv_heads % size and size % kv_heads:
        return f"{kv_heads} key-value heads, which {size} ranks can neither share out nor copy"
    widths = {"intermediate_size": profile.intermediate_size}
    if experts and not expert_parallel:
        widths["moe_intermediate_size"] = experts.intermediate_size
    if not pads_vocabulary:
        widths["vocab_size"] = profile.vocab_size
    for name, width in widths.items():
        if width and width % size:
            return f"{name} {width}, which does not divide by {size}"
    return ""


def check_tensor_parallel(
    profile: ModelProfile, size: int, *, expert_parallel: bool = False
) -> None:
    """Refuse a tensor parallel size that the model cannot be split by.

    Raises:
        ConfigError: with the sizes that it can be split by.
    """
    if obstacle := tensor_parallel_obstacle(profile, size, expert_parallel=expert_parallel):
        sizes = tensor_parallel_sizes(profile, expert_parallel=expert_parallel)
        allowed = ", ".join(map(str, sizes))
        raise ConfigError(
            f"tensor_parallel_size={size}", f"{profile.name} has {obstacle}", f"allowed: {allowed}"
        )


def check_max_model_len(profile: ModelProfile, tokens: int) -> None:
    """Refuse a context that is longer than the model was made for.

    Raises:
        ConfigError: with the longest context of the model.
    """
    longest = profile.max_position_embeddings
    if longest is not None and tokens > longest:
        raise ConfigError(
            f"max_model_len={tokens}",
            f"the longest context of {profile.name} is {longest} tokens",
            f"allowed: 1 to {longest}",
        )

"""`rayscend model`: what a model folder holds, without loading it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cluster.layouts import GIB
from cluster.models import (
    ModelProfile,
    count_parameters,
    kv_bytes_per_token,
    mindformers_support,
    read_model,
    tensor_parallel_obstacles,
    tensor_parallel_sizes,
    weight_bytes,
)
from serve_apps.cli.arguments import missing_weights
from serve_apps.cli.report import Report, reports


@click.command(short_help="A model folder's geometry, sizes and splits.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--mindformers", default="1.7.0", show_default=True, help="MindFormers to judge by.")
@reports
def model(path: Path, mindformers: str) -> Report:
    """Show a model folder's geometry, sizes, and how it can be split.

    PATH needs no more than config.json; missing weights are told.
    """
    profile = read_model(path, weights=False)
    lacking = missing_weights(path)
    count, support = count_parameters(profile), mindformers_support(profile, mindformers)
    sizes, obstacles = tensor_parallel_sizes(profile), tensor_parallel_obstacles(profile)
    data = {
        **asdict(profile),
        "parameters": count,
        "weight_bytes": weight_bytes(profile),
        "kv_bytes_per_token": kv_bytes_per_token(profile),
        "tensor_parallel_sizes": sizes,
        "tensor_parallel_obstacles": obstacles,
        "mindformers": {"version": mindformers, **asdict(support)},
    }
    powers = {size: why for size, why in obstacles.items() if size & (size - 1) == 0}
    rows = {
        "architecture": f"{profile.architectures[0]} ({profile.model_type})",
        "geometry": _geometry(profile),
        "parameters": f"{count.total / 1e9:.2f} billion, {count.active / 1e9:.2f} for each token",
        "weights": f"{weight_bytes(profile) / GIB:.1f} GiB in {profile.weight_bits} bits"
        + (f" ({profile.quantisation})" if profile.quantisation else ""),
        "KV cache": f"{kv_bytes_per_token(profile) / 1024:g} KiB a token on one device",
        "context": f"{profile.max_position_embeddings or 'not told'} tokens",
        "splits by": ", ".join(map(str, sizes)),
        **{f"not by {size}": why for size, why in powers.items()},
        "MindFormers": f"{support.kind}: {support.why}",
    }
    table = "\n".join(f"  {name:<14}{value}" for name, value in rows.items())
    return Report(f"{profile.name}\n{table}", data, [lacking] if lacking else [])


def _geometry(profile: ModelProfile) -> str:
    heads = f"{profile.attention_heads} heads, {profile.kv_heads} for keys and values"
    if profile.latent_attention:
        heads = f"{profile.attention_heads} heads with latent attention"
    experts = profile.experts
    mixed = f", {experts.per_token} of {experts.count} experts" if experts else ""
    return f"{profile.layers} layers of {profile.hidden_size}, {heads}{mixed}"

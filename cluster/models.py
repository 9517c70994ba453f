"""What a model folder holds, read from its config.json without loading any engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError, did_you_mean

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.ckpt")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_LFS_POINTER = b"version https://git-lfs"

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
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class ModelProfile:
    """A model, as its config.json describes it.

    `max_position_embeddings` is the longest context in tokens, scaled RoPE included (None: not
    told). `intermediate_size` is that of the dense feed-forward layers, None for mixtures of
    experts. `kv_heads` is 1 for multi-head latent attention, whose cache every rank holds whole.
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


def looks_like_folder(model: str) -> bool:
    """Whether `model` means a local folder; a hub id otherwise."""
    return model.startswith(("/", "./", "../", "~")) or (bool(model) and Path(model).exists())


def read_model(folder: str | Path) -> ModelProfile:
    """Read the profile of the model in `folder`.

    Raises:
        ConfigError: the folder is missing or incomplete, or its config.json is at fault.
    """
    path = Path(folder).expanduser().absolute()
    _check_folder(path)
    config = _read_object(path / "config.json")
    _check_weights(path)
    return _profile(path, config)


def tensor_parallel_sizes(profile: ModelProfile) -> list[int]:
    """Every tensor parallel size that the model can be split by."""
    sizes = range(1, profile.attention_heads + 1)
    return [size for size in sizes if not _obstacle(profile, size)]


def check_tensor_parallel(profile: ModelProfile, size: int) -> None:
    """Refuse a tensor parallel size that the model cannot be split by.

    Raises:
        ConfigError: with the sizes that it can be split by.
    """
    if obstacle := _obstacle(profile, size):
        allowed = ", ".join(map(str, tensor_parallel_sizes(profile)))
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


def _obstacle(profile: ModelProfile, size: int) -> str:
    """Why `size` ranks cannot share the model; an empty string if they can."""
    heads, kv_heads = profile.attention_heads, profile.kv_heads
    if size < 1 or heads % size:
        return f"{heads} attention heads, which do not divide by {size}"
    # Ranks either share out the key-value heads or hold copies of them, evenly.
    if kv_heads % size and size % kv_heads:
        return f"{kv_heads} key-value heads, which {size} ranks can neither share out nor copy"
    if profile.intermediate_size and profile.intermediate_size % size:
        return f"intermediate_size {profile.intermediate_size}, which does not divide by {size}"
    return ""


def _check_folder(path: Path) -> None:
    if path.is_file():
        raise ConfigError(f'model="{path}"', "it is a file", "give the folder that it is in")
    if not path.is_dir():
        near = path.parent.iterdir() if path.parent.is_dir() else ()
        raise ConfigError(
            f'model="{path}"',
            "there is no such folder" + did_you_mean(str(path), near),
            "give a folder that holds config.json, or a hub id such as owner/name",
        )
    if not (path / "config.json").is_file():
        held = sorted(entry.name for entry in path.iterdir())
        only_gguf = any(name.endswith(".gguf") for name in held)
        raise ConfigError(
            f'model="{path}"',
            f"it holds no config.json; it holds {_listed(held)}",
            "GGUF files are not served as they are: give the model's safetensors folder"
            if only_gguf
            else "give the folder that the model was downloaded or saved into",
        )


def _read_object(file: Path) -> dict[str, Any]:
    remedy = "download the file again"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(str(file), f"it is not JSON: {error.msg} at {place}", remedy) from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigError(str(file), "it is not JSON in UTF-8", remedy) from None
    except OSError as error:
        raise ConfigError(str(file), f"it cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise ConfigError(str(file), f"it holds a {type(content).__name__}, not an object", remedy)
    return content


def _check_weights(path: Path) -> None:
    weights = {
        file.name for pattern in _WEIGHTS for file in path.glob(pattern) if file.stat().st_size
    }
    weights.difference_update(_NOT_WEIGHTS)
    if not weights:
        raise ConfigError(
            f'model="{path}"',
            f"it holds no weights ({', '.join(_WEIGHTS)}); it holds "
            + _listed(sorted(entry.name for entry in path.iterdir())),
            "complete the download",
        )
    for name in sorted(weights):
        with (path / name).open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise ConfigError(
                    str(path / name), "it is a Git LFS pointer, not the weights", "run git lfs pull"
                )
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = _read_object(index).get("weight_map")
        expected = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else set()
        if missing := sorted(expected - weights):
            raise ConfigError(
                f'model="{path}"',
                f"{len(missing)} of {len(expected)} weight files are missing: {_listed(missing)}",
                "complete the download",
            )


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
    latent_attention = "kv_lora_rank" in text
    dense = not any(text.get(name) for name in _EXPERTS)
    quantisation = text.get("quantization_config") or text.get("compression_config")
    return ModelProfile(
        name=path.name,
        path=path,
        architectures=tuple(architectures or ()),
        model_type=str(config.get("model_type", "")),
        hidden_size=hidden,
        layers=sizes["layers"] or 1,
        attention_heads=heads,
        kv_heads=1 if latent_attention or text.get("multi_query") else sizes["kv_heads"] or heads,
        head_dim=sizes["head_dim"] or hidden // heads,
        vocab_size=sizes["vocab_size"] or 1,
        intermediate_size=sizes["intermediate_size"] if dense else None,
        max_position_embeddings=_longest_context(file, text),
        dtype=text.get("dtype") or text.get("torch_dtype"),
        quantisation=str(quantisation.get("quant_method", "unknown")) if quantisation else None,
    )


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


def _listed(names: list[str], most: int = 8) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

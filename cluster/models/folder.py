"""A model's folder on disk: whether it is one, and whether it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError, did_you_mean

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.ckpt")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_LFS_POINTER = b"version https://git-lfs"


def looks_like_folder(model: str) -> bool:
    """Whether `model` means a local folder; a hub id otherwise."""
    return model.startswith(("/", "./", "../", "~")) or (bool(model) and Path(model).exists())


def check_folder(path: Path) -> None:
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


def read_object(file: Path) -> dict[str, Any]:
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


def check_weights(path: Path) -> None:
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
        shards = read_object(index).get("weight_map")
        expected = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else set()
        if missing := sorted(expected - weights):
            raise ConfigError(
                f'model="{path}"',
                f"{len(missing)} of {len(expected)} weight files are missing: {_listed(missing)}",
                "complete the download",
            )


def _listed(names: list[str], most: int = 8) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""MindFormers' predict yaml: what legacy models and MindIE's `ms` backend are configured by.

A legacy model has nothing else; an MCore model takes its geometry from config.json and needs the
yaml only outside vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ConfigError

_TOKENIZER_FILES = ("vocab_file", "merges_file", "tokenizer_file")


@dataclass(frozen=True)
class PredictYaml:
    """The settings of a predict yaml that decide whether and how it starts.

    `sections` is the file as it is; the rest are its values, MindFormers' defaults where it says
    nothing. Paths are as written. `max_device_gib` is `context.max_device_memory`, in GiB.
    """

    file: Path
    sections: Mapping[str, Any]
    legacy: bool
    architecture: str
    use_parallel: bool
    data_parallel: int
    model_parallel: int
    pipeline_stage: int
    load_checkpoint: str
    load_format: str
    auto_transform: bool
    source_strategy: str
    pretrained_model_dir: str
    tokenizer_files: Mapping[str, str]
    max_device_gib: float | None

    @property
    def ranks(self) -> int:
        """How many devices it runs on, as run_mindie.sh counts them."""
        if not self.use_parallel:
            return 1
        return self.data_parallel * self.model_parallel * self.pipeline_stage


def read_predict_yaml(file: Path) -> PredictYaml:
    """Read one predict yaml.

    Raises:
        ConfigError: it cannot be read, is not YAML, or a value has the wrong type.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(str(file), f"it cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(file), "it is not YAML: " + " ".join(str(error).split())) from None
    root = _Section(file, content)
    parallel, model = root.section("parallel_config"), root.section("model")
    tokenizer = root.section("processor").section("tokenizer")
    memory = re.fullmatch(
        r"(\d+(?:\.\d+)?)\s*GB", root.section("context").value("max_device_memory", str, "")
    )
    return PredictYaml(
        file=file,
        sections=root.content,
        legacy=root.value("use_legacy", bool, True),
        architecture=model.section("arch").value("type", str, ""),
        use_parallel=root.value("use_parallel", bool, False),
        data_parallel=parallel.value("data_parallel", int, 1),
        model_parallel=parallel.value("model_parallel", int, 1),
        pipeline_stage=parallel.value("pipeline_stage", int, 1),
        load_checkpoint=root.value("load_checkpoint", str, ""),
        load_format=root.value("load_ckpt_format", str, "ckpt"),
        auto_transform=root.value("auto_trans_ckpt", bool, False),
        source_strategy=root.value("src_strategy_path_or_dir", str, ""),
        pretrained_model_dir=root.value("pretrained_model_dir", str, ""),
        tokenizer_files={
            name: path for name in _TOKENIZER_FILES if (path := tokenizer.value(name, str, ""))
        },
        max_device_gib=float(memory[1]) if memory else None,
    )


@dataclass(frozen=True)
class _Section:
    """A mapping of the file, read with the types that MindFormers expects.

    `prefix` is its name with a dot, empty for the whole file.
    """

    file: Path
    content: Any
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.content, dict):
            what = self.prefix.rstrip(".") or "the file"
            kind = type(self.content).__name__
            raise ConfigError(f"{self.file}: {what} is a {kind}", "it must be a mapping")

    def section(self, key: str) -> _Section:
        content = self.content.get(key)
        return _Section(self.file, {} if content is None else content, f"{self.prefix}{key}.")

    def value(self, key: str, kind: type[Any], default: Any) -> Any:
        value = self.content.get(key)
        if value is None:
            return default
        if type(value) is not kind:
            raise ConfigError(
                f"{self.file}: {self.prefix}{key}: {value!r}",
                f"it must be of type {kind.__name__}, not {type(value).__name__}",
                "mind the quotes: 'True' is text, True is not",
            )
        return value

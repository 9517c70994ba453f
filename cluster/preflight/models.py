"""Checks of models on a machine: whether the engine takes them, whether they fit, their files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cluster.blueprint import wishes_of
from cluster.engines import EngineSpec, engine_named
from cluster.errors import ConfigError
from cluster.findings import Finding, Level
from cluster.layouts import GIB, Devices, Wishes
from cluster.models import (
    ModelProfile,
    check_predict_folder,
    looks_like_folder,
    mindformers_support,
    read_model,
    weight_bytes,
)
from cluster.planner import plan
from cluster.preflight.machine import Machine
from cluster.preflight.task import Task
from cluster.specifiers import applies

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenization_*.py")
_MINDIE_MODE = 0o640
_READS_YAML = "vllm-mindspore<0.4; mindie"


def models(machine: Machine, task: Task) -> Iterator[Finding]:
    """Everything about every model of the task that would be refused, here."""
    for spec in task.specs:
        try:
            wishes_of(spec, None)
            engine_named(spec.engine).check(spec)
        except ConfigError as error:
            yield Finding.of("model-refused", error)
        if spec.engine == "simulated" or not looks_like_folder(spec.model):
            continue
        try:
            profile = read_model(spec.model, weights=False)
            wishes, _ = wishes_of(spec, spec.tensor_parallel_size)
        except ConfigError:
            continue  # told already
        yield from _fit(machine, wishes, profile)
        yield from _files(machine, profile)
        yield from _mindformers(machine, spec, profile)


def _fit(machine: Machine, wishes: Wishes, profile: ModelProfile) -> Iterator[Finding]:
    gib = machine.device_gib
    count = len(machine.inventory.visible)
    size = wishes.tensor_parallel_size or 1
    if gib and size <= count:
        wishes = replace(wishes, pipeline_parallel_size=wishes.pipeline_parallel_size or 1)
        found = plan(profile, Devices((count,), gib), wishes)
        if found.smallest is None:
            yield Finding(
                "model-fit",
                Level.ERROR,
                f"{profile.name} with tensor_parallel_size={size} on {count}"
                f" devices of {gib:g} GiB",
                found.why_not,
                "; ".join(map(str, found.remedies)),
            )
    needed = weight_bytes(profile)
    if machine.free_memory and needed > machine.free_memory:
        yield Finding(
            "model-memory",
            # NPUs get them piece by piece, but not from every kind of checkpoint.
            Level.WARNING if count else Level.ERROR,
            f"{profile.name} has {needed / GIB:.1f} GiB of weights",
            f"{machine.host} has {machine.free_memory / GIB:.1f} GiB of memory free",
            "free memory, or serve a smaller model",
        )


def _files(machine: Machine, profile: ModelProfile) -> Iterator[Finding]:
    folder = profile.path
    if not any(any(folder.glob(name)) for name in _TOKENIZERS):
        yield Finding(
            "model-tokenizer",
            Level.WARNING,
            f"{folder} holds no tokenizer ({', '.join(_TOKENIZERS[:3])})",
            "an engine would look for it on a hub, which a node offline cannot reach",
            "copy the tokenizer's files of the model into the folder",
        )
    described = [file.name for file in sorted(folder.glob("quant_model_description*.json"))]
    if described and profile.quantisation is None:
        yield Finding(
            "model-quantisation",
            Level.ERROR,
            f"{folder} holds {described[0]}",
            "config.json says nothing of quantisation, so that the weights are read as whole ones",
            'write "quantize" or "quantization_config" into config.json, as the tool\'s guide says',
        )
    if "mindie" in machine.stack:
        yield from _mindie_files(folder)


def _mindie_files(folder: Path) -> Iterator[Finding]:
    mode = stat.S_IMODE((folder / "config.json").stat().st_mode)
    if mode & ~_MINDIE_MODE:
        yield Finding(
            "model-mode",
            Level.ERROR,
            f"{folder / 'config.json'} has mode {mode:o}",
            "MindIE refuses files that others may read",
            f"chmod 640 {folder / 'config.json'}, and the other files",
            "https://github.com/gpustack/gpustack/issues/2552",
        )


def _mindformers(machine: Machine, spec: EngineSpec, profile: ModelProfile) -> Iterator[Finding]:
    version = machine.stack.get("mindformers")
    if not version:
        return
    support = mindformers_support(profile, version)
    if support.kind == "mcore":
        return
    if applies(_READS_YAML, machine.stack):
        size, gib = spec.tensor_parallel_size, machine.device_gib
        yield from check_predict_folder(profile.path, size, profile, gib)
    else:
        yield Finding(
            "model-unsupported",
            Level.WARNING,
            f"{profile.name} ({profile.architectures[0]}) with MindFormers {version}",
            support.why,
            "take releases that know it, try VLLM_MS_MODEL_BACKEND=Native, or serve another model",
            "https://github.com/gpustack/gpustack/issues/2726",
        )

"""Checks of a predict yaml and its folder, before MindFormers or MindIE meets them.

Sources: the MindFormers service deployment page, its `scripts/run_mindie.sh` and inference guide,
and MindIE's `MFModelWrapper`, which takes the first `*.yaml` that `os.listdir` of the folder names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ConfigError
from cluster.findings import Finding, Level
from cluster.models.predict_yaml import PredictYaml, read_predict_yaml
from cluster.models.profile import ModelProfile
from cluster.models.splits import tensor_parallel_obstacle

_PARALLEL_SIZES = ("data_parallel", "model_parallel", "pipeline_stage")
# What people write by analogy -> the key that MindFormers reads.
_MISNAMED = {
    "pipeline_parallel": "pipeline_stage",
    "pipeline_parallel_size": "pipeline_stage",
    "tensor_parallel": "model_parallel",
    "tensor_parallel_size": "model_parallel",
}


def check_predict_folder(
    folder: Path,
    ranks: int | None = None,
    profile: ModelProfile | None = None,
    device_gib: float | None = None,
) -> list[Finding]:
    """Check the model folder of a legacy model or of MindIE's `ms` backend.

    `ranks` is how many devices the model is to run on (None: as the yaml says); with `profile`
    the split is checked against the model, with `device_gib` the memory against one device. The
    folder need not be complete or even exist.
    """
    findings = list(_check_folder(folder))
    for file in sorted(folder.glob("*.yaml")):
        try:
            settings = read_predict_yaml(file)
        except ConfigError as error:
            findings.append(Finding.of("predict-yaml-unreadable", error))
        else:
            findings += check_predict_yaml(settings, ranks, profile, device_gib)
    return findings


def check_predict_yaml(
    settings: PredictYaml,
    ranks: int | None = None,
    profile: ModelProfile | None = None,
    device_gib: float | None = None,
) -> list[Finding]:
    """Check one predict yaml; the arguments are those of `check_predict_folder`."""
    return [
        *_check_names(settings),
        *_check_ranks(settings, ranks),
        *_check_split(settings, profile),
        *_check_memory(settings, device_gib),
        *_check_model(settings),
        *_check_checkpoint(settings),
        *_check_tokenizer(settings),
    ]


def _check_folder(folder: Path) -> Iterator[Finding]:
    files = sorted(file.relative_to(folder) for file in folder.rglob("*.yaml"))
    top = [str(file) for file in files if len(file.parts) == 1]
    below = [str(file) for file in files if len(file.parts) > 1]
    if not top:
        yield Finding(
            "predict-yaml-missing",
            Level.ERROR,
            f"{folder} holds no *.yaml",
            "a legacy model is described by nothing else",
            "copy predict_*.yaml of the model from MindFormers into it",
        )
    if len(top) > 1:
        yield Finding(
            "predict-yaml-several",
            Level.ERROR,
            f"{folder} holds {', '.join(top)}",
            "MindIE takes whichever its file system names first",
            "keep exactly one yaml in the folder",
        )
    if below:
        yield Finding(
            "predict-yaml-below",
            Level.WARNING,
            f"{folder} holds {', '.join(below)}",
            "run_mindie.sh searches subfolders too and mixes the files up",
            "move it out of the model folder",
        )
    if not (folder / "config.json").is_file():
        yield Finding(
            "predict-config-json-missing",
            Level.ERROR,
            f"{folder} holds no config.json",
            "MindIE reads torch_dtype and vocab_size from it",
            "copy the model's config.json next to the yaml",
        )


def _check_names(settings: PredictYaml) -> Iterator[Finding]:
    parallel = settings.sections.get("parallel_config") or {}
    for wrong, right in _MISNAMED.items():
        if wrong in parallel:
            yield Finding(
                "predict-yaml-key",
                Level.ERROR if parallel[wrong] != 1 else Level.WARNING,
                f"{settings.file}: parallel_config.{wrong}: {parallel[wrong]}",
                f"MindFormers reads {right}; without it run_mindie.sh cannot count the devices",
                f"write {right}: {parallel[wrong]}",
            )


def _check_ranks(settings: PredictYaml, ranks: int | None) -> Iterator[Finding]:
    file = settings.file
    product = " x ".join(f"{name} {getattr(settings, name)}" for name in _PARALLEL_SIZES)
    sizes = settings.data_parallel * settings.model_parallel * settings.pipeline_stage
    wanted = ranks or sizes
    if settings.use_parallel != (wanted > 1):
        yield Finding(
            "predict-yaml-use-parallel",
            Level.ERROR,
            f"{file}: use_parallel: {settings.use_parallel}",
            f"it must be {wanted > 1} for {wanted} devices",
            f"write use_parallel: {wanted > 1}",
        )
    if sizes != wanted:
        yield Finding(
            "predict-yaml-ranks",
            Level.ERROR,
            f"{file}: {product} is {sizes}",
            f"the model is to run on {wanted} devices",
            f"write model_parallel: {wanted}",
        )
    if settings.data_parallel != 1:
        yield Finding(
            "predict-yaml-data-parallel",
            Level.ERROR,
            f"{file}: data_parallel: {settings.data_parallel}",
            "MindFormers' own inference knows no data parallelism",
            "write data_parallel: 1 and serve several replicas",
        )


def _check_split(settings: PredictYaml, profile: ModelProfile | None) -> Iterator[Finding]:
    if profile is None:
        return
    size = settings.model_parallel
    if obstacle := tensor_parallel_obstacle(profile, size, pads_vocabulary=False):
        yield Finding(
            "predict-yaml-split",
            Level.ERROR,
            f"{settings.file}: model_parallel: {size}",
            f"{profile.name} has {obstacle}",
            "rayscend model PATH lists the sizes that it can be split by",
        )


def _check_memory(settings: PredictYaml, device_gib: float | None) -> Iterator[Finding]:
    asked = settings.max_device_gib
    if device_gib is not None and asked is not None and asked >= device_gib:
        yield Finding(
            "predict-yaml-memory",
            Level.ERROR,
            f"{settings.file}: context.max_device_memory: {asked:g}GB",
            f"a device has {device_gib:g} GiB, some of them taken by the runtime",
            "write 59GB on devices of 64 GiB, 28GB on those of 32",
        )


def _check_model(settings: PredictYaml) -> Iterator[Finding]:
    file, directory = settings.file, settings.pretrained_model_dir
    if (mode := settings.sections.get("run_mode", "predict")) != "predict":
        yield Finding(
            "predict-yaml-run-mode",
            Level.ERROR,
            f"{file}: run_mode: {mode}",
            "MindFormers would take the training class of the model",
            "write run_mode: 'predict'",
        )
    if settings.legacy and not settings.architecture:
        yield Finding(
            "predict-yaml-architecture",
            Level.ERROR,
            f"{file}: model.arch.type is not set",
            "it names the legacy class of the model",
            "take it from MindFormers' own predict yaml, or write use_legacy: False for MCore",
        )
    if not settings.legacy and not (Path(directory) / "config.json").is_file():
        yield Finding(
            "predict-yaml-model-dir",
            Level.ERROR,
            f"{file}: pretrained_model_dir: '{directory}'",
            "it holds no config.json, which describes an MCore model",
            "give the absolute path of the model folder",
        )


def _check_checkpoint(settings: PredictYaml) -> Iterator[Finding]:
    file, written = settings.file, settings.load_checkpoint
    if not written:
        if settings.legacy or not settings.pretrained_model_dir:
            yield Finding(
                "predict-yaml-no-checkpoint",
                Level.ERROR,
                f"{file}: load_checkpoint is empty",
                "MindFormers only warns and answers from random weights",
                "give the absolute path of the weights",
            )
        return
    path = Path(written)
    if not path.is_absolute() or not path.exists():
        yield Finding(
            "predict-yaml-checkpoint",
            Level.ERROR,
            f"{file}: load_checkpoint: '{written}'",
            "there is no such path" if path.is_absolute() else "it is not an absolute path",
            "give the absolute path of the weights; it must exist on every node",
        )
        return
    split_for = len([part for part in path.glob("rank_*") if part.is_dir()])
    yield from _check_transform(settings, split_for)
    stored = any(path.glob("*.safetensors")) or any(path.glob("rank_*/*.safetensors"))
    if stored and settings.load_format != "safetensors":
        yield Finding(
            "predict-yaml-load-format",
            Level.ERROR,
            f"{file}: load_ckpt_format: {settings.load_format}",
            f"{written} holds safetensors",
            "write load_ckpt_format: 'safetensors'",
        )


def _check_transform(settings: PredictYaml, split_for: int) -> Iterator[Finding]:
    """Whether auto_trans_ckpt goes with weights split for `split_for` ranks (0: whole)."""
    ranks, transform = settings.ranks, settings.auto_transform
    saw = f"{settings.file}: auto_trans_ckpt: {transform}"
    weights = f"the weights are split for {split_for} ranks" if split_for else "they are whole"
    if split_for == ranks and split_for and transform:
        why, remedy = "they would be split a second time", "write auto_trans_ckpt: False"
    elif split_for and split_for != ranks and not (transform and settings.source_strategy):
        why = f"the model runs on {ranks}"
        remedy = "write auto_trans_ckpt: True and src_strategy_path_or_dir, or split them again"
    elif not split_for and ranks > 1 and not transform:
        why, remedy = f"{ranks} ranks need a part each", "write auto_trans_ckpt: True"
    else:
        return
    code = "predict-yaml-transform"
    yield Finding(code, Level.ERROR, saw, f"{weights}, and {why}", remedy)


def _check_tokenizer(settings: PredictYaml) -> Iterator[Finding]:
    for name, written in settings.tokenizer_files.items():
        path = Path(written)
        if not path.is_absolute() or not path.is_file():
            yield Finding(
                "predict-yaml-tokenizer",
                Level.ERROR,
                f"{settings.file}: processor.tokenizer.{name}: '{written}'",
                "there is no such file" if path.is_absolute() else "it is not an absolute path",
                "give the absolute path; it must exist on every node",
            )

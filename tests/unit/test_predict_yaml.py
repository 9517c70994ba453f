from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.errors import ConfigError
from cluster.findings import Level
from cluster.models import check_predict_folder, read_predict_yaml
from tests.unit.fixture_models import fixture_model

Change = Callable[[dict[str, Any]], Any]


def _folder(path: Path, ranks: int = 4) -> dict[str, Any]:
    """Make the model folder of the deployment guide; returns the settings of its yaml."""
    for name in ("config.json", "vocab.json", "merges.txt"):
        (path / name).write_text("{}", encoding="utf-8")
    for rank in range(ranks):
        part = path / "weights" / f"rank_{rank}"
        part.mkdir(parents=True)
        (part / "checkpoint.ckpt").write_bytes(b"weights")
    (path / "whole").mkdir()
    (path / "whole" / "model.safetensors").write_bytes(b"weights")
    return {
        "load_checkpoint": str(path / "weights"),
        "use_parallel": True,
        "auto_trans_ckpt": False,
        "run_mode": "predict",
        "parallel_config": {"data_parallel": 1, "model_parallel": ranks, "pipeline_stage": 1},
        "processor": {
            "tokenizer": {
                "vocab_file": str(path / "vocab.json"),
                "merges_file": str(path / "merges.txt"),
                "type": "Qwen2Tokenizer",
            }
        },
        "model": {"arch": {"type": "LlamaForCausalLM"}},
        "context": {"max_device_memory": "59GB"},
    }


def _write(path: Path, settings: dict[str, Any]) -> None:
    (path / "predict_model.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def test_the_values_that_decide_are_read(tmp_path: Path) -> None:
    _write(tmp_path, _folder(tmp_path))
    settings = read_predict_yaml(tmp_path / "predict_model.yaml")
    assert (settings.use_parallel, settings.model_parallel, settings.ranks) == (True, 4, 4)
    assert (settings.legacy, settings.architecture) == (True, "LlamaForCausalLM")
    assert settings.tokenizer_files["merges_file"] == str(tmp_path / "merges.txt")
    assert (settings.load_format, settings.max_device_gib) == ("ckpt", 59.0)


def test_a_right_folder_has_no_findings(tmp_path: Path) -> None:
    _write(tmp_path, _folder(tmp_path))
    profile = fixture_model("Qwen2.5-72B")
    assert check_predict_folder(tmp_path, ranks=4, profile=profile, device_gib=64) == []


def _set(*path_and_value: Any) -> Change:
    *path, last, value = path_and_value

    def change(settings: dict[str, Any]) -> None:
        for key in path:
            settings = settings.setdefault(key, {})
        settings[last] = value

    return change


def _rename_stage(value: int) -> Change:
    """As the deployment guide writes it."""

    def change(settings: dict[str, Any]) -> None:
        del settings["parallel_config"]["pipeline_stage"]
        settings["parallel_config"]["pipeline_parallel"] = value

    return change


@pytest.mark.parametrize(
    ("change", "code", "saw", "says"),
    [
        (_set("use_parallel", False), "use-parallel", "use_parallel: False", "True for 4 devices"),
        (_rename_stage(1), "key", "pipeline_parallel: 1", "write pipeline_stage: 1"),
        (_rename_stage(2), "key", "pipeline_parallel: 2", "write pipeline_stage: 2"),
        (
            _set("parallel_config", "model_parallel", 8),
            "ranks",
            "model_parallel 8",
            "to run on 4 devices",
        ),
        (
            _set("parallel_config", "pipeline_stage", 2),
            "ranks",
            "pipeline_stage 2 is 8",
            "to run on 4 devices",
        ),
        (
            _set("parallel_config", "data_parallel", 2),
            "data-parallel",
            "data_parallel: 2",
            "serve several replicas",
        ),
        (
            _set("parallel_config", "model_parallel", 3),
            "split",
            "model_parallel: 3",
            "64 attention heads",
        ),
        (_set("load_checkpoint", ""), "no-checkpoint", "load_checkpoint is empty", "random"),
        (_set("load_checkpoint", "weights"), "checkpoint", "'weights'", "not an absolute path"),
        (_set("load_checkpoint", "/no/such"), "checkpoint", "'/no/such'", "no such path"),
        (_set("auto_trans_ckpt", True), "transform", "auto_trans_ckpt: True", "second time"),
        (
            _set("processor", "tokenizer", "vocab_file", "/path/to/vocab.json"),
            "tokenizer",
            "vocab_file: '/path/to/vocab.json'",
            "no such file",
        ),
        (
            _set("processor", "tokenizer", "merges_file", "merges.txt"),
            "tokenizer",
            "merges_file: 'merges.txt'",
            "not an absolute path",
        ),
        (_set("run_mode", "train"), "run-mode", "run_mode: train", "training class"),
        (_set("model", "arch", "type", ""), "architecture", "model.arch.type", "legacy class"),
        (_set("use_legacy", False), "model-dir", "pretrained_model_dir: ''", "no config.json"),
        (_set("context", "max_device_memory", "70GB"), "memory", "70GB", "64 GiB"),
        (_set("use_parallel", "True"), "unreadable", "use_parallel: 'True'", "mind the quotes"),
        (_set("parallel_config", [4]), "unreadable", "parallel_config is a list", "a mapping"),
    ],
)
def test_each_fault_is_found_with_its_place_and_remedy(
    tmp_path: Path, change: Change, code: str, saw: str, says: str
) -> None:
    settings = _folder(tmp_path)
    change(settings)
    _write(tmp_path, settings)
    profile = fixture_model("Qwen2.5-72B")
    findings = check_predict_folder(tmp_path, ranks=4, profile=profile, device_gib=64)
    found = {finding.code: finding for finding in findings}
    finding = found[f"predict-yaml-{code}"]
    assert str(tmp_path / "predict_model.yaml") in finding.saw
    assert saw in finding.saw
    assert says in str(finding)


# Weights: whole, or split for four ranks.
@pytest.mark.parametrize(
    ("weights", "ranks", "transform", "strategy", "code"),
    [
        ("whole", 4, True, "", None),
        ("whole", 4, False, "", "predict-yaml-transform"),
        ("whole", 1, False, "", None),
        ("weights", 4, False, "", None),
        ("weights", 8, False, "", "predict-yaml-transform"),
        ("weights", 8, True, "", "predict-yaml-transform"),
        ("weights", 8, True, "/strategy", None),
        ("weights", 1, False, "", "predict-yaml-transform"),
    ],
)
def test_automatic_transformation_must_go_with_how_the_weights_are_split(
    tmp_path: Path, weights: str, ranks: int, transform: bool, strategy: str, code: str | None
) -> None:
    settings = _folder(tmp_path) | {
        "load_checkpoint": str(tmp_path / weights),
        "load_ckpt_format": "safetensors",
        "use_parallel": ranks > 1,
        "parallel_config": {"model_parallel": ranks},
        "auto_trans_ckpt": transform,
        "src_strategy_path_or_dir": strategy,
    }
    _write(tmp_path, settings)
    codes = [finding.code for finding in check_predict_folder(tmp_path)]
    assert codes == ([code] if code else [])


def test_safetensors_need_their_format_named(tmp_path: Path) -> None:
    settings = _folder(tmp_path) | {"load_checkpoint": str(tmp_path / "whole")}
    _write(tmp_path, settings | {"auto_trans_ckpt": True})
    assert [f.code for f in check_predict_folder(tmp_path)] == ["predict-yaml-load-format"]


def test_an_mcore_yaml_needs_the_model_folder_and_no_checkpoint(tmp_path: Path) -> None:
    settings = _folder(tmp_path) | {"load_checkpoint": "", "use_legacy": False}
    del settings["model"]
    _write(tmp_path, settings | {"pretrained_model_dir": str(tmp_path)})
    assert check_predict_folder(tmp_path) == []


@pytest.mark.parametrize(
    ("yamls", "codes"),
    [
        ([], ["predict-yaml-missing"]),
        (["a.yaml", "b.yaml"], ["predict-yaml-several"]),
        (["a.yaml", "old/b.yaml"], ["predict-yaml-below"]),
    ],
)
def test_exactly_one_yaml_belongs_in_the_folder(
    tmp_path: Path, yamls: list[str], codes: list[str]
) -> None:
    settings = _folder(tmp_path)
    for name in yamls:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert [finding.code for finding in check_predict_folder(tmp_path)] == codes


def test_all_faults_of_a_folder_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("parallel_config: {model_parallel: 4\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("use_parallel: True\n", encoding="utf-8")
    codes = [finding.code for finding in check_predict_folder(tmp_path, ranks=4)]
    assert codes == [
        "predict-yaml-several",
        "predict-config-json-missing",
        "predict-yaml-unreadable",
        "predict-yaml-ranks",
        "predict-yaml-architecture",
        "predict-yaml-no-checkpoint",
    ]


@pytest.mark.parametrize(("value", "level"), [(1, Level.WARNING), (2, Level.ERROR)])
def test_a_misnamed_key_breaks_only_what_differs_from_the_default(
    tmp_path: Path, value: int, level: Level
) -> None:
    settings = _folder(tmp_path)
    _rename_stage(value)(settings)
    _write(tmp_path, settings)
    assert [finding.level for finding in check_predict_folder(tmp_path)] == [level]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it cannot be read: No such file"):
        read_predict_yaml(tmp_path / "predict.yaml")

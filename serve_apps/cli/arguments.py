"""What `plan` and `doctor` are told: `key=value` as for `serve run app:deploy`, or a YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cluster.default_model import NAME as DEFAULT_MODEL
from cluster.default_model import default_model_folder
from cluster.engines import EngineSpec, engine_named
from cluster.errors import ConfigError
from cluster.findings import Finding, Level
from cluster.models import read_model
from serve_apps.check import applications_in, read_yaml
from serve_apps.config import DeployConfig, ModelConfig

STACK = click.option(
    "--stack",
    multiple=True,
    metavar="NAME=VERSION",
    help="Judge as if this were installed: vllm-mindspore=0.4.0, mindie=2.3.0, cann=8.3.RC1, …",
)


def read_config(words: Sequence[str]) -> DeployConfig:
    """Read `key=value …`, or one file: a Serve config file, or the keys of one application.

    All applications of a Serve config file are read as one: they share the machine.

    Raises:
        click.UsageError: a word is neither, or names an unknown key.
        ConfigError: what the file says is at fault.
    """
    if len(words) == 1 and "=" not in words[0]:
        return _from_file(Path(words[0]))
    args: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f'"{word}" is neither key=value nor the only file')
        args[key] = value
    try:
        return DeployConfig.from_args(args)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def read_stack(words: Sequence[str]) -> dict[str, str]:
    """Read the values of --stack."""
    pairs = [word.partition("=") for word in words]
    for word, (name, _, version) in zip(words, pairs, strict=True):
        if not name or not version:
            raise click.BadParameter(f'"{word}" is not NAME=VERSION', param_hint="--stack")
    return {name: version for name, _, version in pairs}


def spec_of(model: ModelConfig) -> EngineSpec:
    """The spec of a model with its engine named; the default model need not be made yet."""
    engine = engine_named(model.engine).name
    changes = {"engine": engine}
    if not model.model:
        changes["served_model_name"] = model.served_model_name or DEFAULT_MODEL
        if engine != "simulated":
            changes["model"] = str(default_model_folder())
    return model.model_copy(update=changes).spec()


def missing_weights(folder: str | Path) -> Finding | None:
    """The finding that a model's weights are not complete, which before a download is no error."""
    try:
        read_model(folder)
    except ConfigError as error:
        return Finding.of("model-weights", error, Level.WARNING)
    return None


def _from_file(file: Path) -> DeployConfig:
    if not file.is_file():
        raise click.UsageError(f"{file}: there is no such file, and it is not key=value")
    content = read_yaml(file)
    if isinstance(content, dict) and "applications" not in content:
        return DeployConfig.from_args(content)
    configs = [DeployConfig.from_args(args) for args in applications_in(content, file)]
    http = content.get("http_options") or {}
    return configs[0].model_copy(
        update={
            "models": tuple(model for config in configs for model in config.models),
            "http_host": http.get("host", configs[0].http_host),
            "http_port": http.get("port", configs[0].http_port),
        }
    )

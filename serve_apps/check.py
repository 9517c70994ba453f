"""Everything that can be found out about a configuration before Ray or an engine starts.

`rayscend plan --check deploy.yaml` does it for a Serve config file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster.default_model import NAME as DEFAULT_MODEL
from cluster.default_model import ensure_default_model
from cluster.engines import engine_named
from cluster.errors import ConfigError
from serve_apps.config import DeployConfig, ModelConfig

IMPORT_PATH = "app:deploy"


def check(config: DeployConfig, say: Callable[[str], None]) -> DeployConfig:
    """Return `config` with every model resolved, the default model made ready on the way.

    Raises:
        ConfigError: something in it cannot be served.
    """
    models = tuple(_resolved(model, say) for model in config.models)
    for model in models:
        engine_named(model.engine).check(model.spec())
    return config.model_copy(update={"models": models})


def _resolved(model: ModelConfig, say: Callable[[str], None]) -> ModelConfig:
    engine = engine_named(model.engine).name
    changes: dict[str, Any] = {"engine": engine}
    if not model.model:
        changes["served_model_name"] = model.served_model_name or DEFAULT_MODEL
        if engine != "simulated":
            changes["model"] = str(ensure_default_model(say))
    return model.model_copy(update=changes)


def check_file(path: Path, say: Callable[[str], None]) -> list[str]:
    """Check every application of ours in a Serve config file; return the names of the models.

    Raises:
        ConfigError: the file or one of its applications is at fault.
    """
    return [
        model.name
        for args in applications_in(read_yaml(path), path)
        for model in check(DeployConfig.from_args(args), say).models
    ]


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        ConfigError: it cannot be read, or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML", " ".join(str(error).split())) from None


def applications_in(content: Any, path: Path) -> list[dict[str, Any]]:
    """The `args` of each application of ours in the content of a Serve config file.

    Raises:
        ConfigError: it has none, or their args are no mapping.
    """
    applications = content.get("applications") if isinstance(content, dict) else None
    if not isinstance(applications, list) or not applications:
        raise ConfigError(
            f"{path} has no list under applications",
            "it is not a Ray Serve config file",
            f"see deploy.yaml in the repository: applications: [{{import_path: {IMPORT_PATH}}}]",
        )
    found: list[dict[str, Any]] = []
    for application in applications:
        if not isinstance(application, dict) or application.get("import_path") != IMPORT_PATH:
            continue
        args = application.get("args") or {}
        if not isinstance(args, dict):
            raise ConfigError(f"{path}: args={args!r}", "it must be a mapping of keys to values")
        found.append(args)
    if not found:
        raise ConfigError(f"{path} has no application with import_path: {IMPORT_PATH}")
    return found

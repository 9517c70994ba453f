"""From a DeployConfig to a Ray Serve application."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

import click
import ray
from ray.serve import Application, Deployment

from cluster.errors import RayscendError
from cluster.nodes import node_count
from serve_apps import console
from serve_apps.autoscaling import autoscaling_config
from serve_apps.check import check
from serve_apps.config import DeployConfig, ModelConfig
from serve_apps.ingress import Gateway, ServedModel
from serve_apps.replica import STOP_GRACE_S, EngineReplica, ReplicaSettings


def deploy(args: Mapping[str, Any]) -> Application:
    """Build the application that `args` describe (see DeployConfig).

    Under `serve run app:deploy` a mistake ends the command with one line and exit code 1 before
    Ray starts; elsewhere it is raised as it is.
    """
    command = _serve_run()
    try:
        config = check(DeployConfig.from_args(args), say=console.say)
        if command is not None and not command.params.get("address") and not ray.is_initialized():
            console.start_here(config, command.params["name"])
    except RayscendError as error:
        if command is None:
            raise
        sys.exit(str(error))
    return build(config)


def build(config: DeployConfig) -> Application:
    """One deployment for each model, and the gateway in front of them."""
    models = config.models
    replicas = [_replicas(model, sum(other.most_replicas for other in models)) for model in models]
    served = tuple(ServedModel(m.name, m.deployment_name, m.max_ongoing_requests) for m in models)
    drain_s = max(model.drain_timeout_s for model in models) + STOP_GRACE_S
    gateway = cast(Deployment, Gateway).options(
        num_replicas=config.gateway_replicas or (node_count() if ray.is_initialized() else 1),
        graceful_shutdown_timeout_s=drain_s,
    )
    return gateway.bind(served, config.gateway, *replicas)


def _replicas(model: ModelConfig, sharers: int) -> Application:
    settings = ReplicaSettings(
        max_ongoing_requests=model.max_ongoing_requests,
        drain_timeout_s=model.drain_timeout_s,
        stall_after_s=model.stall_after_s,
        stall_limit_s=model.stall_limit_s,
        sharers=sharers,
    )
    scale: dict[str, Any] = {"num_replicas": model.most_replicas}
    if model.max_replicas is not None:
        scale = {"autoscaling_config": autoscaling_config(model)}
    deployment = cast(Deployment, EngineReplica).options(
        name=model.deployment_name,
        graceful_shutdown_timeout_s=model.drain_timeout_s + 2 * STOP_GRACE_S,
        ray_actor_options={"num_cpus": model.num_cpus},
        **scale,
    )
    return deployment.bind(model.spec(), settings)


def _serve_run() -> click.Context | None:
    """The context of the `serve run` command that calls us, if one does."""
    context = click.get_current_context(silent=True)
    return context if context is not None and context.info_name == "run" else None

"""`rayscend plan`: what would run, with no cluster and nothing started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from cluster.blueprint import ASCEND_STACK, Blueprint, Served, on_cpu, on_devices, wishes_of
from cluster.engines import EngineSpec, engine_named
from cluster.environment.advice import check_environment
from cluster.errors import ConfigError
from cluster.findings import Finding, Level
from cluster.layouts import Devices
from cluster.models import looks_like_folder, read_model
from cluster.planner import Plan
from cluster.planner import plan as find_layout
from cluster.preflight import judged_stack, worst_first
from cluster.specifiers import Stack
from cluster.versions import check_stack, installed_packages
from serve_apps.check import check_file
from serve_apps.cli.arguments import STACK, missing_weights, read_config, read_stack, spec_of
from serve_apps.cli.report import Report, progress, reports
from serve_apps.config import DeployConfig, ModelConfig

_BY_HAND = Finding(
    "plan-by-hand",
    Level.NOTE,
    "this is a plan for NPUs",
    "Rayscend does not place replicas on NPUs by itself yet, and has not run on them",
    "export and run on each node what stands above",
)


@dataclass(frozen=True)
class _Planned:
    """The models and what would run for them; `plans` are the planner's, on NPUs."""

    models: tuple[Served, ...]
    blueprint: Blueprint | None
    findings: list[Finding]
    plans: list[Plan] = field(default_factory=list)


@click.command(short_help="What would run: layout, environment, ports, command lines.")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE ... | FILE]")
@click.option("--devices", metavar="NODESxDEVICESxGIB", help='NPUs to plan for, such as "2x8x64".')
@click.option("--node", "nodes", multiple=True, metavar="ADDRESS", help="A node's; once for each.")
@click.option("--interface", default="<interface>", help="Network interface that nodes share.")
@click.option("--smallest", is_flag=True, help="The fewest devices, not the recommended layout.")
@STACK
@click.option(
    "--check",
    "file",
    type=click.Path(path_type=Path),
    help="Only check this Serve config file, as `make serve CONFIG=` does.",
)
@reports
def plan(
    words: Sequence[str],
    devices: str | None,
    nodes: Sequence[str],
    interface: str,
    smallest: bool,
    stack: Sequence[str],
    file: Path | None,
) -> Report:
    """Show layout, environment, ports and command lines of a deployment. Nothing is started.

    Say it as for `serve run app:deploy` (model=/models/Qwen3-32B num_replicas=2), or give a YAML
    file. Without --devices it is planned for this machine's CPUs.
    """
    if file:
        names = check_file(file, progress)
        return Report(f"{file} is sound: it serves {', '.join(names)}.", {"models": names})
    config = read_config(words)
    if devices is None:
        planned = _for_cpu(config)
    else:
        installed, told = installed_packages(), read_stack(stack)
        assumed = judged_stack(installed if "vllm-mindspore" in installed else ASCEND_STACK, told)
        target = Devices.parse(devices)
        planned = _for_devices(config, target, assumed, smallest, nodes, interface)
    data = {
        "models": [
            {"name": one.spec.served_model_name, "replicas": one.replicas, "layout": one.layout}
            for one in planned.models
        ],
        "plans": planned.plans,
        "blueprint": planned.blueprint,
    }
    return Report(_text(planned), data, worst_first(planned.findings))


def _for_cpu(config: DeployConfig) -> _Planned:
    models, findings = [], []
    for model in config.models:
        spec = spec_of(model)
        models.append(Served(spec, model.most_replicas))
        # The default model is made at its first start.
        if model.model or Path(spec.model).exists():
            findings += _refused(spec)
    refused = any(finding.level is Level.ERROR for finding in findings)
    blueprint = None if refused else on_cpu(models, os.cpu_count() or 1, config.http_port)
    return _Planned(tuple(models), blueprint, findings)


def _for_devices(
    config: DeployConfig,
    devices: Devices,
    stack: Stack,
    smallest: bool,
    nodes: Sequence[str],
    interface: str,
) -> _Planned:
    findings = check_stack(stack)
    models, plans = [], []
    for model in config.models:
        served, found = _laid_out(model, devices, smallest)
        models.append(served)
        plans.append(found)
        if found.smallest is None:
            saw = f"{found.model} does not fit on {devices}"
            remedy = "; ".join(f"it fits with {one}" for one in found.remedies)
            findings.append(Finding("plan-fit", Level.ERROR, saw, found.why_not, remedy))
        findings += _refused(served.spec)
    if any(found.smallest is None for found in plans):
        return _Planned(tuple(models), None, findings, plans)
    blueprint = on_devices(models, devices, stack, config.http_port, nodes, interface)
    for one in models:
        findings += check_environment(stack, {**blueprint.environments[0], **one.spec.env})
    return _Planned(tuple(models), blueprint, [*findings, _BY_HAND], plans)


def _refused(spec: EngineSpec) -> list[Finding]:
    """What the engine refuses. A plan may come before the download: that is told as a warning."""
    try:
        if looks_like_folder(spec.model):
            read_model(spec.model, weights=False)
            if lacking := missing_weights(spec.model):
                return [lacking]
        engine_named(spec.engine).check(spec)
    except ConfigError as error:
        return [Finding.of("plan-refused", error)]
    return []


def _laid_out(model: ModelConfig, devices: Devices, smallest: bool) -> tuple[Served, Plan]:
    """The model in the layout that was asked for: in its own split where the user gave one."""
    spec = spec_of(model)
    profile = read_model(spec.model, weights=False)
    given = model.tensor_parallel_size if "tensor_parallel_size" in model.model_fields_set else None
    wishes, _ = wishes_of(spec, given)
    if {"num_replicas", "max_replicas"} & model.model_fields_set:
        wishes = replace(wishes, num_replicas=model.most_replicas)
    found = find_layout(profile, devices, wishes)
    layout = found.smallest if smallest else found.recommended
    return Served(spec, model.most_replicas, layout, profile), found


def _text(planned: _Planned) -> str:
    parts = [str(one) for one in planned.plans if one.smallest]
    parts += [
        f"{one.spec.served_model_name} on CPU: {one.replicas} x {one.spec.engine},"
        f" TP{one.spec.tensor_parallel_size}"
        for one in planned.models
        if not planned.plans
    ]
    if blueprint := planned.blueprint:
        several = len(blueprint.environments) > 1
        for node, environment in enumerate(blueprint.environments):
            if environment:
                lines = [f"export {name}={value}" for name, value in environment.items()]
                parts.append("\n".join([f"# node {node}: before its Ray starts", *lines]))
        for command in blueprint.commands:
            where = f", on node {command.node}" if several else ""
            parts.append(f"# {command.what}{where}\n{command}")
        rows = [
            f"  {one.port:<6} {one.what}"
            + (f", node {one.node}" if several else "")
            + (" (leased: may be another)" if one.leased else "")
            for one in blueprint.ports
        ]
        parts.append("\n".join(["# ports", *rows]))
    return "\n\n".join(parts)

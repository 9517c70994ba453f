"""A planned layout as what would run: environment of each node, ports, command lines.

Pure: addresses that are not known stay `<node0>`, an interface `<interface>`. The command line
is the engine's own (`Engine.plan`), with what the layout adds.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.devices.masks import VISIBLE, write_mask
from cluster.engines import EngineSpec, engine_named
from cluster.engines.base import Lease, Seat, Site
from cluster.environment import VARIABLES
from cluster.environment.advice import to_set
from cluster.environment.rules import Trait
from cluster.errors import ConfigError
from cluster.layouts import Devices, Layout, Wishes
from cluster.models import ModelProfile, mindformers_support
from cluster.ports import DEFAULT_RANGE, PortLedger
from cluster.specifiers import Stack

# What requirements/ascend.txt names: planned for where no stack is installed or told.
ASCEND_STACK: Stack = {
    "vllm-mindspore": "0.5.1",
    "vllm": "0.11.0",
    "mindspore": "2.7.1",
    "mindformers": "1.7.0",
    "msadapter": "0.0.5",
}
_CANN_HOME = "/usr/local/Ascend/ascend-toolkit/latest"
_RAY_PORT = 6379
_CPU_ONLY = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
_HCCL_BASE, _HCCL_STEP = 60000, 32
_FLAGS = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
_FLAGS.add_argument("--pipeline-parallel-size", "-pp", type=int)
_FLAGS.add_argument("--data-parallel-size", "-dp", type=int, default=1)
_FLAGS.add_argument("--enable-expert-parallel", action="store_true")
_FLAGS.add_argument("--gpu-memory-utilization", type=float, default=0.9)


@dataclass(frozen=True)
class Command:
    """One command, with what is set for it alone. `node` counts from 0; `what` says what it is."""

    what: str
    node: int
    argv: tuple[str, ...]
    env: Mapping[str, str]

    def __str__(self) -> str:
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*words, shlex.join(self.argv)])


@dataclass(frozen=True)
class Port:
    """A port that is used. `leased`: the coordinator may choose another at the start."""

    what: str
    node: int
    port: int
    leased: bool = False


@dataclass(frozen=True)
class Blueprint:
    """What would run: by node what to export before its Ray starts, and the commands in order."""

    environments: tuple[Mapping[str, str], ...]
    commands: tuple[Command, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Served:
    """A model to be placed: its replicas in `layout` (None: on CPU, as its spec says)."""

    spec: EngineSpec
    replicas: int
    layout: Layout | None = None
    profile: ModelProfile | None = None


def wishes_of(spec: EngineSpec, tensor_parallel_size: int | None) -> tuple[Wishes, tuple[str, ...]]:
    """What a spec asks of a layout, and its other arguments for the engine.

    `tensor_parallel_size` None leaves it to the planner, whatever the spec has.

    Raises:
        ConfigError: an argument of the engine that matters here has no sound value.
    """
    try:
        known, rest = _FLAGS.parse_known_args(list(spec.engine_args))
    except argparse.ArgumentError as error:
        raise ConfigError(f"engine_args: {error}") from None
    wishes = Wishes(
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=known.pipeline_parallel_size,
        data_parallel_size=known.data_parallel_size,
        expert_parallel=known.enable_expert_parallel,
        max_model_len=spec.max_model_len,
        memory_utilization=known.gpu_memory_utilization,
    )
    return wishes, tuple(rest)


def on_cpu(models: Sequence[Served], cores: int, http_port: int) -> Blueprint:
    """What `serve run` would start on one machine with so many CPU cores."""
    ledger, commands, ports = _ledger(), [], [Port("gateway, HTTP", 0, http_port)]
    sharers = sum(model.replicas for model in models)
    for model in models:
        threads = max(1, cores // sharers // model.spec.tensor_parallel_size)
        spec = replace(model.spec, threads=threads)
        for number in range(model.replicas):
            name = f"{spec.served_model_name} replica {number}"
            lease = _lease(ledger, name, 0, "127.0.0.1", spec)
            launch = engine_named(spec.engine).plan(spec, Site((Seat(lease),)))
            commands += [Command(name, 0, one.argv, one.env) for one in launch.processes]
            ports += [Port(f"{name}, {what}", 0, one, True) for what, one in lease.ports.items()]
    return Blueprint(({},), tuple(commands), tuple(ports))


def on_devices(
    models: Sequence[Served],
    devices: Devices,
    stack: Stack,
    http_port: int,
    addresses: Sequence[str] = (),
    interface: str = "<interface>",
) -> Blueprint:
    """What would run on nodes with NPUs; every model has a layout and a profile.

    Raises:
        ConfigError: the models together need more devices than there are.
    """
    nodes = len(devices.per_node)
    hosts = [*addresses, *(f"<node{number}>" for number in range(len(addresses), nodes))][:nodes]
    free = [list(range(count)) for count in devices.per_node]
    placed = [
        (model, number, place(model.layout, free, model.spec.served_model_name))
        for model in models
        if model.layout
        for number in range(model.replicas)
    ]
    spanning = any(len(mask) > 1 for _, _, mask in placed)
    environments = tuple(
        _environment(models, devices.per_node[node], stack, hosts[node], interface, spanning)
        for node in range(nodes)
    )
    commands = [_ray(node, hosts, devices.per_node[node]) for node in range(nodes)]
    ledger = _ledger()
    ports = [Port("Ray", 0, _RAY_PORT), Port("Ray dashboard", 0, 8265)]
    ports += [Port("gateway, HTTP", node, http_port) for node in range(nodes)]
    used = [0] * nodes  # windows of HCCL on each node
    for model, number, mask in placed:
        name = f"{model.spec.served_model_name} replica {number}"
        window = max(used[node] for node in mask)
        for node in mask:
            used[node] = window + 1
            ports.append(Port(f"{name}, HCCL (16 ports)", node, _HCCL_BASE + _HCCL_STEP * window))
        first = min(mask)
        host = hosts[first] if nodes > 1 else "127.0.0.1"
        lease = _lease(ledger, name, first, host, model.spec)
        ports += [Port(f"{name}, {what}", first, one, True) for what, one in lease.ports.items()]
        commands.append(_engine(model, name, lease, mask, window))
    return Blueprint(environments, tuple(commands), tuple(ports))


def place(layout: Layout, free: list[list[int]], name: str) -> dict[int, list[int]]:
    """Take one replica's devices from `free` (logical ids by node); returns them by node.

    One node takes the whole replica if it can, else whole tensor parallel groups stay together,
    else nodes take equal shares of one; the emptiest node is taken first.

    Raises:
        ConfigError: not enough are left.
    """
    whole, tensor = layout.replica_devices, layout.tensor_parallel_size
    shares = [whole, *(size for size in range(tensor, 0, -1) if tensor % size == 0)]
    for size in shares:
        slots = [len(ids) // size for ids in free]
        if sum(slots) * size < whole:
            continue
        wanted, mask = whole // size, {}
        for node in sorted(range(len(free)), key=lambda node: -slots[node]):
            take = min(slots[node], wanted) * size
            if take:
                mask[node], free[node] = free[node][:take], free[node][take:]
                wanted -= take // size
        return dict(sorted(mask.items()))
    left = "+".join(str(len(ids)) for ids in free)
    raise ConfigError(
        f"{name}: one more replica of {whole} devices",
        f"{left} devices are left on the nodes",
        "ask for fewer replicas, or give the plan more devices",
    )


def _ledger() -> PortLedger:
    return PortLedger(first=DEFAULT_RANGE.start)


def _lease(ledger: PortLedger, name: str, node: int, host: str, spec: EngineSpec) -> Lease:
    needs = engine_named(spec.engine).ports
    firsts = ledger.lease(str(node), name, [need.window for need in needs])
    names = [need.name for need in needs]
    return Lease(name, str(node), host, dict(zip(names, firsts, strict=True)))


def _ray(node: int, hosts: Sequence[str], devices: int) -> Command:
    where = (
        ["--head", f"--port={_RAY_PORT}"] if node == 0 else [f"--address={hosts[0]}:{_RAY_PORT}"]
    )
    resources = f'--resources={{"NPU": {devices}}}'
    argv = ("ray", "start", *where, f"--node-ip-address={hosts[node]}", resources)
    return Command("Ray", node, argv, {})


def _environment(
    models: Sequence[Served],
    devices: int,
    stack: Stack,
    address: str,
    interface: str,
    spanning: bool,
) -> dict[str, str]:
    traits = {Trait.MULTI_NODE, Trait.RAY} if spanning else set()
    if any(model.layout and model.layout.replica_devices > 1 for model in models):
        traits.add(Trait.PARALLEL)
    version = stack.get("mindformers", "")
    if any(_is_legacy(model.profile, version) for model in models):
        traits.add(Trait.LEGACY_MODEL)
    node = {
        "address": address,
        "interface": interface,
        "devices": write_mask(range(devices)),
        "device_count": str(devices),
        "cann_home": _CANN_HOME,
    }
    backend = "VLLM_MS_MODEL_BACKEND"
    if not VARIABLES[backend].applies(stack):
        backend = "vLLM_MODEL_BACKEND"
    advised = {change.name: change.value or "" for change in to_set(stack, {}, traits, node)}
    return {backend: "MindFormers"} | advised


def _is_legacy(profile: ModelProfile | None, mindformers: str) -> bool:
    if profile is None or not mindformers:
        return False
    return mindformers_support(profile, mindformers).kind == "legacy"


def _engine(
    model: Served, name: str, lease: Lease, mask: Mapping[int, Sequence[int]], window: int
) -> Command:
    assert model.layout
    spec = replace(
        model.spec,
        tensor_parallel_size=model.layout.tensor_parallel_size,
        max_model_len=model.layout.max_model_len,
        dtype="bfloat16" if model.spec.dtype == "auto" else model.spec.dtype,
        engine_args=tuple(_arguments(model, spanning=len(mask) > 1)),
    )
    launch = engine_named(spec.engine).plan(spec, Site((Seat(lease),))).head
    env = {key: value for key, value in launch.env.items() if key not in _CPU_ONLY}
    if len(mask) == 1:
        env[VISIBLE] = write_mask(mask[int(lease.node_id)])
    if window:
        env["HCCL_IF_BASE_PORT"] = str(_HCCL_BASE + _HCCL_STEP * window)
    return Command(name, int(lease.node_id), launch.argv, env)


def _arguments(model: Served, spanning: bool) -> Iterator[str]:
    """What the layout says to the engine, after the user's own arguments."""
    assert model.layout
    wishes, rest = wishes_of(model.spec, None)
    yield from rest
    if not any(one.endswith("enforce-eager") for one in rest):
        yield "--no-enforce-eager"
    yield from ("--gpu-memory-utilization", f"{wishes.memory_utilization:g}")
    if model.layout.replica_devices > 1:
        yield from ("--distributed-executor-backend", "ray" if spanning else "mp")
    if model.layout.pipeline_parallel_size > 1:
        yield from ("--pipeline-parallel-size", str(model.layout.pipeline_parallel_size))
    if model.layout.data_parallel_size > 1:
        yield from ("--data-parallel-size", str(model.layout.data_parallel_size))
        if spanning:
            yield from ("--data-parallel-backend", "ray")
    if wishes.expert_parallel:
        yield "--enable-expert-parallel"

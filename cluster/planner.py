"""How a model fits on devices: the smallest layout, the recommended one, or what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cluster.layouts import GIB, Devices, Layout, Wishes, cache_budget, size_layout
from cluster.models import ModelProfile, tensor_parallel_obstacle

# What a plan makes room for when nobody says: one long sequence, in tokens.
_USUAL_MODEL_LEN = 32768
_MOST_NODES = 64


@dataclass(frozen=True)
class Remedy:
    """A change that makes a model fit, and the smallest layout then."""

    change: str
    layout: Layout

    def __str__(self) -> str:
        return f"{self.change}: {self.layout}"


@dataclass(frozen=True)
class Plan:
    """What the planner found. Without a layout, `why_not` and `remedies` say what is missing."""

    model: str
    devices: Devices
    smallest: Layout | None = None
    recommended: Layout | None = None
    why_not: str = ""
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        if self.smallest is None:
            fits = "".join(f"\n  it fits with {remedy}" for remedy in self.remedies)
            return f"{self.model} does not fit on {self.devices}: {self.why_not}{fits}"
        return (
            f"{self.model} on {self.devices}\n  smallest: {self.smallest}"
            f"\n  recommended: {self.recommended}"
        )


def plan(profile: ModelProfile, devices: Devices, wishes: Wishes | None = None) -> Plan:
    """Find the smallest and the recommended layout of `profile` on `devices`.

    The smallest has the fewest devices. The recommended has at least as much memory for KV cache
    as for weights where that takes no more nodes for a replica (vllm-ascend's FAQ gives Qwen3-32B
    four devices of 64 GiB, where two suffice), and as many replicas as the devices hold.
    """
    wishes = wishes or Wishes()
    layouts = [
        layout for layout in _layouts(profile, devices, wishes) if _fits(profile, wishes, layout)
    ]
    if not layouts:
        why_not = _refusal(profile, wishes) or _why_not(profile, devices, wishes)
        return Plan(profile.name, devices, None, None, why_not, _remedies(profile, devices, wishes))
    smallest = layouts[0]
    alike = [
        layout
        for layout in layouts
        if layout.replica_nodes == smallest.replica_nodes
        and layout.pipeline_parallel_size == smallest.pipeline_parallel_size
    ]
    roomy = [layout for layout in alike if layout.kv_bytes >= layout.weight_bytes]
    return Plan(profile.name, devices, _single(smallest, wishes), (roomy or alike[-1:])[0])


def _layouts(profile: ModelProfile, devices: Devices, wishes: Wishes) -> Iterator[Layout]:
    """Every layout that can be placed, the best first, whether or not its bytes fit.

    There is none for wishes that are refused.

    Pipelines come last: vllm-mindspore calls them work in progress, and over Ray they have failed
    where tensor parallelism works (vllm-ascend issues 3529 and 10910, vLLM issue 29373).
    """
    if _refusal(profile, wishes):
        return
    tensor = wishes.tensor_parallel_size
    tensors = [tensor] if tensor else _tensor_sizes(profile, wishes)
    pipeline = wishes.pipeline_parallel_size
    stages = range(1, profile.layers + 1)
    pipelines = [pipeline] if pipeline else [n for n in stages if profile.layers % n == 0]
    splits = [(tensor, pipeline) for tensor in tensors for pipeline in pipelines]
    for tensor, pipeline in sorted(splits, key=lambda s: (s[1] > 1, s[0] * s[1], s[1])):
        if layout := size_layout(profile, devices, wishes, tensor, pipeline):
            yield layout


def _needed_len(profile: ModelProfile, wishes: Wishes) -> int:
    """Tokens of the sequence that must fit."""
    own = profile.max_position_embeddings or _USUAL_MODEL_LEN
    return wishes.max_model_len or min(own, _USUAL_MODEL_LEN)


def _fits(profile: ModelProfile, wishes: Wishes, layout: Layout) -> bool:
    enough = layout.num_replicas >= (wishes.num_replicas or 1)
    return enough and layout.max_model_len >= _needed_len(profile, wishes)


def _single(layout: Layout, wishes: Wishes) -> Layout:
    """The layout with one replica, where the number is not wished for."""
    if wishes.num_replicas:
        return layout
    return replace(layout, num_replicas=1, nodes=layout.replica_nodes)


def _tensor_sizes(profile: ModelProfile, wishes: Wishes) -> list[int]:
    sizes = range(1, profile.attention_heads + 1)
    return [size for size in sizes if not _obstacle(profile, wishes, size)]


def _obstacle(profile: ModelProfile, wishes: Wishes, tensor: int) -> str:
    """Why the model cannot be split by `tensor`; an empty string if it can."""
    if why := tensor_parallel_obstacle(
        profile,
        tensor,
        pads_vocabulary=wishes.pads_vocabulary,
        expert_parallel=wishes.expert_parallel,
    ):
        return why
    # Data parallel ranks share out the experts with the tensor parallel ones.
    ranks = tensor * wishes.data_parallel_size
    experts = profile.experts
    if experts and wishes.expert_parallel and experts.count % ranks:
        return f"{experts.count} experts, which do not divide by {ranks} ranks"
    if experts and not wishes.expert_parallel and experts.intermediate_size % ranks:
        size = experts.intermediate_size
        return f"moe_intermediate_size {size}, which does not divide by {ranks} ranks"
    return ""


def _refusal(profile: ModelProfile, wishes: Wishes) -> str:
    """Which wish no number of devices could fulfil; an empty string if there is none."""
    longest = profile.max_position_embeddings
    if longest and (wishes.max_model_len or 0) > longest:
        return f"max_model_len={wishes.max_model_len} is beyond the model's own {longest}"
    if wishes.expert_parallel and profile.experts is None:
        return "expert_parallel is for mixtures of experts, and the model is none"
    if (pipeline := wishes.pipeline_parallel_size or 1) > profile.layers:
        return f"pipeline_parallel_size={pipeline} is more than the {profile.layers} layers"
    allowed = _tensor_sizes(profile, wishes)
    tensor = wishes.tensor_parallel_size
    if tensor and tensor not in allowed:
        listed = ", ".join(map(str, allowed)) or "none"
        why = _obstacle(profile, wishes, tensor)
        return f"tensor_parallel_size={tensor}: the model has {why}; allowed: {listed}"
    return "" if allowed else f"the model has {_obstacle(profile, wishes, 1)}"


def _why_not(profile: ModelProfile, devices: Devices, wishes: Wishes) -> str:
    layouts = list(_layouts(profile, devices, wishes))
    if not layouts:
        split = (wishes.tensor_parallel_size or 1) * (wishes.pipeline_parallel_size or 1)
        data = wishes.data_parallel_size
        return f"{devices} does not hold a replica of {split * data} devices" + (
            f", {split} of them on one node for each of {data} data parallel ranks"
            if data > 1
            else ""
        )
    needed = _needed_len(profile, wishes)
    if long_enough := [layout for layout in layouts if layout.max_model_len >= needed]:
        best = max(long_enough, key=lambda layout: layout.num_replicas)
        return (
            f"{wishes.num_replicas} replicas of {best.replica_devices} devices are asked for, and"
            f" the {devices.count} devices hold {best.num_replicas}"
        )
    best = max(layouts, key=lambda layout: layout.kv_bytes)
    budget = (
        f"of each device; of its {devices.usable_gib:.2f} usable GiB, memory_utilization"
        f" {wishes.memory_utilization:g} leaves {cache_budget(devices, wishes) / GIB:.1f} GiB for"
        " weights and KV cache, activations and buffers taken off"
    )
    weights = f"even at {best.split} weights take {best.weight_bytes / GIB:.1f} GiB {budget}"
    if best.kv_bytes <= 0:
        return weights
    held = best.kv_tokens // best.data_parallel_size
    return f"{weights}; {held} tokens of cache remain, and one sequence needs {needed}"


def _remedies(profile: ModelProfile, devices: Devices, wishes: Wishes) -> tuple[Remedy, ...]:
    """The changes, one at a time, that make the model fit."""
    bits = wishes.weight_bits or profile.weight_bits
    most = Devices((max(devices.per_node),) * _MOST_NODES, devices.gib)
    free = replace(wishes, tensor_parallel_size=None, pipeline_parallel_size=None)
    shortest = max(
        (layout.max_model_len for layout in _layouts(profile, devices, wishes)), default=0
    )
    changes: list[tuple[str, Devices, Wishes]] = [
        ("more nodes", most, wishes),
        *(
            (f"{n}-bit weights", devices, replace(wishes, weight_bits=n))
            for n in (8, 4)
            if n < bits
        ),
        ("devices of 64 GiB", replace(devices, gib=64), wishes),
        ("another split", devices, free),
        ("fewer replicas", devices, replace(wishes, num_replicas=1)),
    ]
    if shortest:
        shorter = replace(wishes, max_model_len=shortest)
        changes.append((f"max_model_len={shortest}", devices, shorter))
    found = ((change, _first(profile, on, wished)) for change, on, wished in changes)
    return tuple(Remedy(change, layout) for change, layout in found if layout)


def _first(profile: ModelProfile, devices: Devices, wishes: Wishes) -> Layout | None:
    """The smallest layout that fits, if one does."""
    layouts = _layouts(profile, devices, wishes)
    fitting = (layout for layout in layouts if _fits(profile, wishes, layout))
    return next((_single(layout, wishes) for layout in fitting), None)

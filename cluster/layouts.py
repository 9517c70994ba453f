"""One way to split a model over devices: where its parts go and what each device holds.

Bytes are exact where geometry decides (weights, KV cache) and experience where it does not
(what the runtime takes). Sources of the latter: start-up logs of vllm-mindspore and vllm-ascend
on Atlas 800 A2 and A3, and the layouts that their documentation gives for DeepSeek and Qwen3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cluster.errors import ConfigError
from cluster.models import (
    ModelProfile,
    bytes_per_parameter,
    count_parameters,
    kv_bytes_per_token,
)

GIB = 2**30
BLOCK_TOKENS = 128  # vllm-mindspore's block of KV cache

# GiB on the label of a device -> GiB that a process sees (logs: A2 60.97 and 29.50, A3 61.27).
_USABLE_GIB = {64: 60.97, 32: 29.50}
_USABLE_SHARE = 0.92
# Activations, HCCL buffers and the runtime itself, for 4k to 8k batched tokens, in GiB.
_OVERHEAD_GIB, _OVERHEAD_SMALL_GIB, _SMALL_GIB = 4.0, 3.0, 40
_GRAPH_CAPTURE_GIB = 2.0


@dataclass(frozen=True)
class Devices:
    """Equal devices: how many each node has, and the GiB on the label of one."""

    per_node: tuple[int, ...]
    gib: float

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read `nodes x devices x GiB`, such as "2x8x64".

        Raises:
            ConfigError: it is not written so, or a number is 0.
        """
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+(?:\.\d+)?)", text.strip().lower())
        if match is None or not all(map(float, match.groups())):
            raise ConfigError(
                f'devices="{text}"',
                "it does not name nodes, devices of a node and GiB of a device",
                'write it as "2x8x64"',
            )
        return cls((int(match[2]),) * int(match[1]), float(match[3]))

    @property
    def count(self) -> int:
        return sum(self.per_node)

    @property
    def usable_gib(self) -> float:
        """GiB of one device that a process sees when nothing else runs on it."""
        return _USABLE_GIB.get(int(self.gib), self.gib * _USABLE_SHARE)

    @property
    def overhead_gib(self) -> float:
        """GiB of one device that neither weights nor KV cache get."""
        return _OVERHEAD_GIB if self.gib >= _SMALL_GIB else _OVERHEAD_SMALL_GIB

    def __str__(self) -> str:
        even = len(set(self.per_node)) == 1
        nodes = (
            f"{len(self.per_node)}x{self.per_node[0]}"
            if even
            else "+".join(map(str, self.per_node))
        )
        return f"{nodes}x{self.gib:g}"


@dataclass(frozen=True)
class Wishes:
    """What a layout must keep; None leaves it to the planner.

    `max_model_len` is in tokens: a replica must hold at least one sequence of that length (None:
    32768, or the model's own if that is shorter). `memory_utilization` is the share of a device
    that the engine may take, `weight_bits` what the weights would be quantised to (None: as they
    are), `kv_number_bytes` the bytes of one number in the KV cache.
    """

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int = 1
    expert_parallel: bool = False
    num_replicas: int | None = None
    max_model_len: int | None = None
    memory_utilization: float = 0.9
    weight_bits: int | None = None
    kv_number_bytes: int = 2
    graph_capture: bool = False
    pads_vocabulary: bool = True


@dataclass(frozen=True)
class Layout:
    """One way to serve a model.

    `replica_nodes` is how many nodes one replica spans, `nodes` how many all of them take.
    `weight_bytes`, `kv_bytes_per_token` and `kv_bytes` (what is left for the cache) are those of
    one device; `kv_bytes` below 0 is what it lacks. `kv_tokens` is the cache of one replica in
    tokens. `max_model_len` is the longest sequence, in tokens, to start the engine with.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    num_replicas: int
    replica_nodes: int
    nodes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    kv_tokens: int
    max_model_len: int

    @property
    def replica_devices(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def split(self) -> str:
        """The split in short, such as "TP8" or "TP8 PP2"."""
        others = {"PP": self.pipeline_parallel_size, "DP": self.data_parallel_size}
        return f"TP{self.tensor_parallel_size}" + "".join(
            f" {name}{size}" for name, size in others.items() if size > 1
        )

    def __str__(self) -> str:
        replicas, nodes = _counted(self.num_replicas, "replica"), _counted(self.nodes, "node")
        return (
            f"{self.split}, {replicas} on {nodes}:"
            f" {self.weight_bytes / GIB:.1f} GiB of weights and {self.kv_bytes / GIB:.1f} GiB of"
            f" KV cache on each device, {self.kv_tokens // 1000}k tokens a replica"
        )


def size_layout(
    profile: ModelProfile, devices: Devices, wishes: Wishes, tensor: int, pipeline: int
) -> Layout | None:
    """Place and size one split, whether or not its bytes fit; None if it cannot be placed.

    It gets the replicas that are wished for, else as many as the devices hold. Without
    `wishes.max_model_len` the longest sequence is the model's own, or what the cache holds.
    """
    data = wishes.data_parallel_size
    places = _places(devices.per_node, tensor, pipeline, data)
    if places is None:
        return None
    slots, parts = places
    held = sum(slots) // parts
    replicas = min(wishes.num_replicas or held, held)
    # The fullest stage of a pipeline has the most layers.
    stage = -(-profile.layers // pipeline) / profile.layers
    weights = _weight_bytes(profile, wishes, tensor) * stage
    kv = round(kv_bytes_per_token(profile, tensor, wishes.kv_number_bytes) * stage)
    room = cache_budget(devices, wishes) - weights
    tokens = int(max(room, 0) // (kv * BLOCK_TOKENS)) * BLOCK_TOKENS
    longest = wishes.max_model_len or profile.max_position_embeddings or tokens
    return Layout(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        num_replicas=replicas,
        replica_nodes=_nodes_for(slots, parts),
        nodes=_nodes_for(slots, parts * replicas),
        weight_bytes=round(weights),
        kv_bytes_per_token=kv,
        kv_bytes=int(room),
        kv_tokens=tokens * data,
        max_model_len=min(longest, tokens),
    )


def cache_budget(devices: Devices, wishes: Wishes) -> float:
    """Bytes of one device that weights and KV cache share."""
    overhead = devices.overhead_gib + (_GRAPH_CAPTURE_GIB if wishes.graph_capture else 0)
    return (devices.usable_gib * wishes.memory_utilization - overhead) * GIB


def _weight_bytes(profile: ModelProfile, wishes: Wishes, tensor: int) -> float:
    """Bytes of weights on a device of the first split, all layers counted.

    Data parallel ranks hold copies, but share out routed experts, with expert parallelism or
    without it (then each expert is cut into more slices).
    """
    count = count_parameters(profile)
    shared_out = count.experts / wishes.data_parallel_size
    numbers = (count.total - count.experts + shared_out) / tensor
    return numbers * bytes_per_parameter(wishes.weight_bits or profile.weight_bits)


def _places(
    per_node: Sequence[int], tensor: int, pipeline: int, data: int
) -> tuple[list[int], int] | None:
    """How many parts of a replica each node can hold, fullest first, and how many parts it has.

    A part is the most of a replica that one node holds whole: all of it, a data parallel rank
    (which cannot span nodes: vLLM places each with STRICT_PACK), a tensor parallel group, or an
    equal share of one.
    """
    parts = [(tensor * pipeline * data, 1), (tensor * pipeline, data)]
    if data == 1:
        shares = [n for n in range(1, tensor + 1) if tensor % n == 0]
        parts += [(tensor // n, n * pipeline) for n in shares]
    for size, count in parts:
        slots = sorted((devices // size for devices in per_node), reverse=True)
        if sum(slots) >= count:
            return slots, count
    return None


def _nodes_for(slots: Sequence[int], parts: int) -> int:
    """How many nodes hold `parts` parts, the fullest taken first."""
    return 1 + sum(held < parts for held in accumulate(slots))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

"""Models, read from their folders without loading any engine: geometry, sizes, splits, support."""

from cluster.models.folder import looks_like_folder
from cluster.models.geometry import (
    Parameters,
    bytes_per_parameter,
    count_parameters,
    kv_bytes_per_token,
    weight_bytes,
)
from cluster.models.profile import Experts, LatentAttention, ModelProfile, read_model
from cluster.models.splits import (
    check_max_model_len,
    check_tensor_parallel,
    tensor_parallel_obstacle,
    tensor_parallel_obstacles,
    tensor_parallel_sizes,
)

__all__ = [
    "Experts",
    "LatentAttention",
    "ModelProfile",
    "Parameters",
    "bytes_per_parameter",
    "check_max_model_len",
    "check_tensor_parallel",
    "count_parameters",
    "kv_bytes_per_token",
    "looks_like_folder",
    "read_model",
    "tensor_parallel_obstacle",
    "tensor_parallel_obstacles",
    "tensor_parallel_sizes",
    "weight_bytes",
]

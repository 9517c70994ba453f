"""Models, read from their folders without loading any engine: geometry, sizes, splits, support."""

from cluster.models.folder import looks_like_folder
from cluster.models.geometry import (
    Parameters,
    bytes_per_parameter,
    count_parameters,
    kv_bytes_per_token,
    weight_bytes,
)
from cluster.models.mindformers import Support, mindformers_support
from cluster.models.predict_checks import check_predict_folder, check_predict_yaml
from cluster.models.predict_yaml import PredictYaml, read_predict_yaml
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
    "PredictYaml",
    "Support",
    "bytes_per_parameter",
    "check_max_model_len",
    "check_predict_folder",
    "check_predict_yaml",
    "check_tensor_parallel",
    "count_parameters",
    "kv_bytes_per_token",
    "looks_like_folder",
    "mindformers_support",
    "read_model",
    "read_predict_yaml",
    "tensor_parallel_obstacle",
    "tensor_parallel_obstacles",
    "tensor_parallel_sizes",
    "weight_bytes",
]

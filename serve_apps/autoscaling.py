"""How many replicas a model needs: by what its engines have to do, not by what Serve sees.

Requests go from the gateway to the engines directly, so Serve counts none of them. Replicas report
their engine's running and waiting requests (`record_autoscaling_stats`), and Serve asks
`follow_engine_load`, to which it adds its own delays and bounds.
"""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from serve_apps.config import ModelConfig

LOAD = "engine_load"

# How often replicas report, over which time that is averaged, and how long a need must last:
# together below 3 s.
_REPORT_PERIOD_S = 0.5
_WINDOW_S = 1.0
_UPSCALE_DELAY_S = 0.5


def follow_engine_load(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """As many replicas as bring each to `target_ongoing_requests`."""
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    config: AutoscalingConfig = context.config  # type: ignore[assignment]
    target = config.target_ongoing_requests
    assert target is not None
    return math.ceil(sum(loads.values()) / target), {}


def autoscaling_config(model: ModelConfig) -> AutoscalingConfig:
    """Serve's settings for a model with `max_replicas`.

    It starts with one replica even where `min_replicas` is 0: a start that fails is told at once.
    """
    return AutoscalingConfig(
        min_replicas=model.fewest_replicas,
        initial_replicas=max(1, model.fewest_replicas),
        max_replicas=model.most_replicas,
        target_ongoing_requests=model.target_ongoing_requests,
        upscale_delay_s=_UPSCALE_DELAY_S,
        downscale_delay_s=model.downscale_delay_s,
        metrics_interval_s=_REPORT_PERIOD_S,
        look_back_period_s=_WINDOW_S,
        policy=AutoscalingPolicy(policy_function=follow_engine_load),
    )

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.serve.config import AutoscalingContext

from serve_apps.autoscaling import LOAD, autoscaling_config, follow_engine_load
from serve_apps.config import ModelConfig


def context(loads: dict[str, float], running: int, target: int) -> AutoscalingContext:
    facts: dict[str, Any] = {
        "aggregated_metrics": {LOAD: loads} if loads else {},
        "config": SimpleNamespace(target_ongoing_requests=4),
        "current_num_replicas": running,
        "target_num_replicas": target,
    }
    return cast(AutoscalingContext, SimpleNamespace(**facts))


@pytest.mark.parametrize(
    ("loads", "running", "target", "needed"),
    [
        ({}, 1, 1, 0),
        ({"a": 0.0}, 1, 1, 0),
        ({"a": 0.5}, 1, 1, 1),
        ({"a": 4.0}, 1, 1, 1),
        ({"a": 4.1}, 1, 1, 2),
        ({"a": 12.0}, 1, 1, 3),
        ({"a": 4.0, "b": 5.0, "c": 0.0}, 3, 3, 3),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, 3, 3, 1),
        ({}, 0, 1, 1),
        ({"a": 1.0}, 1, 3, 3),
        ({"a": 17.0}, 1, 3, 5),
    ],
)
def test_replicas_follow_the_load_and_a_start_comes_to_its_end(
    loads: dict[str, float], running: int, target: int, needed: int
) -> None:
    assert follow_engine_load(context(loads, running, target)) == (needed, {})


@pytest.mark.parametrize(("least", "first"), [(None, 1), (0, 1), (2, 2)])
def test_a_first_replica_proves_that_the_model_starts(least: int | None, first: int) -> None:
    made = autoscaling_config(ModelConfig(min_replicas=least, max_replicas=3))
    assert made.initial_replicas == first
    assert made.min_replicas == (1 if least is None else least)

"""Each thing a user can say, and each mistake, told in one line that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import ConfigError
from serve_apps.config import DeployConfig


def test_nothing_said_means_one_replica_of_the_default_model() -> None:
    config = DeployConfig.from_args({})
    (model,) = config.models
    assert (model.model, model.engine, model.most_replicas) == ("", "auto", 1)


def test_values_of_serve_run_are_strings_and_nested_ones_are_json() -> None:
    config = DeployConfig.from_args(
        {
            "engine": "simulated",
            "num_replicas": "2",
            "engine_args": "--ttft 0.1 --itl '0.02'",
            "env": '{"A": "1"}',
            "gateway": '{"max_body_bytes": 1000}',
            "http_port": "0",
        }
    )
    (model,) = config.models
    assert model.num_replicas == 2
    assert model.engine_args == ("--ttft", "0.1", "--itl", "0.02")
    assert model.env == {"A": "1"}
    assert config.gateway.max_body_bytes == 1000
    assert config.http_port == 0


def test_several_models_stand_under_models() -> None:
    config = DeployConfig.from_args(
        {"models": [{"model": "org/a", "engine": "vllm"}, {"model": "org/b", "engine": "vllm"}]}
    )
    assert [m.name for m in config.models] == ["org/a", "org/b"]
    assert [m.deployment_name for m in config.models] == ["org-a", "org-b"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"modle": "x"}, r'unknown key "modle" \(did you mean "model"\?\); known: '),
        ({"num_replica": "2"}, r'"num_replica" \(did you mean "num_replicas"\?\)'),
        ({"num_replicas": "two"}, r'^num_replicas="two": input should be a valid integer'),
        ({"num_replicas": "0"}, r'^num_replicas="0": input should be greater than or equal to 1'),
        ({"num_replicas": 0}, r"^num_replicas=0: "),
        ({"tensor_parallel_size": "-1"}, r"tensor_parallel_size=\"-1\""),
        ({"engine": "vlm"}, r"engine=\"vlm\": input should be 'auto', 'vllm' or 'simulated'"),
        ({"dtype": "fp32"}, r"dtype=\"fp32\": input should be 'auto', 'float32'"),
        ({"env": "{A: 1}"}, r"env=.*is not JSON"),
        ({"gateway": '{"max_body": 1}'}, r'unknown key "gateway.max_body".*"max_body_bytes"'),
        ({"gateway": '{"max_body_bytes": -1}'}, r"gateway.max_body_bytes=-1"),
        ({"http_port": "70000"}, r"http_port=\"70000\": input should be less than"),
        ({"models": []}, r"models=\[\]"),
        ({"models": [{"engine": "simulated", "x": 1}]}, r'unknown key "x"'),
        ({"models": [{"model": "a"}, {"model": "a"}]}, r'"a" stands twice'),
        ({"models": [{"model": "a"}], "dtype": "auto"}, r"dtype and models were both given"),
        ({"min_replicas": "1"}, r"min_replicas needs max_replicas"),
        ({"min_replicas": "4", "max_replicas": "3"}, r"min_replicas=4 is more than max_replicas=3"),
        ({"num_replicas": "2", "max_replicas": "3"}, r"exclude each other"),
        ({"min_replicas": "-1", "max_replicas": "3"}, r'min_replicas="-1"'),
        ({"max_replicas": "0"}, r'max_replicas="0"'),
        ({"max_replicas": "2", "target_ongoing_requests": "0"}, r"target_ongoing_requests"),
    ],
)
def test_a_mistake_is_told_in_one_line(args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        DeployConfig.from_args(args)
    assert "\n" not in str(caught.value)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        DeployConfig.from_args({"num_replicas": "x", "dtype": "y"})
    assert "num_replicas" in str(caught.value)
    assert "dtype" in str(caught.value)

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.models import mindformers_support
from tests.unit.fixture_models import fixture_model


# 1.6 is what the service deployment page lists; later versions are what their wheels register.
@pytest.mark.parametrize(
    ("model", "version", "kind"),
    [
        ("Qwen3-32B", "1.5.0", "legacy"),
        ("Qwen3-32B", "1.6.0", "mcore"),
        ("Qwen3-235B-A22B", "1.6.0", "mcore"),
        ("DeepSeek-V3", "1.6.0", "mcore"),
        ("Qwen2.5-72B", "1.6.0", "legacy"),
        ("Qwen2.5-72B", "1.7.0", "mcore"),
        ("Qwen2.5-0.5B", "2.0.0rc1", "mcore"),
        ("Qwen3-30B-A3B", "1.10", "mcore"),
    ],
)
def test_models_of_the_support_list(model: str, version: str, kind: str) -> None:
    assert mindformers_support(fixture_model(model), version).kind == kind


@pytest.mark.parametrize(
    ("architecture", "model_type", "version", "kind", "why"),
    [
        ("LlamaForCausalLM", "llama", "2.0.0", "legacy", "no MCore class for LlamaForCausalLM"),
        ("MixtralForCausalLM", "mixtral", "1.8.0", "legacy", "auto_map of the predict yaml"),
        ("TeleChat3ForCausalLM", "telechat3", "1.8.0", "legacy", "from 2.0 on"),
        ("TeleChat3ForCausalLM", "telechat3", "2.0.0", "mcore", "registers TeleChat3ForCausalLM"),
        ("Qwen2ForCausalLM", "qwen", "1.7.0", "legacy", 'model_type "qwen" is not the "qwen2"'),
        ("TeleChat2ForCausalLM", "telechat", "1.7.0", "mcore", ""),
    ],
)
def test_architecture_model_type_and_version_decide(
    architecture: str, model_type: str, version: str, kind: str, why: str
) -> None:
    profile = fixture_model("Qwen2.5-7B")
    profile = replace(profile, architectures=(architecture,), model_type=model_type)
    support = mindformers_support(profile, version)
    assert support.kind == kind
    assert why in support.why

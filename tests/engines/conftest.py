"""Real vLLM on CPU. The cluster fixture is the one of tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import cluster  # noqa: F401  (a fixture)
from tests.engines.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-qwen3"))

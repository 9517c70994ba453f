"""A Ray cluster of our own for each module, with Serve's HAProxy, on free ports."""

from __future__ import annotations

import os

from serve_apps import serve_settings

os.environ["RAY_AUTH_MODE"] = "disabled"
serve_settings.apply()

import shutil  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

from cluster.ports import free_port  # noqa: E402
from tests.cluster.harness import Cluster  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = tempfile.mkdtemp(prefix="rs-")
    ray.init(
        address="local",
        namespace="serve",
        num_cpus=16,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
    )
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    running = Cluster(f"http://127.0.0.1:{port}")
    yield running
    running.close()
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)

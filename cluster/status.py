"""`python -m cluster.status`: the directory of replicas on the cluster that runs here."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import ray

from cluster.coordinator import NAME, NAMESPACE
from cluster.directory import Picture, ReplicaRecord

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


def main() -> None:
    try:
        ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        sys.exit("No Ray cluster runs on this machine. Start one with `serve run app:deploy`.")
    try:
        coordinator: Any = ray.get_actor(NAME, NAMESPACE)
    except ValueError:
        sys.exit("Rayscend does not run on this cluster: it has no coordinator.")
    picture: Picture = ray.get(coordinator.picture.remote())
    print("\n".join(rows(picture.replicas, time.time())))


if __name__ == "__main__":
    main()

"""Connect a command to a running Ray cluster, quietly, or say within seconds that there is none."""

from __future__ import annotations

import logging
import socket

import ray

from cluster.errors import CoordinatorError

_LIMIT_S = 5


def attach(address: str) -> None:
    """Connect this process to the cluster at `address` (HOST:PORT; "auto": the one that runs here).

    Raises:
        CoordinatorError: no cluster answers there.
    """
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdecimal() and "://" not in address:
            # Ray itself keeps trying for minutes.
            socket.create_connection((host.strip("[]"), int(port)), _LIMIT_S).close()
        ray.init(
            address=address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            ignore_reinit_error=True,
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise CoordinatorError(
            f"no Ray cluster answers at {address}"
            if address != "auto"
            else "no Ray cluster runs on this machine",
            " ".join(str(error).split())[:200] if address != "auto" else "",
            "give the address that `ray start --head` told, or start one: `serve run app:deploy`",
        ) from None

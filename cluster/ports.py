"""Ports: which are promised to whom, and whether one can really be bound on this machine."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from cluster.errors import TransientEngineError

# Below the kernel's ephemeral ports (32768 and up), Ray Serve's direct ingress (30000-31000) and
# above Ray's worker ports (10002-19999): nothing else in this stack picks from here.
DEFAULT_RANGE = range(20000, 30000)


@dataclass
class PortLedger:
    """Who holds which port on which node. Pure: proposing is not binding.

    A node that finds a proposed port taken by a stranger says so with `avoid`, and gets another.
    Proposals begin at `first`, by default anywhere in the range: other clusters on the same host
    have ledgers of their own, and would propose the same ports at the same time.
    """

    ports: range = DEFAULT_RANGE
    first: int | None = None
    _held: dict[str, dict[int, str]] = field(default_factory=dict)

    def lease(
        self, node: str, holder: str, windows: Sequence[int], avoid: Iterable[int] = ()
    ) -> list[int]:
        """Give `holder` the first ports of free stretches of consecutive ports, one per window.

        Raises:
            TransientEngineError: not so many are left.
        """
        held = self._held.setdefault(node, {})
        shunned, firsts = set(avoid), []
        granted: set[int] = set()
        for window in windows:
            first = self._stretch(window, held.keys() | shunned | granted)
            if first is None:
                free = sum(port not in held and port not in shunned for port in self.ports)
                raise TransientEngineError(
                    f"{sum(windows)} ports were asked for on node {node}, {free} of "
                    f"{self.ports.start}-{self.ports.stop - 1} are free",
                    remedy="stop replicas on that node, or widen the range of ports",
                )
            firsts.append(first)
            granted.update(range(first, first + window))
        held.update(dict.fromkeys(granted, holder))
        return firsts

    def _stretch(self, window: int, taken: Collection[int]) -> int | None:
        """The first of `window` consecutive ports that are not `taken`."""
        start = self.ports.index(self._begin())
        for first in itertools.chain(self.ports[start:], self.ports[:start]):
            stretch = range(first, first + window)
            if stretch[-1] in self.ports and not any(port in taken for port in stretch):
                return first
        return None

    def _begin(self) -> int:
        if self.first is None:
            self.first = random.choice(self.ports)
        return self.first

    def restore(self, node: str, holder: str, ports: Sequence[int]) -> bool:
        """Take back into the books what `holder` says it holds; False if another holds one."""
        held = self._held.setdefault(node, {})
        if any(held.get(port, holder) != holder for port in ports):
            return False
        held.update(dict.fromkeys(ports, holder))
        return True

    def release(self, holder: str) -> None:
        for held in self._held.values():
            for port in [port for port, who in held.items() if who == holder]:
                del held[port]

    def held(self, node: str) -> dict[int, str]:
        """The ports in use on `node`, with their holders."""
        return dict(self._held.get(node, {}))


def can_bind(host: str, port: int) -> bool:
    """Whether a server could listen on `host`:`port` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Servers set it too: a port in TIME_WAIT is free, a port with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def listeners(port: int) -> dict[int, str]:
    """The processes that listen on `port` on this machine, by pid, with their names.

    Only those that we may know of: without root, those of other users are left out.
    """
    found = {}
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
            with contextlib.suppress(psutil.NoSuchProcess):
                if connection.pid is not None:
                    found[connection.pid] = psutil.Process(connection.pid).name()
    return found


def free_port(host: str = "127.0.0.1", near: int = 0) -> int:
    """Return `near` if it can be bound, else the next one above it that can (0: any free one)."""
    for port in range(near, min(near + 200, 65536)) if near else ():
        if can_bind(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])

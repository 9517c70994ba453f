"""Which replica gets a request: a pure function over candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from serve_apps.prefixes import NO_PREFIX, Prefix


class Candidate(Protocol):
    """What the pick looks at.

    `in_flight` are requests that this gateway has open there, `capacity` how many it may have,
    `last_picked` a number that grows with every pick, `cool_until` a monotonic time in seconds.
    """

    @property
    def in_flight(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def last_picked(self) -> int: ...
    @property
    def cool_until(self) -> float: ...

    def others(self, now: float) -> float:
        """Requests that other gateways are believed to have open there."""

    def share(self, prefix: Prefix) -> float:
        """How much of a prompt its KV cache is believed to hold, from 0 to 1."""


C = TypeVar("C", bound=Candidate)


def pick(candidates: Sequence[C], now: float, prefix: Prefix = NO_PREFIX) -> C | None:
    """Return the candidate that should get a request, or None when all are full.

    The least busy one, where nothing is known of the prompt. One that has seen its beginning is
    preferred as long as it is not much busier: the more of the prompt it has, the busier it may
    be. Among equals the one that was picked longest ago goes first, so an idle fleet is used
    evenly.

    Replicas that cool down are passed over, unless there are no others: a refused connection is
    then no worse than a refused request.
    """
    rested = [c for c in candidates if c.cool_until <= now] or candidates
    free = [c for c in rested if c.in_flight < c.capacity]
    if not free:
        return None
    loads = _loads(free, now)
    tolerance = _tolerance(min(loads))
    best = min(
        range(len(free)),
        key=lambda i: (loads[i] - tolerance * free[i].share(prefix), free[i].last_picked),
    )
    return free[best]


def _tolerance(least: float) -> float:
    """By how many requests a replica that has the whole prompt may be busier than the least busy.

    Large enough for sessions to stay through the ups and downs of load, small enough for a prefix
    that everybody uses to spread before requests have to wait (scripts/benchmark/picking.py).
    """
    return max(8.0, 0.5 * least)


def _loads(candidates: Sequence[Candidate], now: float) -> list[float]:
    """How busy each candidate is, all gateways together.

    What others have is known late. Two gateways that followed every small difference would run
    after one another and make it a large one: only what stands out counts.
    """
    others = [c.others(now) for c in candidates]
    usual = min(others)
    usual += max(2.0, 0.5 * usual)
    return [c.in_flight + max(0.0, o - usual) for c, o in zip(candidates, others, strict=True)]

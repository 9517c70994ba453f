"""The ways of picking that are compared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from cluster.directory import Load, ReplicaRecord, ReplicaState
from scripts.benchmark.simulation import Chat
from serve_apps.fleet import Replica
from serve_apps.openai import prompt_of
from serve_apps.picker import pick
from serve_apps.prefixes import NO_PREFIX, Prefix


class RoundRobin:
    """One after another."""

    def __init__(self, replicas: int) -> None:
        self._places = itertools.cycle(range(replicas))

    def choose(self, chat: Chat, loads: Sequence[int], now: float) -> int:
        return next(self._places)

    def done(self, chat: Chat) -> None:
        pass

    def hear(self, loads: Sequence[Load], now: float) -> None:
        pass


class Gateways:
    """Our own picker, in one gateway or in several that do not know of one another.

    `prefixes` and `news` can be left out, to see what they are worth.
    """

    def __init__(
        self, replicas: int, gateways: int = 1, prefixes: bool = True, news: bool = True
    ) -> None:
        self._fleets = [[Replica(_record(n)) for n in range(replicas)] for _ in range(gateways)]
        self._prefixes, self._news = prefixes, news
        self._chance = random.Random(0)
        self._picks = itertools.count(1)
        self._open: dict[Chat, Replica] = {}

    def choose(self, chat: Chat, loads: Sequence[int], now: float) -> int:
        fleet = self._chance.choice(self._fleets)
        prefix = NO_PREFIX
        if self._prefixes:
            prefix = Prefix.of(prompt_of("/v1/chat/completions", chat.body(), Prefix.LIMIT))
        replica = pick(fleet, now, prefix)
        assert replica is not None
        replica.requests.opened()
        replica.prefixes.add(prefix)
        replica.last_picked = next(self._picks)
        self._open[chat] = replica
        return fleet.index(replica)

    def done(self, chat: Chat) -> None:
        self._open.pop(chat).requests.closed()

    def hear(self, loads: Sequence[Load], now: float) -> None:
        for fleet in self._fleets if self._news else ():
            for replica, load in zip(fleet, loads, strict=True):
                replica.requests.hear(load, now)


class RayPrefixAffinity:
    """Ray's PrefixCacheAffinityRouter: its own PrefixTree, and the order of its decisions.

    The router itself runs only inside Ray Serve; what it decides is in
    `_prefix_match_best_replicas` of ray/llm/_internal/serve/routing_policies/prefix_aware. It
    knows every replica's true queue here, more than in operation. `threshold` is
    `imbalanced_threshold`: Ray's default never looks at load.
    """

    MATCH_RATE = 0.1

    def __init__(self, replicas: int, threshold: float = float("inf")) -> None:
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

        self._tree = PrefixTree()
        self._names = [str(place) for place in range(replicas)]
        self._tree.add_tenants(self._names, 0.0)
        self._threshold = threshold
        self._chance = random.Random(0)

    def choose(self, chat: Chat, loads: Sequence[int], now: float) -> int:
        names = self._chance.sample(self._names, 2)
        if max(loads) - min(loads) <= self._threshold:
            matched, tenants = self._tree.prefix_match(chat.text, self._names)
            if len(matched) / len(chat.text) < self.MATCH_RATE:
                tenants = self._tree.get_smallest_tenants()
            names = tenants or names
        chosen = min(names, key=lambda name: loads[int(name)])
        self._tree.insert(chat.text, chosen, now)
        return int(chosen)

    def done(self, chat: Chat) -> None:
        pass

    def hear(self, loads: Sequence[Load], now: float) -> None:
        pass


def _record(number: int) -> ReplicaRecord:
    return ReplicaRecord(
        replica_id=str(number),
        app="",
        deployment="",
        version="",
        model="m",
        engine="simulated",
        node_id="",
        state=ReplicaState.READY,
        since=0.0,
        max_ongoing_requests=10_000,
    )

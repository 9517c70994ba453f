"""Leases, the directory and the memory of deaths, with a clock that the test owns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.directory import Load, ReplicaRecord, ReplicaState
from cluster.engines.base import Lease, PortNeed
from cluster.errors import TransientEngineError
from cluster.ports import PortLedger
from cluster.registry import DEAD_SHOWN_S, LEASE_TTL_S, Ask, Registry


def record(
    replica_id: str, state: ReplicaState = ReplicaState.READY, **more: object
) -> ReplicaRecord:
    return ReplicaRecord(
        replica_id=replica_id,
        app="default",
        deployment="m",
        version="v1",
        model="m",
        engine="simulated",
        node_id="n1",
        state=state,
        since=0.0,
        **more,  # type: ignore[arg-type]
    )


def granted(registry: Registry, replica_id: str, node: str = "n1", now: float = 0.0) -> Lease:
    return asked(registry, replica_id, node, now=now)[0]


def asked(
    registry: Registry,
    replica_id: str,
    *nodes: str,
    needs: Sequence[PortNeed] = (PortNeed("http"), PortNeed("dist")),
    avoid: frozenset[int] = frozenset(),
    now: float = 0.0,
) -> list[Lease]:
    asks = [Ask(node, "127.0.0.1", needs, avoid) for node in nodes]
    leases = registry.lease(replica_id, asks, now)
    assert leases is not None
    return leases


def test_two_replicas_on_one_node_never_share_a_port() -> None:
    registry = Registry()
    a, b = granted(registry, "a"), granted(registry, "b")
    assert not set(a.ports.values()) & set(b.ports.values())


def test_the_same_port_may_serve_on_two_nodes() -> None:
    registry = Registry()
    assert granted(registry, "a", "n1").ports == granted(registry, "b", "n2").ports


def test_a_second_try_gets_other_ports_than_the_ones_found_taken() -> None:
    registry = Registry()
    first = granted(registry, "a")
    taken = frozenset(first.ports.values())
    (second,) = asked(registry, "a", "n1", avoid=taken)
    assert not set(second.ports.values()) & taken
    assert set(registry.ledger.held("n1")) == set(second.ports.values())


def test_an_empty_range_says_what_was_asked_and_what_is_free() -> None:
    registry = Registry(ledger=PortLedger(range(20000, 20003)))
    granted(registry, "a")
    with pytest.raises(TransientEngineError, match=r"2 ports were asked for on node n1, 1 of"):
        granted(registry, "b")


def test_a_lease_that_nobody_renews_ends_and_its_replica_is_dead() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    registry.renew(record("a"), [lease], now=1.0)
    registry.expire(now=1.0 + LEASE_TTL_S)
    assert registry.picture(0).replicas[0].state is ReplicaState.READY
    registry.expire(now=1.1 + LEASE_TTL_S)
    (dead,) = registry.picture(0).replicas
    assert dead.state is ReplicaState.DEAD
    assert "stopped renewing" in dead.cause
    assert registry.idle
    assert not registry.ledger.held("n1")


def test_a_restarted_coordinator_grants_nothing_until_replicas_had_time_to_report() -> None:
    before = Registry()
    lease = granted(before, "a")
    after = Registry(recovering_until=3.0)
    assert not after.picture(1.0).complete
    assert after.lease("b", [Ask("n1", "127.0.0.1", [PortNeed("http")])], now=1.0) is None
    assert after.renew(record("a"), [lease], now=2.0)
    fresh = granted(after, "b", now=3.0)
    assert after.picture(3.0).complete
    assert not set(fresh.ports.values()) & set(lease.ports.values())
    assert after.epoch != before.epoch


def test_a_replica_whose_port_went_to_another_is_told_so() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    stranger = Lease("b", "n1", "127.0.0.1", dict(lease.ports))
    assert not registry.renew(record("b"), [stranger], now=0.0)


def test_the_dead_do_not_come_back_by_a_renewal_that_crossed_their_last_word() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    registry.died(record("a", cause="killed"), transient=True, now=1.0)
    assert not registry.renew(record("a"), [lease], now=1.1)
    assert registry.picture(2.0).replicas[0].state is ReplicaState.DEAD
    assert not registry.ledger.held("n1")


def test_a_replica_that_was_only_silent_comes_back() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    registry.renew(record("a"), [lease], now=0.0)
    registry.expire(now=LEASE_TTL_S + 1)
    assert registry.renew(record("a"), [lease], now=LEASE_TTL_S + 2)
    assert registry.picture(0).replicas[0].state is ReplicaState.READY


def test_the_directory_counts_changes_and_not_repetitions() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    registry.renew(record("a"), [lease], 0.0)
    number = registry.number
    registry.renew(record("a"), [lease], 1.0)
    assert registry.number == number
    registry.renew(record("a", ReplicaState.DRAINING), [lease], 2.0)
    assert registry.number == number + 1


def test_loads_are_counted_apart_from_changes_and_go_with_their_replica() -> None:
    registry = Registry()
    lease = granted(registry, "a")
    registry.renew(record("a"), [lease], 0.0)
    assert (registry.number, registry.beat) == (1, 0)
    busy = Load(running=3, waiting=1, sampled=1.0)
    registry.renew(record("a"), [lease], 1.0, busy)
    registry.renew(record("a"), [lease], 1.5, busy)
    assert (registry.number, registry.beat) == (1, 1)
    assert registry.picture(2.0).loads == {"a": busy}
    registry.died(record("a"), transient=True, now=2.0)
    assert registry.picture(2.0).loads == {}


def test_the_dead_are_shown_for_a_while_with_their_cause() -> None:
    registry = Registry()
    granted(registry, "a")
    registry.died(record("a", cause="out of memory"), transient=False, now=10.0)
    registry.expire(now=10.0 + DEAD_SHOWN_S)
    assert registry.picture(0).replicas[0].cause == "out of memory"
    registry.expire(now=10.1 + DEAD_SHOWN_S)
    assert registry.picture(0).replicas == ()


@pytest.mark.parametrize(
    ("deaths", "waits"),
    [
        ([], 0.0),
        (["permanent"], 1.0),
        (["permanent"] * 2, 2.0),
        (["permanent"] * 4, 8.0),
        (["permanent"] * 12, 60.0),
        (["permanent", "transient"], 0.0),
        (["permanent", "transient", "permanent"], 1.0),
    ],
)
def test_the_wait_grows_with_permanent_deaths_in_a_row(deaths: list[str], waits: float) -> None:
    registry = Registry()
    for number, kind in enumerate(deaths):
        registry.died(record(f"r{number}", cause="why"), transient=kind == "transient", now=5.0)
    wait, cause = registry.wait_before_start("m", "v1", now=5.0)
    assert wait == waits
    assert cause == ("why" if waits else "")
    assert registry.wait_before_start("m", "v2", now=5.0) == (0.0, "")
    assert registry.wait_before_start("m", "v1", now=5.0 + waits)[0] == 0.0


def test_a_window_is_consecutive_ports_that_nobody_else_gets() -> None:
    registry = Registry(ledger=PortLedger(range(100, 200), first=110))
    needs = [PortNeed("http"), PortNeed("hccl", window=16)]
    (a,), (b,) = (asked(registry, name, "n1", needs=needs) for name in "ab")
    assert (a.ports, b.ports) == ({"http": 110, "hccl": 111}, {"http": 127, "hccl": 128})
    assert a.held() == list(range(110, 127))
    assert set(registry.ledger.held("n1")) == {*a.held(), *b.held()}


def test_a_window_steps_over_a_single_taken_port_and_never_leaves_the_range() -> None:
    ledger = PortLedger(range(100, 110), first=100)
    assert ledger.lease("n", "a", [4], avoid=[102]) == [103]
    with pytest.raises(TransientEngineError, match=r"4 ports were asked for on node n, 6 of"):
        ledger.lease("n", "b", [4])


def test_the_leases_of_all_nodes_of_a_replica_live_and_end_together() -> None:
    registry = Registry()
    leases = asked(registry, "a", "n1", "n2")
    assert [lease.node_id for lease in leases] == ["n1", "n2"]
    assert registry.renew(record("a"), leases, now=LEASE_TTL_S)
    registry.expire(now=LEASE_TTL_S + 1)
    assert registry.ledger.held("n2")
    registry.died(record("a"), transient=True, now=LEASE_TTL_S + 2)
    assert not any(map(registry.ledger.held, ("n1", "n2")))

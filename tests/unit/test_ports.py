from __future__ import annotations

import os
import socket

from cluster.ports import PortLedger, can_bind, free_port, listeners


def test_a_port_with_a_listener_cannot_be_bound_and_a_free_one_can() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not can_bind("127.0.0.1", port)
    assert can_bind("127.0.0.1", port)


def test_two_clusters_on_one_host_rarely_propose_the_same_port() -> None:
    firsts = {PortLedger().lease("n", "a", [1])[0] for _ in range(50)}
    assert len(firsts) > 25


def test_a_ledger_begins_where_it_is_told_and_goes_around() -> None:
    ledger = PortLedger(range(100, 104), first=102)
    assert ledger.lease("n", "a", [1, 1, 1]) == [102, 103, 100]


def test_whoever_listens_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert os.getpid() in listeners(listener.getsockname()[1])


def test_the_next_free_port_is_taken_when_the_wanted_one_is_busy() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = listener.getsockname()[1]
        assert free_port("127.0.0.1", near=busy) != busy
    assert free_port("127.0.0.1", near=busy) == busy

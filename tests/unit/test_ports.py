from __future__ import annotations

import socket

from cluster.ports import can_bind, free_port


def test_a_port_with_a_listener_cannot_be_bound_and_a_free_one_can() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not can_bind("127.0.0.1", port)
    assert can_bind("127.0.0.1", port)


def test_the_next_free_port_is_taken_when_the_wanted_one_is_busy() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = listener.getsockname()[1]
        assert free_port("127.0.0.1", near=busy) != busy
    assert free_port("127.0.0.1", near=busy) == busy

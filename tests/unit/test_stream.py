from __future__ import annotations

import pytest

from serve_apps.stream import DONE, SSEData, SSEEvents

STREAMS = {
    "lf": b'data: {"a": 1}\n\ndata: {"b": "\xc3\xa9"}\n\ndata: [DONE]\n\n',
    "crlf": b'data: {"a": 1}\r\n\r\ndata: {"b": "\xc3\xa9"}\r\n\r\ndata: [DONE]\r\n\r\n',
    "mixed": b'data: {"a": 1}\n\r\ndata: {"b": "\xc3\xa9"}\r\n\ndata: [DONE]\r\n\r\n',
    "named": b': ping\n\nevent: x\ndata: {"a": 1}\nid: 7\n\ndata:{"b": "\xc3\xa9"}\n\n'
    b"data: [DONE]\n\n",
}
PAYLOADS = [b'{"a": 1}', b'{"b": "\xc3\xa9"}', DONE]
ENDS = (b"\n\n", b"\n\r\n")


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_cut_at_every_offset_gives_whole_events_and_the_same_bytes(stream: bytes) -> None:
    for cut in range(len(stream) + 1):
        events = SSEEvents()
        pieces = [events.decode(stream[:cut]), events.decode(stream[cut:])]
        assert b"".join(pieces) == stream
        assert all(piece.endswith(ENDS) for piece in pieces if piece)
        assert events.flush() == b""


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_payloads_do_not_depend_on_how_bytes_arrive(stream: bytes, size: int) -> None:
    data = SSEData()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [payload for piece in pieces for payload in data.decode(piece)] == PAYLOADS


def test_whole_events_pass_without_a_copy() -> None:
    event = b"data: x\n\n"
    assert SSEEvents().decode(event) is event


def test_an_unfinished_event_is_held_until_flush() -> None:
    events = SSEEvents()
    assert events.decode(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert events.flush() == b"data: 2"
    assert events.flush() == b""


def test_data_lines_of_one_event_are_joined_and_comments_have_no_payload() -> None:
    assert SSEData().decode(b"data: a\ndata: b\n\n: ping\n\ndata:\n\n") == [b"a\nb", b""]


def test_flush_gives_the_payload_of_an_event_without_its_blank_line() -> None:
    data = SSEData()
    assert data.decode(b"data: [DONE]\n") == []
    assert data.flush() == [DONE]

"""Incremental decoders for server-sent events: bytes cut anywhere go in, whole things come out.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream: a blank
line ends an event. Lines end with LF or CRLF here; a lone CR, which no engine writes, does not
count.
"""

from __future__ import annotations

import re

DONE = b"[DONE]"
"""The payload of the last event of OpenAI's chat and completion streams."""

_EVENT_ENDS = (b"\n\n", b"\n\r\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class SSEEvents:
    """Cuts a byte stream after its events. What comes out is what went in, byte for byte."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def decode(self, data: bytes) -> bytes:
        """Return the events that `data` completes, or nothing while the last one is unfinished."""
        if not self._tail and data.endswith(_EVENT_ENDS):
            return data
        # Old bytes were searched before; a blank line may lie across at most two of them.
        start = max(len(self._tail) - 2, 0)
        self._tail += data
        end = max(
            (at + len(mark) for mark in _EVENT_ENDS if (at := self._tail.rfind(mark, start)) >= 0),
            default=0,
        )
        events = bytes(self._tail[:end])
        del self._tail[:end]
        return events

    def flush(self) -> bytes:
        """Return what is held of an event that never ended."""
        tail = bytes(self._tail)
        self._tail.clear()
        return tail


class SSEData:
    """Takes the payload (the joined `data:` lines) out of every event of a byte stream."""

    def __init__(self) -> None:
        self._events = SSEEvents()

    def decode(self, data: bytes) -> list[bytes]:
        """Return the payloads of the events that `data` completes; comments have none."""
        return _payloads(self._events.decode(data))

    def flush(self) -> list[bytes]:
        """Return the payload of a last event whose blank line never came, if it has one."""
        return _payloads(self._events.flush())


def _payloads(events: bytes) -> list[bytes]:
    payloads = []
    for event in _BLANK_LINE.split(events):
        lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
        if lines:
            payloads.append(b"\n".join(line.removeprefix(b" ") for line in lines))
    return payloads

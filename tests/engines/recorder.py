"""A TCP relay in front of an engine that keeps what the engine sent, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11


@dataclass
class Recorder:
    """Everything that came out of the engine's socket."""

    url: str = ""
    sent: bytearray = field(default_factory=bytearray)

    def body(self) -> bytes:
        """The body of the one response that was sent, without HTTP's own framing."""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("host", "engine")]))
        client.send(h11.EndOfMessage())
        client.receive_data(bytes(self.sent))
        body = b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
        return body


@asynccontextmanager
async def recorded(engine_url: str) -> AsyncIterator[Recorder]:
    """Relay to `engine_url` from a port of our own."""
    recorder = Recorder()
    target = urlsplit(engine_url)

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None
    ) -> None:
        while data := await reader.read(1 << 16):
            if kept is not None:
                kept += data
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(copy(reader, theirs[1], None), copy(theirs[0], writer, recorder.sent))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield recorder
    finally:
        server.close()

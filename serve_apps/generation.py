"""What handle calls yield: typed pieces of an answer, read from the engine's own events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import InvalidRequest, ReplicaLost, RequestError
from serve_apps.stream import DONE, SSEData


@dataclass(frozen=True)
class Usage:
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Chunk:
    """A piece of choice `index`, as it came; a whole answer has the same shape.

    `token_ids` are filled when asked for (`return_token_ids=True`), `finish_reason` in the last
    piece of a choice, `usage` in the last piece of all.
    """

    text: str = ""
    index: int = 0
    token_ids: tuple[int, ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Generation:
    """A whole answer: one Chunk a choice, in order, and what it took."""

    choices: tuple[Chunk, ...]
    usage: Usage | None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text if self.choices else ""


@dataclass
class ChunkReader:
    """Turns the bytes of an engine's SSE answer into Chunks."""

    _events: SSEData = field(default_factory=SSEData)

    async def read(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Chunk]:
        """Yield every Chunk.

        Raises:
            ReplicaLost: the stream ended before the engine said that it was done.
        """
        async for piece in pieces:
            for data in self._events.decode(piece):
                if data == DONE:
                    return
                for chunk in chunks_of(json.loads(data)):
                    yield chunk
        raise ReplicaLost("the engine ended the stream before it was done")


def chunks_of(body: Mapping[str, Any]) -> list[Chunk]:
    """The Chunks in one body or event of /v1/chat/completions or /v1/completions.

    Raises:
        RequestError: the event carries an error.
    """
    if "error" in body:
        raise error_of(500, body)
    chunks = [_chunk(choice) for choice in body.get("choices") or ()]
    usage = body.get("usage")
    if usage is None:
        return chunks
    counted = Usage(usage["prompt_tokens"], usage.get("completion_tokens") or 0)
    return [*chunks, Chunk(usage=counted)]


def generation_of(body: Mapping[str, Any]) -> Generation:
    """A whole answer from a body that was not streamed."""
    chunks = chunks_of(body)
    usage = chunks.pop().usage if chunks and chunks[-1].usage else None
    return Generation(tuple(chunks), usage)


def error_of(status: int, body: Mapping[str, Any]) -> RequestError:
    """The engine's own refusal, in our tree."""
    told = body.get("error")
    message = told.get("message") if isinstance(told, Mapping) else None
    param = told.get("param") if isinstance(told, Mapping) else None
    kind = InvalidRequest if 400 <= status < 500 else ReplicaLost
    return kind(str(message or f"the engine answered {status}"), param=param)


def _chunk(choice: Mapping[str, Any]) -> Chunk:
    part = choice.get("delta") or choice.get("message") or choice
    text = part.get("content") if part is not choice else choice.get("text")
    return Chunk(
        text=text or "",
        index=choice.get("index", 0),
        token_ids=tuple(choice.get("token_ids") or ()),
        tool_calls=tuple(part.get("tool_calls") or ()),
        finish_reason=choice.get("finish_reason"),
    )

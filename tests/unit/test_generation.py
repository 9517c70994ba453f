"""What handle calls make of an engine's answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from cluster.errors import InvalidRequest, ReplicaLost
from serve_apps.generation import Chunk, ChunkReader, Usage, error_of, generation_of

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def read(*pieces: bytes) -> list[Chunk]:
    async def source() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [chunk async for chunk in ChunkReader().read(source())]


async def test_a_chat_stream_becomes_typed_chunks_however_it_was_cut() -> None:
    whole = (
        event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        + event({"choices": [{"index": 0, "delta": {"content": "né"}, "token_ids": [7]}]})
        + event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        + event({"choices": [], "usage": USAGE})
        + b"data: [DONE]\n\n"
    )
    chunks = await read(*(bytes([byte]) for byte in whole))
    assert chunks == [
        Chunk(),
        Chunk(text="né", token_ids=(7,)),
        Chunk(finish_reason="stop"),
        Chunk(usage=Usage(3, 2)),
    ]


async def test_a_stream_that_just_ends_is_an_error() -> None:
    with pytest.raises(ReplicaLost, match="before it was done"):
        await read(event({"choices": [{"index": 0, "text": "a"}]}))


async def test_an_error_event_is_raised_with_the_engines_words() -> None:
    with pytest.raises(ReplicaLost, match="it broke"):
        await read(event({"error": {"message": "it broke"}}))


def test_a_whole_answer_keeps_every_choice() -> None:
    answer = generation_of(
        {
            "choices": [
                {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
                {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
            ],
            "usage": USAGE,
        }
    )
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert answer.usage == Usage(3, 2)
    assert answer.text == "a"


def test_a_refusal_of_the_engine_keeps_its_words_and_field() -> None:
    error = error_of(400, {"error": {"message": "too long", "param": "max_tokens"}})
    assert isinstance(error, InvalidRequest)
    assert (error.saw, error.param) == ("too long", "max_tokens")

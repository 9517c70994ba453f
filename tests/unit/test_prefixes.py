"""Which prompts begin alike, and how little is remembered of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_apps.openai import prompt_of
from serve_apps.prefixes import Prefix, SentPrefixes
from tests.unit.gateway_rig import ANSWERS, Engine, gateway

CHAT = "/v1/chat/completions"


def chat(*texts: str, **fields: Any) -> Prefix:
    messages = [{"role": "user", "content": text} for text in texts]
    return of({"model": "m", "messages": messages} | fields)


def of(body: dict[str, Any], path: str = CHAT) -> Prefix:
    return Prefix.of(prompt_of(path, json.dumps(body).encode(), Prefix.LIMIT))


def share(sent: Prefix, asked: Prefix) -> float:
    prefixes = SentPrefixes()
    prefixes.add(sent)
    return prefixes.share(asked)


FIRST, SECOND = "first " * 1000, "second " * 1000
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d " * 1500}}]
SHARES = {
    "the same prompt": (chat(FIRST), chat(FIRST), 0.88, 1.0),
    "the next turn of a chat": (chat(FIRST), chat(FIRST, SECOND), 0.40, 0.47),
    "an earlier turn": (chat(FIRST, SECOND), chat(FIRST), 0.88, 1.0),
    "other settings": (chat(FIRST), chat(FIRST, max_tokens=3, temperature=0), 0.88, 1.0),
    "a shared system prompt": (chat(FIRST, "a " * 50), chat(FIRST, "b " * 50), 0.85, 0.99),
    "other prompts": (chat(FIRST), chat(SECOND), 0.0, 0.0),
    "other prompts under the same tools": (
        chat(FIRST, tools=TOOLS),
        chat(SECOND, tools=TOOLS),
        0.25,
        0.33,
    ),
    "the same under other tools": (chat(FIRST, tools=TOOLS), chat(FIRST), 0.0, 0.0),
    "the same under another salt": (
        chat(FIRST, cache_salt="a"),
        chat(FIRST, cache_salt="b"),
        0.0,
        0.0,
    ),
    "a short prompt is soon computed": (chat("x" * 300), chat("x" * 300), 0.1, 0.2),
    "a very short one is not looked at": (chat("hello"), chat("hello"), 0.0, 0.0),
    "beyond what is looked at": (chat("x" * 400_000), chat("x" * 400_000 + "y"), 0.9, 1.0),
    "prompt as text": (
        of({"prompt": FIRST}, "/v1/completions"),
        of({"prompt": FIRST + SECOND}, "/v1/completions"),
        0.4,
        0.47,
    ),
    "instructions and input": (
        of({"instructions": FIRST, "input": "a"}, "/v1/responses"),
        of({"input": "b", "instructions": FIRST}, "/v1/responses?x=1"),
        0.88,
        1.0,
    ),
    "what leaves nothing in a KV cache": (
        of({"prompt": FIRST}, "/tokenize"),
        of({"prompt": FIRST}, "/v1/completions"),
        0.0,
        0.0,
    ),
}


@pytest.mark.parametrize(("sent", "asked", "least", "most"), SHARES.values(), ids=SHARES)
def test_the_share_of_a_prompt_that_was_sent_before(
    sent: Prefix, asked: Prefix, least: float, most: float
) -> None:
    assert least <= share(sent, asked) <= most


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff" * 999, b"--b\r\nform", b"[" * 100_000]
)
def test_a_body_that_is_no_request_has_no_prompt(body: bytes) -> None:
    assert prompt_of(CHAT, body, Prefix.LIMIT) == b""


@pytest.mark.parametrize("size", [100, 10_000, 1_000_000, 30_000_000])
def test_little_is_kept_of_a_prompt_however_long(size: int) -> None:
    body = b'{"messages": "%s"}' % (b"x" * size)
    prompt = prompt_of(CHAT, body, Prefix.LIMIT)
    assert len(prompt) <= Prefix.LIMIT
    assert len(Prefix.of(prompt).hashes) <= 55


def test_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    sent = SentPrefixes(limit=200)
    used = chat("used again and again " * 100)
    for number in range(1000):
        sent.add(chat(f"{number} " * 500))
        sent.add(used)
    assert len(sent) == 200
    assert sent.share(used) > 0.8
    assert sent.share(chat("999 " * 500)) > 0.8
    assert sent.share(chat("0 " * 500)) == 0.0


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning() -> None:
    long = chat("long " * 2000)
    sent = SentPrefixes(limit=len(long.hashes) + 1)
    sent.add(long)
    whole = sent.share(long)
    shares = [whole]
    for number in range(len(long.hashes)):
        sent.add(Prefix((number,), 128))
        shares.append(sent.share(long))
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < shares[-10] < whole


async def test_a_gateway_sends_what_begins_alike_to_one_engine_and_the_rest_in_turn() -> None:
    engines = Engine(ANSWERS), Engine(ANSWERS)
    async with gateway(*engines) as front:
        for number in range(6):
            messages = [{"role": "user", "content": text} for text in (FIRST, str(number))]
            await front.post(json.dumps({"model": "m", "messages": messages}).encode(), CHAT)
        assert sorted(len(engine.requests) for engine in engines) == [0, 6]
        for number in range(6):
            await front.post(json.dumps({"model": "m", "prompt": f"{number} " * 500}).encode())
    assert sorted(len(engine.requests) for engine in engines) == [3, 9]

"""A load generator for OpenAI's streaming chat API: a closed loop of streams, or Poisson arrivals.

    python -m scripts.benchmark.load --url http://127.0.0.1:8000 --model m --streams 16
    python -m scripts.benchmark.load --url http://127.0.0.1:8000 --model m --rate 20

It prints one JSON object: what it saw of every request, and its own CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
import uvloop

_TEXT = re.compile(rb'"content": ?"[^"]')
_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_WORDS = ("red", "blue", "one", "two", "north", "south", "sun", "moon", "star", "rain", "wind")


@dataclass(frozen=True)
class Load:
    """What is asked for: `requests` answers of exactly `max_tokens` tokens each.

    With `rate` (requests a second) they arrive at random, whether earlier ones are answered or
    not; else `streams` run at once, each followed by the next as soon as it ends.
    """

    requests: int
    max_tokens: int
    streams: int = 1
    rate: float = 0.0
    prompt_words: int = 32


@dataclass
class Record:
    """One request, in seconds: TTFT counts from the moment the request was due.

    `gaps` are the times between one event and the next from the first text on; events that
    arrive together have gaps of zero. `failure` is empty for a whole answer.
    """

    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    failure: str = ""


@dataclass(frozen=True)
class Outcome:
    """All requests of one load, the time from the first to the last byte, and our CPU time."""

    records: list[Record]
    wall_s: float
    cpu_s: float


async def run(url: str, model: str, load: Load, seed: int = 0) -> Outcome:
    """Put `load` on the server at `url`.

    `seed` makes the prompts, no two of them alike, so that no prefix cache helps. Arrivals are
    the same for every seed.
    """
    prompts = _prompts(load, seed)
    records: list[Record] = []
    started, used = time.perf_counter(), time.process_time()
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
        read_bufsize=2**18,
    ) as session:

        async def ask(prompt: str, due: float) -> None:
            records.append(await _ask(session, _body(model, prompt, load.max_tokens), due))

        async def stream() -> None:
            for prompt in prompts:
                await ask(prompt, time.perf_counter())

        async with asyncio.TaskGroup() as group:
            if load.rate:
                due = started
                arrivals = random.Random(0)
                for prompt in prompts:
                    await asyncio.sleep(due - time.perf_counter())
                    group.create_task(ask(prompt, due))
                    due += arrivals.expovariate(load.rate)
            else:
                for _ in range(load.streams):
                    group.create_task(stream())
    return Outcome(records, time.perf_counter() - started, time.process_time() - used)


def _prompts(load: Load, seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    for _ in range(load.requests):
        yield f"{chance.getrandbits(48):012x} " + " ".join(
            chance.choices(_WORDS, k=load.prompt_words)
        )


def _body(model: str, prompt: str, max_tokens: int) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


async def _ask(session: aiohttp.ClientSession, body: bytes, due: float) -> Record:
    record = Record()
    last, end = 0.0, b""
    try:
        async with session.post(
            "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
        ) as response:
            if response.status != 200:
                record.failure = f"{response.status}: {(await response.text())[:200]}"
                return record
            async for piece in response.content.iter_any():
                now = time.perf_counter()
                if last:
                    if events := piece.count(b'"content":'):
                        record.gaps += [now - last] + [0.0] * (events - 1)
                        last = now
                elif _TEXT.search(piece):
                    record.ttft = now - due
                    last = now
                end = (end + piece)[-2048:]
    except (aiohttp.ClientError, TimeoutError) as error:
        record.failure = repr(error)
        return record
    counts = _TOKENS.findall(end)
    if b"data: [DONE]" not in end or not counts:
        record.failure = f"the stream ended with {end[-100:]!r}"
    else:
        record.tokens = int(counts[-1])
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", required=True, help="base URL, without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=1, help="how many at once (closed loop)")
    parser.add_argument("--rate", type=float, default=0.0, help="arrivals a second (open loop)")
    parser.add_argument("--prompt-words", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0, help="makes the prompts")
    parser.add_argument("--out", type=Path, help="a file for the result; else it is printed")
    options = parser.parse_args()
    load = Load(
        options.requests, options.max_tokens, options.streams, options.rate, options.prompt_words
    )
    outcome = uvloop.run(run(options.url, options.model, load, options.seed))
    text = json.dumps(asdict(outcome))
    if options.out:
        options.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()

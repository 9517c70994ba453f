"""Replicas, clients and time for the picking benchmark: the simulated engine's scheduler and KV
blocks, without its server.

One thing is added to that engine: a replica computes one prompt after another, as a busy device
does, so that a request feels the prompts of others.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.directory import Load
from cluster.engines.simulated.model import Job, Scheduler, Settings
from cluster.engines.simulated.text import tokenize

SETTINGS = Settings(ttft=0.03, itl=0.02, capacity=16, kv_blocks=4096)
PREFILL_TOKENS_PER_S = 8000
NEWS_PERIOD_S, NEWS_DELAY_S = 1.0, 0.3


class Router(Protocol):
    """What is compared."""

    def choose(self, chat: Chat, loads: Sequence[int], now: float) -> int:
        """Return the place of the replica that gets the chat's next turn.

        `loads` is how many requests each has, all gateways' together: for routers that may know.
        """

    def done(self, chat: Chat) -> None:
        """The turn that was sent last is answered."""

    def hear(self, loads: Sequence[Load], now: float) -> None:
        """The engines' own counts, once a second, a moment old."""


@dataclass(eq=False)
class Chat:
    """One client: what was said so far, as tokens, as text, and as the JSON of a request."""

    words: Callable[[int], str]
    question_tokens: int
    answer_tokens: int
    turns: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    messages: list[str] = field(default_factory=list)
    answer: str = ""

    def say(self, role: str, words: str) -> None:
        self.tokens += tokenize(words)
        self.text += words
        self.messages.append(json.dumps({"role": role, "content": words}))

    def ask(self) -> None:
        self.say("user", self.words(self.question_tokens))
        self.answer = self.words(self.answer_tokens)
        self.turns -= 1

    def body(self) -> bytes:
        return b'{"model": "m", "messages": [%s]}' % ", ".join(self.messages).encode()


@dataclass(frozen=True)
class Workload:
    """Chats that begin at random times, `rate` a second on average.

    Lengths are in tokens. A chat has `turns` on average; `think_s` is the mean time between an
    answer and the next question. It begins with one of `systems` system prompts (0: none), the
    first ones far more often than the last. Each replica of the first half has `occupied`
    requests all the time that came another way.
    """

    name: str
    rate: float
    question_tokens: int
    turns: int = 1
    think_s: float = 0.0
    systems: int = 0
    system_tokens: int = 0
    answer_tokens: int = 100
    occupied: int = 0

    def chats(self, chance: random.Random) -> Iterator[tuple[float, Chat]]:
        """Yield chats and when they begin, without end."""
        vocabulary = ["".join(chance.choices("abcdefghij", k=4)) for _ in range(1000)]

        def words(count: int) -> str:
            return "".join(f" {word}" for word in chance.choices(vocabulary, k=count))

        systems = [words(self.system_tokens) for _ in range(self.systems)]
        weights = [1 / rank for rank in range(1, self.systems + 1)]
        now = 0.0
        while True:
            now += chance.expovariate(self.rate)
            chat = Chat(
                words,
                self.question_tokens,
                self.answer_tokens,
                chance.randint(1, self.turns * 2 - 1),
            )
            if systems:
                chat.say("system", *chance.choices(systems, weights))
            yield now, chat


@dataclass(eq=False)
class Served:
    """What became of one turn."""

    replica: int
    asked: float
    prompt: int
    cached: int = 0
    ttft: float = 0.0


class Simulation:
    """Plays a workload on `replicas` engines, with `router` in front of them."""

    def __init__(self, workload: Workload, router: Router, replicas: int, seed: int = 0) -> None:
        self.workload, self.router = workload, router
        self.now = 0.0
        self.served: list[Served] = []
        self.spreads: list[int] = []
        self._chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._engines = [Scheduler(SETTINGS, lambda: self.now) for _ in range(replicas)]
        self._free_at = [0.0] * replicas
        for engine in self._engines[: replicas // 2]:
            for _ in range(workload.occupied):
                engine.submit(Job((0,), 1, on_start=lambda: None))

    def run(self, turns: int) -> list[Served]:
        """Play until so many turns were asked and all of them are answered."""
        chats = self.workload.chats(random.Random(self._chance.random()))
        self._begin_next(chats, turns)
        self._tell()
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.served

    def loads(self) -> list[int]:
        return [len(engine.running) + len(engine.waiting) for engine in self._engines]

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _begin_next(self, chats: Iterator[tuple[float, Chat]], turns: int) -> None:
        when, chat = next(chats)

        def begin() -> None:
            if len(self.served) < turns:
                self._ask(chat)
                self._begin_next(chats, turns)

        self._at(when, begin)

    def _tell(self) -> None:
        loads = [Load(len(e.running), len(e.waiting), self.now) for e in self._engines]
        self._at(self.now + NEWS_DELAY_S, lambda: self.router.hear(loads, self.now))
        if len(self._events) > 1:
            self._at(self.now + NEWS_PERIOD_S, self._tell)

    def _ask(self, chat: Chat) -> None:
        chat.ask()
        loads = self.loads()
        self.spreads.append(max(loads) - min(loads))
        place = self.router.choose(chat, loads, self.now)
        engine, turn = self._engines[place], Served(place, self.now, len(chat.tokens))
        self.served.append(turn)

        def start() -> None:
            turn.cached = job.cached
            begin = max(self.now, self._free_at[place])
            self._free_at[place] = begin + (turn.prompt - job.cached) / PREFILL_TOKENS_PER_S
            first = self._free_at[place] + SETTINGS.ttft
            turn.ttft = first - turn.asked
            self._at(first + SETTINGS.itl * chat.answer_tokens, finish)

        def finish() -> None:
            self.router.done(chat)
            chat.say("assistant", chat.answer)
            job.output = chat.tokens[turn.prompt :]
            engine.finish(job, "stop")
            if chat.turns:
                think = self._chance.expovariate(1 / self.workload.think_s)
                self._at(self.now + think, lambda: self._ask(chat))

        job = Job(tuple(chat.tokens), chat.answer_tokens, start)
        engine.submit(job)

"""The simulated engine without its server: time, KV blocks and the order of requests.

Pure and deterministic: the clock is given, nothing sleeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


def _option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Settings:
    """How fast and how large the engine is; each field is a flag of the command line."""

    ttft: float = _option(0.05, "seconds from the start of a request to its first token")
    itl: float = _option(0.02, "seconds from one token to the next")
    prefill_tokens_per_s: float = _option(
        0.0, "uncached prompt tokens a second, on top of --ttft (0: the prompt's length is free)"
    )
    capacity: int = _option(256, "sequences that run at once; others wait in order of arrival")
    kv_blocks: int = _option(65536, "blocks of the KV cache")
    block_size: int = _option(16, "tokens in one block")
    max_model_len: int = _option(
        0, "tokens of prompt and answer together (0: what the KV cache holds, up to 32768)"
    )
    default_max_tokens: int = _option(256, "length of a chat answer when the request sets none")
    seed: int = _option(0, "engines with other seeds answer with other words")
    start_seconds: float = _option(0.0, "how long the start takes")

    def __post_init__(self) -> None:
        positive = ("capacity", "kv_blocks", "block_size", "default_max_tokens")
        for name, value in vars(self).items():
            least = 1 if name in positive else 0
            if value < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        if self.max_model_len > self.kv_blocks * self.block_size:
            raise ValueError(
                f"max_model_len={self.max_model_len} does not fit into kv_blocks={self.kv_blocks} "
                f"of block_size={self.block_size}"
            )

    @property
    def context(self) -> int:
        """The longest prompt and answer together, in tokens."""
        return self.max_model_len or min(32768, self.kv_blocks * self.block_size)


class BlockPool:
    """The KV cache in blocks. Blocks with known content stay until their room is needed (LRU).

    A block is known by the hash of its tokens and all before them. `_refs` counts the running
    sequences that use it, `_idle` holds the unused ones, oldest first, `_private` counts blocks
    that are reserved and hold nothing known yet.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks, self.block_size = blocks, block_size
        self._refs: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that belong to running sequences."""
        return len(self._refs) + self._private

    def hashes(self, tokens: Sequence[int]) -> list[int]:
        """Return the chained hash of every full block of `tokens`."""
        chain, size = [0], self.block_size
        for end in range(size, len(tokens) + 1, size):
            chain.append(hash((chain[-1], *tokens[end - size : end])))
        return chain[1:]

    def take(self, hashes: Sequence[int], blocks: int) -> int | None:
        """Reserve `blocks`, the first of them known by `hashes`.

        Return how many leading ones were there already, or None when there is no room now.
        """
        hits = next((n for n, h in enumerate(hashes) if not self._known(h)), len(hashes))
        revived = sum(h in self._idle for h in hashes[:hits])
        if self.used + revived + blocks - hits > self.blocks:
            return None
        for h in hashes:
            self._idle.pop(h, None)
            self._refs[h] = self._refs.get(h, 0) + 1
        self._private += blocks - len(hashes)
        self._evict()
        return hits

    def give_back(self, hashes: Sequence[int], blocks: int, filled: Sequence[int]) -> None:
        """End a reservation made by `take(hashes, blocks)`; `filled` are all hashes it has now."""
        self._private -= blocks - len(hashes)
        for h in hashes:
            self._refs[h] -= 1
            if not self._refs[h]:
                del self._refs[h]
        for h in reversed(filled):  # the end of a prefix goes before its beginning
            if h not in self._refs:
                self._idle[h] = None
                self._idle.move_to_end(h)
        self._evict()

    def _known(self, h: int) -> bool:
        return h in self._refs or h in self._idle

    def _evict(self) -> None:
        while self._idle and self.used + len(self._idle) > self.blocks:
            self._idle.popitem(last=False)


@dataclass(eq=False)
class Job:
    """One sequence on its way through the scheduler.

    `on_start` is called once, when it begins to run; `first_at` (on the scheduler's clock) and
    `cached` (prompt tokens found in the prefix cache) are set by then. `output` is filled with
    token ids by whoever plays the job.
    """

    prompt: Sequence[int]
    max_tokens: int
    on_start: Callable[[], None]
    output: list[int] = field(default_factory=list)
    cached: int = 0
    first_at: float = 0.0
    hashes: list[int] = field(default_factory=list)
    blocks: int = 0


class Scheduler:
    """First come, first served, within `capacity` and the KV cache.

    A job reserves the blocks of its prompt and its longest answer when it starts: nothing is ever
    preempted, and usage says what is reserved. `clock` returns seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.settings, self.clock = settings, clock
        self.pool = BlockPool(settings.kv_blocks, settings.block_size)
        self.running: set[Job] = set()
        self.waiting: dict[Job, None] = {}
        self.prompt_tokens = self.generation_tokens = 0
        self.cache_queries = self.cache_hits = 0
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)

    @property
    def kv_usage(self) -> float:
        return self.pool.used / self.pool.blocks

    def submit(self, job: Job) -> None:
        """Queue `job`; it starts at once if there is room."""
        job.hashes = self.pool.hashes(job.prompt)
        job.blocks = -(-(len(job.prompt) + job.max_tokens) // self.pool.block_size)
        self.waiting[job] = None
        self._start_jobs()

    def finish(self, job: Job, reason: str) -> None:
        """Take `job` out, wherever it is, and count it under `reason`."""
        if job in self.running:
            self.running.remove(job)
            filled = self.pool.hashes([*job.prompt, *job.output])
            self.pool.give_back(job.hashes, job.blocks, filled)
        else:
            del self.waiting[job]
        self.finished[reason] += 1
        self._start_jobs()

    def count_token(self, job: Job) -> None:
        """Count one token of `job`; with its first one, its prompt counts as processed."""
        if len(job.output) == 1:
            self.prompt_tokens += len(job.prompt)
        self.generation_tokens += 1

    def _start_jobs(self) -> None:
        while self.waiting and len(self.running) < self.settings.capacity:
            job = next(iter(self.waiting))
            hits = self.pool.take(job.hashes, job.blocks)
            if hits is None:
                return
            del self.waiting[job]
            self.running.add(job)
            self._start(job, hits)

    def _start(self, job: Job, hits: int) -> None:
        size, rate = self.pool.block_size, self.settings.prefill_tokens_per_s
        # The last prompt token is always computed, so its block never counts as a hit.
        job.cached = min(hits, (len(job.prompt) - 1) // size) * size
        self.cache_queries += len(job.prompt)
        self.cache_hits += job.cached
        prefill = (len(job.prompt) - job.cached) / rate if rate else 0.0
        job.first_at = self.clock() + self.settings.ttft + prefill
        job.on_start()

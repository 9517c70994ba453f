"""Read an engine's counters from the Prometheus text of its /metrics.

vLLM's text is about 100 kB, mostly histograms, and is read several times a second: one regular
expression that looks for the few names wanted takes a fraction of the time of a full parser.
"""

from __future__ import annotations

import re
from functools import cache

from cluster.engines.base import Stats

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"

_STATS = (RUNNING, WAITING, KV_USAGE, PROMPT_TOKENS, GENERATION_TOKENS)


def read_stats(text: str) -> Stats:
    """Return the `Stats` in a text with vLLM's metric names; what is missing counts as 0."""
    sums = sample_sums(text, _STATS)
    return Stats(
        running=int(sums[RUNNING]),
        waiting=int(sums[WAITING]),
        kv_usage=sums[KV_USAGE],
        tokens=sums[PROMPT_TOKENS] + sums[GENERATION_TOKENS],
        output_tokens=sums[GENERATION_TOKENS],
    )


def sample_sums(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the value of each sample in `names`, summed over its labels; 0.0 where absent."""
    sums = dict.fromkeys(names, 0.0)
    for name, value in _pattern(names).findall(text):
        sums[name] += float(value)
    return sums


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    alternatives = "|".join(map(re.escape, names))
    return re.compile(rf"^({alternatives})(?:{{.*}})? +(\S+)", re.MULTILINE)

"""Which prompts begin alike, and what a replica has been sent: a guess at its KV cache.

Text is compared, not tokens: a tokenizer for every model would cost more than a wrong guess does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

_FINEST, _LONGEST = 128, 256 * 1024
_SHORT = 2048
_REMEMBERED = 16384


def _ends() -> tuple[int, ...]:
    """Where prompts are compared: every 128 bytes, later at steps of an eighth of the way so far.

    So no prompt has more than 55 such places, and what lies beyond its last one is at most a ninth.
    """
    ends = [_FINEST]
    while (end := ends[-1] + max(_FINEST, ends[-1] // 8)) <= _LONGEST:
        ends.append(end)
    return tuple(ends)


_ENDS = _ends()


@dataclass(frozen=True)
class Prefix:
    """The beginning of a prompt, in a form that is quickly compared.

    `hashes[i]` stands for the first `_ENDS[i]` bytes; hashes mean nothing in another process.
    `length` is in bytes; what is beyond `LIMIT` is not looked at.
    """

    LIMIT = _LONGEST

    hashes: tuple[int, ...] = ()
    length: int = 0

    @classmethod
    def of(cls, text: bytes) -> Prefix:
        text = text[:_LONGEST]
        hashes, chain = [], 0
        for start, end in pairwise((0, *_ENDS)):
            if end > len(text):
                break
            chain = hash((chain, text[start:end]))
            hashes.append(chain)
        return cls(tuple(hashes), len(text))


NO_PREFIX = Prefix()


class SentPrefixes:
    """The beginnings of the prompts that one replica was sent.

    Bounded: the `limit` beginnings that were used last are kept, in about 180 bytes each, so that
    what an engine has evicted for want of room is in time forgotten here, too.
    """

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, prefix: Prefix) -> None:
        """Note that the replica was sent a prompt that begins so."""
        for h in reversed(prefix.hashes):  # a beginning is forgotten after all that go on from it
            self._hashes[h] = None
            self._hashes.move_to_end(h)
        while len(self._hashes) > self._limit:
            self._hashes.popitem(last=False)

    def share(self, prefix: Prefix) -> float:
        """Return how much of a prompt the replica need not compute, from 0 to 1.

        For a short prompt it is a share of 2 KiB (some 500 tokens): to compute it costs little.
        """
        known = bisect_left(prefix.hashes, True, key=lambda h: h not in self._hashes)
        return _ENDS[known - 1] / max(prefix.length, _SHORT) if known else 0.0

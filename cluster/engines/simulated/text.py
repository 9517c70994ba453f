"""What the simulated engine says: a tokenizer without a vocabulary file, and a tiny "model".

The next token is a function of all tokens before it, as with a real model at temperature 0: two
replicas give the same answer, and one that continues another's half-finished answer goes on with
the same words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple


class Token(NamedTuple):
    """One token: its id, its text, and the text as a JSON string (made once, sent often)."""

    id: int
    text: str
    json: bytes


_PIECE = re.compile(r" ?[A-Za-z0-9]{1,5}|.", re.DOTALL)


def tokenize(text: str) -> list[int]:
    """Cut `text` into pieces of at most a space and five letters; a piece's bytes are its id."""
    return [_token_id(piece) for piece in _PIECE.findall(text)]


def detokenize(ids: Iterable[int]) -> str:
    """Undo `tokenize`; ids that stand for no text become replacement characters."""
    lengths = ((i, max(1, (i.bit_length() + 7) // 8)) for i in ids)
    return b"".join(i.to_bytes(size, "big") for i, size in lengths).decode("utf-8", "replace")


@lru_cache(65536)
def _token_id(piece: str) -> int:
    return int.from_bytes(piece.encode("utf-8", "replace"), "big")


def _token(text: str) -> Token:
    return Token(_token_id(text), text, b'"%b"' % text.encode())


END = Token(3, "", b'""')
_VOCABULARY = """
amber apple arrow aspen badge beach birch bloom brass brook cedar chalk cloud coral crane creek
daisy delta drift eagle ember fern field flame flint frost grain grape green grove heron honey
ivory lake leaf lemon light lilac lotus maple marsh mist moss north oak ocean olive opal pearl
petal pine plum poppy rain river robin sage shell slate stone tidal tulip
"""
_WORDS = tuple(_token(f" {word}") for word in _VOCABULARY.split())
_FACT = tuple(map(_token, _PIECE.findall("The capital of France is Paris.")))


def answer(prompt: Sequence[int], seed: int = 0, choice: int = 0) -> Iterator[Token]:
    """Yield the tokens that follow the token ids `prompt`, without end.

    Choices of one request differ. `END` comes where a real model would stop; who ignores it may
    go on.
    """
    state = (seed << 16) + choice
    for token_id in prompt:
        state = _next_state(state, token_id)
    for token in _fact(detokenize(prompt)):
        state = _next_state(state, token.id)
        yield token
    while True:
        token = _WORDS[(state >> 33) % len(_WORDS)]
        state = _next_state(state, token.id)
        yield token


def _next_state(state: int, token_id: int) -> int:
    return (state * 6364136223846793005 + token_id + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF


def _fact(text: str) -> tuple[Token, ...]:
    """What is still to say of the one fact this model knows, if it was asked for it."""
    if "capital of france" not in text.lower():
        return ()
    said = next(
        n for n in range(len(_FACT), -1, -1) if text.endswith("".join(t.text for t in _FACT[:n]))
    )
    return (*_FACT[said:], END)


def embed(tokens: Sequence[int], size: int = 16) -> list[float]:
    """Return a vector of `size` numbers between -1 and 1 that is always the same for `tokens`."""
    draw = random.Random(",".join(map(str, tokens)))
    return [round(draw.uniform(-1, 1), 6) for _ in range(size)]


class StopStrings:
    """Cuts a text at the first of `stops`, holding back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops, self._include = stops, include
        self._hold = max(map(len, stops), default=1) - 1
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece; return the text that is free to go, and the stop string found."""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self._held = ""
            return text[: at + len(stop) * self._include], stop
        free = len(text) - self._hold
        self._held = text[max(free, 0) :]
        return text[: max(free, 0)], None

    def flush(self) -> str:
        """Return what is still held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

"""How the simulated engine writes its answers to chat and completion requests.

Field order and separators are those of vLLM 0.32, so streams have the same shape byte for byte;
fields that only vLLM could fill are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from cluster.engines.simulated.requests import GenerationRequest
from cluster.engines.simulated.text import Token

DONE = b"data: [DONE]\n\n"
LOGPROB = -0.5


def dumps(value: object) -> bytes:
    """Write JSON as vLLM does: no spaces, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@dataclass(eq=False)
class Choice:
    """One answer as far as it goes. `texts` has one entry a token: the text that it set free."""

    index: int
    prompt: list[int]
    cached: int = 0
    tokens: list[Token] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Answer(Protocol):
    """Writes the answer to one request in the dialect of its route.

    A stream is `opening`, one `delta` for each token (the newest of `choice`), `closing`.
    """

    def opening(self, choices: Sequence[Choice]) -> bytes: ...

    def delta(self, choice: Choice) -> bytes: ...

    def closing(self, choices: Sequence[Choice]) -> bytes: ...

    def whole(self, choices: Sequence[Choice]) -> bytes: ...


def usage(choices: Sequence[Choice], n: int = 1) -> dict[str, Any]:
    """Count tokens: each prompt once, though it has `n` choices."""
    prompt = sum(len(choice.prompt) for choice in choices[::n])
    completion = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached for c in choices[::n])},
    }


class _ChoicesAnswer:
    """What chat and text completions share; the subclasses say how one choice looks."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    event_object: ClassVar[str]

    def __init__(self, request: GenerationRequest, answer_id: str, model: str) -> None:
        self.request, self.answer_id, self.model = request, self.prefix + answer_id, model
        self.created = int(time.time())
        self._every_usage = request.stream_options.continuous_usage_stats
        self._plain = not (request.return_token_ids or request.logprobs or self._every_usage)
        self._frames: dict[int, list[bytes]] = {}

    def opening(self, choices: Sequence[Choice]) -> bytes:
        return b""

    def delta(self, choice: Choice) -> bytes:
        if self._plain and choice.finish_reason is None:
            head, tail = self._frames.get(choice.index) or self._frame(choice)
            token, text = choice.tokens[-1], choice.texts[-1]
            return head + (token.json if text == token.text else dumps(text)) + tail
        more = {"usage": usage([choice])} if self._every_usage else {}
        return self._event([self._event_choice(choice, choice.texts[-1])], **more)

    def closing(self, choices: Sequence[Choice]) -> bytes:
        if not self.request.stream_options.include_usage:
            return DONE
        return self._event([], usage=usage(choices, self.request.n)) + DONE

    def whole(self, choices: Sequence[Choice]) -> bytes:
        body = self._body(self.whole_object, [self._whole_choice(choice) for choice in choices])
        return dumps(body | {"usage": usage(choices, self.request.n)} | self._more(choices[0]))

    def _frame(self, choice: Choice) -> list[bytes]:
        """The bytes around the text of a plain event: they are the same for every token."""
        mark = "\x00"
        frame = self._event([self._event_choice(choice, mark)]).split(dumps(mark))
        self._frames[choice.index] = frame
        return frame

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: %b\n\n" % dumps(self._body(self.event_object, choices) | more)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _ids(self, tokens: Sequence[Token]) -> list[int] | None:
        return [token.id for token in tokens] if self.request.return_token_ids else None

    def _prompt_ids(self, choice: Choice) -> list[int] | None:
        return choice.prompt if self.request.return_token_ids else None

    def _more(self, choice: Choice) -> dict[str, Any]:
        return {}

    def _event_choice(self, choice: Choice, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError


class ChatAnswer(_ChoicesAnswer):
    prefix = "chatcmpl-"
    whole_object, event_object = "chat.completion", "chat.completion.chunk"

    def opening(self, choices: Sequence[Choice]) -> bytes:
        delta = {"role": "assistant", "content": ""}
        blank = {"delta": delta, "logprobs": None, "finish_reason": None}
        return b"".join(
            self._event([{"index": choice.index, **blank}], **self._more(choice))
            for choice in choices
        )

    def _more(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompt_ids(choice)}

    def _event_choice(self, choice: Choice, text: str) -> dict[str, Any]:
        stop = {} if choice.finish_reason is None else {"stop_reason": choice.stop_reason}
        return {
            "index": choice.index,
            "delta": {"content": text},
            "logprobs": self._logprobs(choice.tokens[-1:]),
            "finish_reason": choice.finish_reason,
            **stop,
            "token_ids": self._ids(choice.tokens[-1:]),
        }

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._ids(choice.tokens),
        }

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        same = {"logprob": LOGPROB, "top_logprobs": []}
        return {
            "content": [
                {"token": token.text, "bytes": list(token.text.encode()), **same}
                for token in tokens
            ]
        }


class CompletionAnswer(_ChoicesAnswer):
    prefix = "cmpl-"
    whole_object = event_object = "text_completion"

    def _event_choice(self, choice: Choice, text: str) -> dict[str, Any]:
        before = len(choice.tokens) - 1
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice, before),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "prompt_token_ids": None if before else self._prompt_ids(choice),
            "token_ids": self._ids(choice.tokens[-1:]),
        }

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice, 0),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._ids(choice.tokens),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(choice),
        }

    def _logprobs(self, choice: Choice, start: int) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        texts = [token.text for token in choice.tokens]
        offsets = [sum(map(len, texts[:at])) for at in range(start, len(texts))]
        return {
            "text_offset": offsets,
            "token_logprobs": [LOGPROB] * len(offsets),
            "tokens": texts[start:],
            "top_logprobs": [{text: LOGPROB} for text in texts[start:]],
        }

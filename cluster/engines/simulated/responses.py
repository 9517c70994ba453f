"""How the simulated engine writes OpenAI's Responses API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cluster.engines.simulated.answers import Choice, dumps, usage
from cluster.engines.simulated.requests import GenerationRequest


class ResponsesAnswer:
    """OpenAI's Responses API with one message of text. Its stream ends without `[DONE]`."""

    def __init__(self, request: GenerationRequest, answer_id: str, model: str) -> None:
        self.answer_id, self.model, self.created = answer_id, model, int(time.time())
        self._number = 0

    def opening(self, choices: Sequence[Choice]) -> bytes:
        response = self._response("in_progress", [])
        return (
            self._event("response.created", response=response)
            + self._event("response.in_progress", response=response)
            + self._event("response.output_item.added", **self._item("in_progress", []))
            + self._event("response.content_part.added", **self._part(part=_output_text("")))
        )

    def delta(self, choice: Choice) -> bytes:
        return self._event("response.output_text.delta", **self._part(delta=choice.texts[-1]))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        content = [_output_text(choices[0].text)]
        return (
            self._event("response.output_text.done", **self._part(text=choices[0].text))
            + self._event("response.content_part.done", **self._part(part=content[0]))
            + self._event("response.output_item.done", **self._item("completed", content))
            + self._event("response.completed", response=self._finished(choices))
        )

    def whole(self, choices: Sequence[Choice]) -> bytes:
        return dumps(self._finished(choices))

    def _finished(self, choices: Sequence[Choice]) -> dict[str, Any]:
        counts = usage(choices)
        status = "incomplete" if choices[0].finish_reason == "length" else "completed"
        message = self._item("completed", [_output_text(choices[0].text)])["item"]
        return self._response(status, [message]) | {
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            }
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self.answer_id}",
            "created_at": self.created,
            "incomplete_details": reason,
            "model": self.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
            "status": status,
            "usage": None,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item = {"id": f"msg_{self.answer_id}", "content": content, "role": "assistant"}
        return {"item": {**item, "status": status, "type": "message"}, "output_index": 0}

    def _part(self, **more: Any) -> dict[str, Any]:
        place = {"content_index": 0, "item_id": f"msg_{self.answer_id}", "output_index": 0}
        return {**place, "logprobs": [], **more}

    def _event(self, name: str, **fields: Any) -> bytes:
        body = {**fields, "sequence_number": self._number, "type": name}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(body))


def _output_text(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}

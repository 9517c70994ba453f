"""What the gateway must know of OpenAI's HTTP API; the rest is between client and engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from email.message import Message
from itertools import accumulate

import msgspec

from cluster.errors import InvalidRequest, RequestError, RouteNotFound, did_you_mean

_INFERENCE_PATHS = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/score",
    "/rerank",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
)
ROUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_INFERENCE_PATHS, ("POST",)),
    "/v1/responses/": ("GET", "POST"),
    "/v1/models": ("GET",),
    "/v1/models/": ("GET",),
    "/version": ("GET",),
    "/health": ("GET",),
    "/metrics": ("GET",),
}
"""Every path that is served, and its methods; one that ends in "/" stands for all below it.

A list of what is allowed, because engines also answer administrators there (sleep, profiling,
weight updates, LoRA loading), and that is not for clients.
"""


def route(path: str) -> str:
    """Return the key of ROUTES that `path` belongs to, or raise RouteNotFound."""
    above = (key for key in ROUTES if key.endswith("/") and path.startswith(key))
    key = path if path in ROUTES else next(above, "")
    # An engine that resolves ".." would be led out of what is allowed.
    if not key or path.endswith("/") or ".." in path.split("/"):
        shown = path[:200]
        raise RouteNotFound(f"there is no {shown} here{did_you_mean(shown, ROUTES)}")
    return key


def error_object(error: RequestError) -> dict[str, object]:
    """Return `error` in the shape that OpenAI's clients understand."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    fields = {
        "message": str(error),
        "type": "rate_limit_error" if error.status == 429 else kind,
        "param": error.param,
        "code": error.code,
    }
    return {"error": fields}


def error_event(error: RequestError) -> bytes:
    """Return `error` as the last event of a stream that has begun."""
    return b"data: " + json.dumps(error_object(error)).encode() + b"\n\n"


def model_card(name: str, created: int) -> dict[str, object]:
    """Describe a model as `/v1/models` does; `created` is a Unix time in seconds."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "rayscend",
        "root": name,
        "parent": None,
    }


def model_list(names: Iterable[str], created: int) -> dict[str, object]:
    return {"object": "list", "data": [model_card(name, created) for name in names]}


_GENERATING_PATHS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
)


class _Prompt(msgspec.Struct):
    """What a prompt is made of, in the order in which chat templates put it; not decoded.

    Prompts with another `cache_salt` share no KV, whatever they have in common.
    """

    cache_salt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_decode_prompt = msgspec.json.Decoder(_Prompt).decode


def prompt_of(path: str, body: bytes, limit: int) -> bytes:
    """Return the first `limit` bytes of the prompt in a request, as JSON.

    Requests whose prompts begin alike for the model begin alike here, if one client wrote them.
    Empty where nothing is generated (tokenizing leaves nothing in a KV cache), or where the body
    is none that an engine would take.
    """
    if path.partition("?")[0] not in _GENERATING_PATHS:
        return b""
    try:
        prompt = _decode_prompt(body)
    except (msgspec.DecodeError, RecursionError):
        return b""
    parts = (getattr(prompt, name) for name in _Prompt.__struct_fields__)
    return b"".join(memoryview(part)[:limit] for part in parts)[:limit]


def read_model(body: bytes, content_type: str, max_depth: int) -> str | None:
    """Return the model that a request body asks for, or None where it names none.

    The body is a JSON object, or a form (`multipart/form-data`, as audio comes). It is checked
    as a whole, but nothing except the model is kept: the engine reads it again.

    Raises:
        InvalidRequest: it is no JSON object, not UTF-8, or nested deeper than `max_depth`; or a
            form without a plain field `model`.
    """
    message = Message()
    message["content-type"] = content_type
    if message.get_content_type() == "multipart/form-data":
        return _model_of_form(body, str(message.get_param("boundary", "")))
    return _model_of_json(body, max_depth) or None


class _Request(msgspec.Struct):
    model: str | None = None


_decode = msgspec.json.Decoder(_Request).decode


def _model_of_json(body: bytes, max_depth: int) -> str | None:
    try:
        if not body.isascii():
            body.decode()  # msgspec passes over the strings that it does not keep
        model = _decode(body).model
        too_deep = _may_be_deeper(body, max_depth) and _depth(body) > max_depth
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: {error.reason} at byte {error.start}",
            remedy="Send a JSON object in UTF-8",
        ) from None
    except msgspec.ValidationError as error:
        param = "model" if "$.model" in str(error) else None
        raise InvalidRequest(
            f"the body is not a request: {error}",
            remedy='Send a JSON object whose "model" is a string',
            param=param,
        ) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error}", remedy="Send a JSON object in UTF-8"
        ) from None
    except RecursionError:
        too_deep = True
    if too_deep:
        raise InvalidRequest(
            "the body has too many arrays and objects in one another",
            f"at most {max_depth} are allowed",
        )
    return model


# Possessive, so that a long string leaves no trail to go back on.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))


def _may_be_deeper(body: bytes, max_depth: int) -> bool:
    """Tell at the speed of memory that most bodies are not."""
    return body.count(b"[") + body.count(b"{") > max_depth


def _depth(body: bytes) -> int:
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _model_of_form(body: bytes, boundary: str) -> str:
    field = re.search(
        rb"--" + re.escape(boundary.encode()) + rb"\r\n"
        rb'content-disposition: *form-data; *name="?model"?\r\n\r\n([^\r\n]+)\r\n--',
        body,
        re.IGNORECASE,
    )
    if boundary and field:
        return field[1].decode(errors="replace")
    raise InvalidRequest(
        "the form has no plain field named model",
        "other forms are not supported",
        "add the field model, with no headers of its own but Content-Disposition",
        param="model",
    )

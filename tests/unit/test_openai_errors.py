from __future__ import annotations

import json

import pytest

from cluster.errors import (
    BodyTooLarge,
    InvalidRequest,
    ModelNotFound,
    NoReplicaReady,
    QueueFull,
    ReplicaLost,
    RequestError,
    RouteNotFound,
)
from serve_apps import openai

JSON = "application/json"


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """An object that is `depth` deep, itself counted."""
    return b'{"model": "m", "x": ' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


MODELS = {
    "named": (b'{"model": "m", "stream": true}', "m"),
    "last": (b'{"prompt": [[1], [2]], "n": 1.5e3, "model": "m"}', "m"),
    "escaped": (b'{"mod\\u0065l": "m\\n"}', "m\n"),
    "nested names do not count": (b'{"x": {"model": "y"}}', None),
    "missing": (b"{}", None),
    "null": (b'{"model": null}', None),
    "empty": (b'{"model": ""}', None),
    "not ASCII": ('{"model": "é", "prompt": "日本"}'.encode(), "é"),
    "as deep as allowed": (nested(20), "m"),
    "wide is not deep": (b'{"model": "m", "x": [' + b"[[1]]," * 99 + b"{}]}", "m"),
    "brackets in strings": (b'{"model": "m", "x": "\\"' + b"[{" * 99 + b'", "y": "]"}', "m"),
}


@pytest.mark.parametrize(("body", "model"), MODELS.values(), ids=MODELS)
def test_model_is_read_from_the_body(body: bytes, model: str | None) -> None:
    assert openai.read_model(body, JSON, max_depth=20) == model


BAD = {
    "empty": (b"", "not JSON", None),
    "cut": (b'{"model": "m", "messages": [', "not JSON", None),
    "trailing": (b'{"model": "m"} x', "not JSON", None),
    "not a number": (b'{"model": "m", "x": NaN}', "not JSON", None),
    "bad escape": (b'{"model": "m", "x": "\\q"}', "not JSON", None),
    "UTF-16": ('{"model": "m"}'.encode("utf-16"), "not UTF-8", None),
    "not UTF-8": (b'{"model": "m", "x": "\xff"}', "not UTF-8: invalid start byte at byte 21", None),
    "list": (b'[{"model": "m"}]', "got `array`", None),
    "null": (b"null", "got `null`", None),
    "model is a number": (b'{"model": 7}', "got `int`", "model"),
    "one too deep": (nested(21), "at most 20", None),
    "2000 arrays deep": (nested(2000), "at most 20", None),
    "2000 objects deep": (nested(2000, b'{"a":', b"}"), "at most 20", None),
    "never closed": (b"[" * 100_000, "got `array`", None),
    "never closed object": (b'{"a":' * 100_000, "at most 20", None),
}


@pytest.mark.parametrize(("body", "text", "param"), BAD.values(), ids=BAD)
def test_what_is_no_json_object_is_refused(body: bytes, text: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        openai.read_model(body, JSON, max_depth=20)
    assert text in str(caught.value)
    assert caught.value.param == param


def test_long_strings_between_many_brackets_are_read_in_one_pass() -> None:
    body = json.dumps({"model": "m", "x": [[]] * 50, "y": '\\"' * 1_000_000}).encode()
    assert openai.read_model(body, JSON, max_depth=20) == "m"


FORM = "multipart/form-data; boundary=xyz"
FILE = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\xff\r\n'
FIELD = b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'


@pytest.mark.parametrize("body", [FILE + FIELD + b"--xyz--", FIELD + FILE + b"--xyz--\r\n"])
def test_model_is_read_from_a_form(body: bytes) -> None:
    assert openai.read_model(body, FORM, max_depth=20) == "m"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (FILE + b"--xyz--", FORM),
        (FIELD, "multipart/form-data"),
        (FIELD.replace(b"--xyz", b"--other") + b"--other--", FORM),
        (b"", FORM),
    ],
)
def test_forms_without_a_plain_model_field_are_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        openai.read_model(body, content_type, max_depth=20)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (InvalidRequest, "invalid_request_error"),
        (ModelNotFound, "invalid_request_error"),
        (BodyTooLarge, "invalid_request_error"),
        (QueueFull, "rate_limit_error"),
        (ReplicaLost, "server_error"),
        (NoReplicaReady, "server_error"),
    ],
)
def test_errors_have_the_shape_that_openai_clients_read(
    kind: type[RequestError], type_: str
) -> None:
    error = kind("saw it", "it is wrong", "mend it", param="model")
    assert openai.error_object(error) == {
        "error": {
            "message": "saw it. it is wrong. mend it.",
            "type": type_,
            "param": "model",
            "code": kind.code,
        }
    }
    assert openai.error_event(error).startswith(b'data: {"error": {"message": "saw it.')
    assert openai.error_event(error).endswith(b"}\n\n")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/org/name", "/v1/models/"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/"),
    ],
)
def test_known_paths(path: str, key: str) -> None:
    assert openai.route(path) == key


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/load",
        "/simulate",
        "/sleep",
        "/collective_rpc",
        "/invocations",
        "/scale_elastic_ep",
        "/v1/load_lora_adapter",
        "/inference/v1/generate",
        "/v1/models/",
        "/v1/responses/",
        "/v1/responses/../../sleep",
        "/v1/chat/completions/",
        "//v1/models",
    ],
)
def test_paths_of_administrators_and_unknown_ones_are_not_found(path: str) -> None:
    with pytest.raises(RouteNotFound):
        openai.route(path)


def test_a_misspelt_path_names_the_nearest() -> None:
    with pytest.raises(RouteNotFound, match='did you mean "/v1/chat/completions"'):
        openai.route("/v1/chat/completion")

"""What clients see through HAProxy and the gateway is what the engine process sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from cluster.errors import InvalidRequest, ModelNotFound
from serve_apps.generation import Usage
from tests.cluster.harness import Cluster, eventually

MODELS = [
    {"served_model_name": "alpha", "engine": "simulated", "engine_args": "--ttft 0.01 --itl 0.002"},
    {"served_model_name": "beta", "engine": "simulated", "num_replicas": 2},
]
HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Iterator[Cluster]:
    cluster.deploy(models=MODELS, ready=3)
    return cluster


@pytest.fixture
def client(app: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{app.url}/v1", api_key="none")


def engine_url(app: Cluster, model: str) -> str:
    return next(replica.url for replica in app.ready() if replica.model == model)


def stable(body: bytes) -> bytes:
    """A body without what differs between two runs of the same request: ids and times."""
    lines = []
    for line in body.split(b"\n"):
        text = line.removeprefix(b"data: ")
        if text.startswith(b"{"):
            content = json.loads(text)
            content.pop("id", None)
            content.pop("created", None)
            line = json.dumps(content).encode()
        lines.append(line)
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8}),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, "stream": True}),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}},
        ),
        ("/v1/completions", {"prompt": "once upon", "max_tokens": 5}),
        ("/v1/completions", {"prompt": "once upon", "max_tokens": 5, "stream": True}),
        ("/v1/embeddings", {"input": "some text"}),
        ("/tokenize", {"prompt": "some text"}),
        ("/v1/chat/completions", {"messages": "not a list"}),
        ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
    ],
)
def test_status_type_and_body_are_the_engines(
    app: Cluster, path: str, body: dict[str, object]
) -> None:
    body = {"model": "alpha"} | body
    through = app.client.post(path, json=body)
    direct = httpx.post(engine_url(app, "alpha") + path, json=body)
    assert through.status_code == direct.status_code
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert stable(through.content) == stable(direct.content)


def test_every_model_of_the_application_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["alpha", "beta"]
    assert client.models.retrieve("beta").id == "beta"


def test_the_openai_client_chats_and_streams(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="alpha", messages=[{"role": "user", "content": "What is the capital of France?"}]
    )
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = client.chat.completions.create(
        model="beta",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] is not None


def test_a_stream_ends_with_exactly_one_done(app: Cluster) -> None:
    answer = app.chat(model="alpha", stream=True)
    assert answer.content.count(b"data: [DONE]") == 1
    assert answer.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "told"),
    [
        ("POST", "/v1/chat/completions", b'{"model": "gamma", "messages": []}', 404, "gamma"),
        ("POST", "/v1/chat/completions", b'{"model": "alpha", "mess', 400, "JSON"),
        ("POST", "/v1/chat/completions", b'["alpha"]', 400, "object"),
        ("POST", "/v1/chat/completions", b'{"model": "\xff\xfe"}', 400, ""),
        ("POST", "/v1/chat/completions", b'{"a":' * 2000 + b"1" + b"}" * 2000, 400, ""),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400, "model"),
        ("POST", "/v1/chat/completions", b'{"model": 7}', 400, "model"),
        ("GET", "/v1/chat/completions", b"", 405, "POST"),
        ("POST", "/v1/models", b"{}", 405, "GET"),
        ("POST", "/nowhere", b'{"model": "alpha"}', 404, "/nowhere"),
        ("POST", "/simulate", b'{"model": "alpha"}', 404, "/simulate"),
    ],
)
def test_the_gateways_own_errors_have_openais_shape(
    app: Cluster, method: str, path: str, content: bytes, status: int, told: str
) -> None:
    answer = app.client.request(
        method, path, content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert told in error["message"]
    assert answer.headers["x-request-id"]


def test_a_request_keeps_its_id(app: Cluster) -> None:
    kept = app.client.get("/v1/models", headers={"x-request-id": "mine-7"})
    assert kept.headers["x-request-id"] == "mine-7"
    message = {"model": "alpha", "messages": HELLO, "max_tokens": 1}
    kept = app.client.post("/v1/chat/completions", json=message, headers={"x-request-id": "mine-8"})
    assert kept.headers["x-request-id"] == "mine-8"
    assert app.chat(model="alpha").headers["x-request-id"]


def test_handles_answer_whole_and_streamed(app: Cluster) -> None:
    from ray import serve

    handle = serve.get_app_handle("default")
    whole = handle.generate.remote("once upon", model="alpha", max_tokens=5).result()
    assert whole.usage == Usage(whole.usage.prompt_tokens, 5)
    assert whole.choices[0].finish_reason == "length"
    chunks = list(
        handle.options(stream=True).generate.remote(
            "once upon", model="alpha", max_tokens=5, stream=True, return_token_ids=True
        )
    )
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum(len(chunk.token_ids) for chunk in chunks) == 5
    assert chunks[-1].usage == whole.usage
    chat = handle.chat.remote(HELLO, model="beta", max_tokens=3).result()
    assert chat.text


def test_handle_calls_raise_what_http_answers(app: Cluster) -> None:
    from ray import serve

    handle = serve.get_app_handle("default")
    with pytest.raises(ModelNotFound, match="gamma"):
        handle.generate.remote("x", model="gamma").result()
    with pytest.raises(InvalidRequest, match="several"):
        handle.generate.remote("x").result()
    with pytest.raises(InvalidRequest, match="max_tokens"):
        handle.generate.remote("x", model="alpha", max_tokens=-1).result()


@pytest.mark.parametrize("stream", [True] + [False] * 6)
def test_a_client_that_goes_away_ends_the_engines_work(app: Cluster, stream: bool) -> None:
    body = {"model": "alpha", "messages": HELLO, "max_tokens": 4000, "stream": stream}
    body["ignore_eos"] = True
    with httpx.Client(base_url=app.url, timeout=httpx.Timeout(60, read=1.0)) as leaving:
        if stream:
            with leaving.stream("POST", "/v1/chat/completions", json=body) as answer:
                pieces = answer.iter_bytes()
                next(pieces)
                assert answer.status_code == 200
                eventually(lambda: app.running("alpha") == 1, 5)
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/chat/completions", json=body)
    eventually(lambda: app.running("alpha") == 0, 2, "the engine's work aborted")

"""The simulated engine's routes: they answer as vLLM's server does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.unit.simulated import (
    ENGINE,
    FAST,
    Process,
    chat,
    client_of,
    completion,
    events,
    launched,
    spec,
    stats,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    with launched(*FAST) as process:
        yield process


@pytest.fixture
async def client(shared: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(shared) as client:
        yield client


async def test_the_probe_yields_one_token(client: httpx.AsyncClient) -> None:
    before, probe = await stats(client), ENGINE.probe(spec())
    answer = (await client.post(probe.path, json=probe.body)).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert (await stats(client)).tokens == before.tokens + answer["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", completion(n=2)), ("/v1/chat/completions", chat(max_tokens=5, n=2))],
)
async def test_a_stream_says_what_the_whole_answer_says(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    whole = (await client.post(path, json=body)).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, final, done = events((await client.post(path, json=body | options)).text)
    texts, reasons = ["", ""], [None, None]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice.get("delta", {})
        texts[choice["index"]] += delta.get("content", choice.get("text", ""))
        reasons[choice["index"]] = choice["finish_reason"]
    said = [c["message"]["content"] if "message" in c else c["text"] for c in whole["choices"]]
    assert texts == said
    assert reasons == ["length", "length"]
    assert texts[0] != texts[1]
    assert (done, final["choices"], final["usage"]) == ("[DONE]", [], whole["usage"])


async def test_stream_bytes_are_those_of_vllm(client: httpx.AsyncClient) -> None:
    body = chat("What is the capital of France?", stream=True, max_tokens=2)
    raw = (await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "q"})).text
    opening, first, last, done, rest = raw.split("\n\n")
    created = json.loads(opening[6:])["created"]
    head = f'data: {{"id":"chatcmpl-q","object":"chat.completion.chunk","created":{created},'
    head += '"model":"m","choices":[{"index":0,"delta":{'
    assert opening.startswith(head + '"role":"assistant","content":""},"logprobs":null,')
    assert (
        first == head + '"content":"The"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    )
    assert last.startswith(head + '"content":" capit"},"logprobs":null,"finish_reason":"length",')
    assert (done, rest) == ("data: [DONE]", "")


@pytest.mark.parametrize(
    ("more", "text", "finish", "stop"),
    [
        ({}, "The capital of France is Paris.", "stop", None),
        ({"max_completion_tokens": 3}, "The capital", "length", None),
        ({"stop": "France"}, "The capital of ", "stop", "France"),
        (
            {"stop": ["is P"], "include_stop_str_in_output": True},
            "The capital of France is P",
            "stop",
            "is P",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_how_an_answer_ends(
    client: httpx.AsyncClient,
    more: dict[str, Any],
    text: str,
    finish: str,
    stop: str | None,
    stream: bool,
) -> None:
    body = chat("What is the capital of France?", stream=stream, **more)
    response = await client.post("/v1/chat/completions", json=body)
    chunks = events(response.text)[:-1] if stream else [response.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    said = "".join((c.get("delta") or c["message"])["content"] for c in choices)
    assert said == text
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == (finish, stop)


async def test_an_ignored_end_token_makes_the_answer_as_long_as_asked(
    client: httpx.AsyncClient,
) -> None:
    body = chat("capital of France", ignore_eos=True, max_tokens=30)
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 30


async def test_token_ids_and_logprobs_come_when_asked_for(client: httpx.AsyncClient) -> None:
    body = completion(return_token_ids=True, logprobs=1)
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    text = (await client.post("/detokenize", json={"tokens": choice["token_ids"]})).json()["prompt"]
    assert text == choice["text"] == "".join(choice["logprobs"]["tokens"])
    by_ids = completion(prompt=choice["prompt_token_ids"])
    assert (await client.post("/v1/completions", json=by_ids)).json()["choices"][0]["text"] == text
    stream = events((await client.post("/v1/completions", json=body | {"stream": True})).text)[:-1]
    assert [i for chunk in stream for i in chunk["choices"][0]["token_ids"]] == choice["token_ids"]


async def test_cached_prompt_tokens_are_told(client: httpx.AsyncClient) -> None:
    body = completion(prompt="one two three " * 20)
    cached = []
    for _ in range(2):
        usage = (await client.post("/v1/completions", json=body)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert 16 <= cached[1] < usage["prompt_tokens"]


async def test_tokenize_and_embeddings(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/tokenize", json={"model": "m", "prompt": "héllo wörld"})).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 2000
    text = (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert text == {"prompt": "héllo wörld"}
    for inputs, count in (("x", 1), (["x", "y"], 2), ([1, 2], 1), ([[1, 2], [3]], 2)):
        body = {"model": "m", "input": inputs}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert len(data) == count


async def test_responses(client: httpx.AsyncClient) -> None:
    body = {"model": "m", "input": "What is the capital of France?"}
    whole = (await client.post("/v1/responses", json=body)).json()
    chunks = events((await client.post("/v1/responses", json=body | {"stream": True})).text)
    assert whole["output"][0]["content"][0]["text"] == "The capital of France is Paris."
    assert "".join(c["delta"] for c in chunks if "delta" in c) == "The capital of France is Paris."
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]


async def test_models_health_version_ping(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
    assert [(await client.get(p)).status_code for p in ("/health", "/ping", "/version")] == [
        200
    ] * 3


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", json.dumps(completion(model="x")), 404, "model"),
        ("/v1/completions", json.dumps(completion(max_tokens=2001)), 400, "max_tokens"),
        ("/v1/completions", json.dumps(completion(max_tokens="a")), 400, "body.max_tokens"),
        ("/v1/completions", json.dumps(completion(max_tokens=0)), 400, "body.max_tokens"),
        ("/v1/completions", '{"model":"m"}', 400, "body.prompt"),
        ("/v1/completions", json.dumps(completion(prompt=[""])), 400, "prompt"),
        ("/v1/chat/completions", '{"model":"m","messages":[]}', 400, "body.messages"),
        ("/v1/chat/completions", '{"model":"m","mess', 400, "body"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "body"),
        ("/v1/chat/completions", "[1]", 400, "body"),
        ("/v1/chat/completions", "[" * 2000 + "]" * 2000, 400, "body"),
        ("/simulate", '{"stal": true}', 400, None),
        ("/simulate", '{"stall": "maybe"}', 400, "body.stall"),
    ],
)
async def test_bad_requests_are_answered_in_openais_shape(
    client: httpx.AsyncClient, path: str, body: str | bytes, status: int, param: str | None
) -> None:
    response = await client.post(path, content=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, status, param)
    assert error["message"]
    assert error["type"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/completions", 405)]
)
async def test_wrong_routes(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    assert (await client.request(method, path)).status_code == status

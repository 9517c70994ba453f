"""Real vLLM behind the gateway: two models, two replicas each, on one host at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from cluster.directory import ReplicaRecord
from serve_apps.generation import Usage
from tests.cluster.harness import Cluster, eventually, gone, kill, processes_behind
from tests.engines.recorder import recorded
from tests.unit.gateway_rig import gateway, record

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SMOL, TINY = "SmolLM2-135M-Instruct", "tiny"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def app(cluster: Cluster, tiny_model: Path) -> Iterator[Cluster]:
    cluster.deploy(
        models=[
            {
                "num_replicas": 2,
                "max_model_len": 1024,
                "engine_args": "--enable-auto-tool-choice --tool-call-parser hermes",
            },
            {"model": str(tiny_model), "served_model_name": TINY, "num_replicas": 2},
        ],
        ready=4,
        within=600,
    )
    return cluster


@pytest.fixture
def client(app: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0)


def replica_of(app: Cluster, model: str) -> ReplicaRecord:
    return next(replica for replica in app.ready() if replica.model == model)


def test_four_engines_run_side_by_side_on_ports_of_their_own(app: Cluster) -> None:
    ready = app.ready()
    assert sorted(r.model for r in ready) == [SMOL, SMOL, TINY, TINY]
    assert len({r.ports["http"] for r in ready}) == 4
    assert {model["id"] for model in app.client.get("/v1/models").json()["data"]} == {SMOL, TINY}


def test_the_default_model_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=SMOL, messages=FRANCE, temperature=0, max_tokens=16
    )
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": FRANCE, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "One, two, three,", "logprobs": 2}),
    ],
)
async def test_clients_get_the_very_bytes_that_the_engine_put_on_its_socket(
    app: Cluster, path: str, body: dict[str, Any], stream: bool
) -> None:
    body = {"model": TINY, "max_tokens": 12, "stream": stream} | body
    async with recorded(replica_of(app, TINY).url) as socket:
        replica = record("r", socket.url, model=TINY)
        async with gateway(models=[TINY], records=[replica]) as door:
            status, headers, received = await door.post(
                json.dumps(body).encode(), path, headers={"content-type": "application/json"}
            )
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert received == socket.body()
    assert received.endswith(b"data: [DONE]\n\n") == stream


def test_the_openai_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=SMOL,
        messages=FRANCE,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None


def test_the_openai_client_calls_a_tool(app: Cluster, client: openai.OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    engine = openai.OpenAI(base_url=f"{replica_of(app, SMOL).url}/v1", api_key="none")
    calls = []
    for asked in (client, engine):
        answer = asked.chat.completions.create(
            model=SMOL,
            messages=FRANCE,
            temperature=0,
            max_tokens=64,
            tools=[{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function"
        calls.append((call.function.name, call.function.arguments))
    # How well so small a model fills in the arguments is its own affair.
    assert calls[0] == calls[1]
    assert calls[0][0] == "weather"


def test_the_openai_client_gets_logprobs_stops_choices_and_structure(
    client: openai.OpenAI,
) -> None:
    answer = client.chat.completions.create(
        model=TINY, messages=FRANCE, max_tokens=5, logprobs=True, top_logprobs=3, n=2, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len((logprobs.content or [])[0].top_logprobs) == 3
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    structured = client.chat.completions.create(
        model=SMOL,
        messages=FRANCE,
        temperature=0,
        max_tokens=40,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": schema, "strict": True},
        },
    )
    assert json.loads(structured.choices[0].message.content or "")["answer"] in ("yes", "no")


def test_what_else_the_engine_serves_goes_through(app: Cluster) -> None:
    tokens = app.client.post("/tokenize", json={"model": TINY, "prompt": "hello"}).json()["tokens"]
    text = app.client.post("/detokenize", json={"model": TINY, "tokens": tokens}).json()
    assert text["prompt"] == "hello"
    answer = app.client.post(
        "/v1/responses", json={"model": TINY, "input": "hi", "max_output_tokens": 4}
    )
    assert answer.status_code == 200
    assert answer.json()["object"] == "response"


def test_one_scrape_of_the_gateway_has_the_metrics_of_every_engine(app: Cluster) -> None:
    app.client.post("/v1/completions", json={"model": TINY, "prompt": "hello", "max_tokens": 4})
    families = {
        family.name: family.samples
        for family in text_string_to_metric_families(app.client.get("/metrics").text)
    }
    replicas = {(record.model, record.replica_id) for record in app.ready()}
    for name in ("vllm:kv_cache_usage_perc", "vllm:generation_tokens", "vllm:num_requests_running"):
        samples = families[name]
        assert {(s.labels["model"], s.labels["replica"]) for s in samples} == replicas
    made = [s.value for s in families["vllm:generation_tokens"] if s.labels["model"] == TINY]
    assert sum(made) >= 4
    assert {s.value for s in families["rayscend_engine_up"]} == {1}


def test_the_engines_refusal_is_the_clients(app: Cluster, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"max_tokens|maximum context"):
        client.chat.completions.create(model=TINY, messages=FRANCE, max_tokens=5000)
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=FRANCE)
    assert len(app.ready()) == 4


def test_handle_calls_yield_typed_chunks(app: Cluster) -> None:
    handle = serve.get_app_handle("default")
    whole = handle.generate.remote("One, two,", model=TINY, max_tokens=6, temperature=0).result()
    chunks = list(
        handle.options(stream=True).generate.remote(
            "One, two,",
            model=TINY,
            max_tokens=6,
            temperature=0,
            stream=True,
            return_token_ids=True,
        )
    )
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum(len(chunk.token_ids) for chunk in chunks) == 6
    assert chunks[-1].usage == whole.usage == Usage(whole.usage.prompt_tokens, 6)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_the_engines_work(app: Cluster, stream: bool) -> None:
    body = {"model": SMOL, "messages": FRANCE, "max_tokens": 900, "ignore_eos": True}
    with httpx.Client(base_url=app.url, timeout=httpx.Timeout(60, read=3.0)) as leaving:
        if stream:
            with leaving.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as s:
                pieces = s.iter_bytes()
                next(pieces)
                eventually(lambda: app.running(SMOL) == 1, 5)
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/chat/completions", json=body)
    # vLLM's counters follow its steps; 0.2 s is the promise, the rest is a busy machine.
    eventually(lambda: app.running(SMOL) == 0, 3, "the engine's work aborted")


@pytest.mark.parametrize("part", ["the API server", "the engine core"])
def test_a_killed_engine_is_replaced_and_nothing_of_it_stays(app: Cluster, part: str) -> None:
    eventually(lambda: len(app.ready()) == 4, 300)
    record = replica_of(app, TINY)
    processes = processes_behind(record)
    victim = processes.engine
    if part == "the engine core":
        victim = next(
            p for p in processes.engine.children(recursive=True) if "EngineCore" in _name(p)
        )
    kill(victim)
    eventually(lambda: record.replica_id not in {r.replica_id for r in app.ready()}, 20)
    for _ in range(4):
        answer = app.chat(model=TINY)
        assert answer.status_code == 200
    gone(processes, 15)
    eventually(lambda: len(app.ready()) == 4, 300, "the replica is back")


def _name(process: psutil.Process) -> str:
    try:
        return " ".join([process.name(), *process.cmdline()])
    except psutil.Error:
        return ""

"""Load tools of others against the gateway, beside our own load generator: the same load each.

    python -m scripts.benchmark.clients [--engine vllm] [--guidellm PATH]

`vllm bench serve` comes with vLLM; guidellm wants an environment of its own (`pip install
guidellm`) and is left out where its command is not found. It rewrites its section of
docs/measurements.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cluster.default_model import ensure_default_model
from scripts.benchmark import report
from scripts.benchmark.load import Load
from scripts.benchmark.measure import Target, compare
from scripts.benchmark.overhead import SUBJECTS
from scripts.benchmark.server import rayscend, rayscend_urls

LOADS = {"simulated": Load(128, 64, 16), "vllm": Load(32, 16, 16)}


@dataclass(frozen=True)
class Client:
    """A tool: its command line for a load, and how to read the JSON that it writes."""

    name: str
    command: Callable[[Load, str, str, Path], Sequence[str]]
    read: Callable[[Any], Sequence[float]]


def _vllm_bench(load: Load, url: str, model: str, file: Path) -> Sequence[str]:
    command = [sys.executable, "-m", "scripts.benchmark.vllm_bench"]
    command += ["--backend=openai-chat", f"--base-url={url}", "--endpoint=/v1/chat/completions"]
    command += [f"--model={model}", f"--tokenizer={ensure_default_model(print)}"]
    command += ["--dataset-name=random", f"--random-input-len={load.prompt_words}", "--ignore-eos"]
    command += [f"--random-output-len={load.max_tokens}", f"--num-prompts={load.requests}"]
    command += [f"--max-concurrency={load.streams}", "--disable-tqdm", "--save-result"]
    command += ["--percentile-metrics=ttft,itl", "--metric-percentiles=50,99"]
    return [*command, f"--result-dir={file.parent}", f"--result-filename={file.name}"]


def _read_vllm_bench(said: Any) -> Sequence[float]:
    names = "completed failed p50_ttft_ms p99_ttft_ms p50_itl_ms p99_itl_ms output_throughput"
    return [said[name] for name in names.split()]


def _guidellm(load: Load, url: str, model: str, file: Path) -> Sequence[str]:
    data = f"kind=synthetic_text,prompt_tokens={load.prompt_words},output_tokens={load.max_tokens}"
    return [
        "run",
        f"--backend=kind=openai_http,target={url},model={model}",
        f"--profile=kind=concurrent,streams={load.streams}",
        f"--constraint=kind=max_requests,count={load.requests}",
        f"--tokenizer=kind=huggingface_auto,model={ensure_default_model(print)}",
        f"--data={data}",
        f"--output=kind=json,path={file}",
        "--disable-console-interactive",
    ]


def _read_guidellm(said: Any) -> Sequence[float]:
    metrics = said["benchmarks"][0]["metrics"]
    totals, rate = metrics["request_totals"], metrics["output_tokens_per_second"]["successful"]
    times = [
        metrics[name]["successful"]["percentiles"][percentile]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms")
        for percentile in ("p50", "p99")
    ]
    return [totals["successful"], totals["errored"], *times, rate["mean"]]


VLLM_BENCH = Client("vllm bench serve", _vllm_bench, _read_vllm_bench)
GUIDELLM = Client("guidellm", _guidellm, _read_guidellm)


def run(client: Client, load: Load, url: str, model: str, program: Sequence[str] = ()) -> list[str]:
    """Run one tool to its end; return its row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        command = [*program, *client.command(load, url, model, file)]
        ended = subprocess.run(
            command,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if not file.exists():
            sys.exit(f"{client.name} ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
        values = client.read(json.loads(file.read_text(encoding="utf-8")))
    return [client.name, *(f"{value:.0f}" for value in values[:2])] + [
        f"{value:.1f}" for value in values[2:]
    ]


def _own(load: Load, url: str, model: str) -> list[str]:
    (result,) = compare([Target("ours", url, model, dict)], [load], rounds=1)
    times = [result.ttft_ms[50], result.ttft_ms[99], result.itl_ms[50], result.itl_ms[99]]
    values = [*times, result.tokens_per_s[0]]
    return ["ours", str(result.requests), "0", *(f"{value:.1f}" for value in values)]


def _measure(engine: str, guidellm: str | None) -> str:
    load = LOADS[engine]
    with rayscend(*SUBJECTS[engine].args) as server:
        _, url = rayscend_urls(server)
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        rows = [_own(load, url, model), run(VLLM_BENCH, load, url, model)]
        if guidellm:
            rows.append(run(GUIDELLM, load, url, model, [guidellm]))
    head = ["client", "answers", "errors", "TTFT ms P50", "P99", "ITL ms P50", "P99", "tokens/s"]
    title = f"{SUBJECTS[engine].title}, {load.streams} streams, {load.max_tokens} tokens an answer."
    return f"{title}\n\n{report.table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=SUBJECTS, default="simulated")
    parser.add_argument("--guidellm", default="guidellm", help="the command, where it is installed")
    options = parser.parse_args()
    text = f"{report.origin()}\n\n{_measure(options.engine, shutil.which(options.guidellm))}"
    report.write("clients", text)
    print(text)


if __name__ == "__main__":
    main()

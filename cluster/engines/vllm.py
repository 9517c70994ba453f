"""vLLM and vllm-mindspore: command line, environment, and what their output means.

The command line and the HTTP API are the seam that holds from vLLM 0.11 (vllm-mindspore 0.5) to
0.32 (the CPU build); nothing here imports vLLM.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

from cluster.default_model import cache_folder
from cluster.engines.base import (
    EngineSpec,
    KnownFailure,
    LaunchPlan,
    Needs,
    Phase,
    PortNeed,
    Probe,
    ProcessPlan,
    Site,
    Stats,
)
from cluster.engines.prometheus import read_stats
from cluster.environment import engine_value
from cluster.errors import ConfigError, did_you_mean
from cluster.models import (
    check_max_model_len,
    check_tensor_parallel,
    looks_like_folder,
    read_model,
)

_SERVER = Path(__file__).with_name("vllm_server.py")
_OURS = ("--model", "--served-model-name", "--host", "--port", "--tensor-parallel-size", "-tp")

_PHASES = (
    Phase("importing vLLM", 300, usual_cause="a slow disk, or too few CPUs for its imports"),
    Phase("reading the configuration", 180, re.compile(r"non-default args")),
    Phase("starting the engine core", 180, re.compile(r"Using max model len|max_seq_len=")),
    Phase(
        "starting the workers",
        300,
        re.compile(r"Initializing a V1 LLM engine"),
        "a rank that cannot reach the others",
    ),
    Phase(
        "loading weights",
        3600,
        re.compile(r"Starting to load model"),
        "a slow or remote disk",
    ),
    Phase("warming up", 1800, re.compile(r"Loading weights took"), "a first compilation"),
    Phase("starting the HTTP server", 120, re.compile(r"Starting vLLM (API )?server")),
)

_FAILURES = tuple(
    KnownFailure(re.compile(pattern), why, remedy, transient)
    for pattern, why, remedy, transient in (
        (
            r"(?i)\[Errno 98\]|address already in use",
            "another program took one of its ports in the meantime",
            "nothing to do: the next try takes other ports",
            True,
        ),
        (
            r"error: unrecognized arguments: (?P<flags>.+)",
            "this vLLM does not know {flags}",
            "correct engine_args",
            False,
        ),
        (
            r"error: (?P<what>argument .+)",
            "vLLM refused its command line: {what}",
            "correct engine_args, or the key of the same name",
            False,
        ),
        (
            r"(?i)DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory|MemoryError"
            r"|out of memory",
            "memory ran out",
            "serve fewer replicas on this node, a smaller model, or less KV cache"
            " (VLLM_CPU_KVCACHE_SPACE on CPU)",
            False,
        ),
        (
            r"(?P<what>To serve at least one request with the model'?s'? max seq len.+?)\.(\s|$)",
            "the KV cache is too small for one whole request: {what}",
            "lower max_model_len, or raise VLLM_CPU_KVCACHE_SPACE (CPU) or"
            " --gpu-memory-utilization (NPU)",
            False,
        ),
        (
            r"No available memory for the cache blocks",
            "the weights leave no memory for the KV cache",
            "raise --gpu-memory-utilization, or use a larger tensor_parallel_size",
            False,
        ),
        (
            r"is not a local folder and is not a valid model identifier|Repository Not Found"
            r"|LocalEntryNotFoundError|couldn't connect to|Cannot reach http"
            r"|outgoing traffic has been disabled|Invalid repository ID",
            "the model is neither a local folder nor on a hub that this node can reach",
            "give model= the path of a folder that exists on every node",
            False,
        ),
        (
            r"Model architectures \[(?P<names>.+?)\].*(not supported|failed to be inspected)",
            "this vLLM has no implementation of {names}",
            "use a model that it supports, or another engine",
            False,
        ),
        (
            r"(?P<what>Unknown dtype: \S+|[Ff]or 310p, bfloat16 type is not supported)",
            "the data type does not run here: {what}",
            "use dtype=float32 on CPU, dtype=float16 on 310P",
            False,
        ),
        (
            r"(?P<what>User-specified max_model_len \(\d+\) is greater than the derived"
            r" max_model_len \([^)]*\))",
            "{what}",
            "lower max_model_len",
            False,
        ),
        (
            r"(?P<what>Total number of attention heads \(\d+\) must be divisible by tensor"
            r" parallel size \(\d+\))",
            "{what}",
            "use a tensor_parallel_size that divides the number of heads",
            False,
        ),
        (
            r"(?P<what>Head size \d+ is not supported.*)",
            "{what}",
            "serve a model whose heads have one of the sizes that it names",
            False,
        ),
        (
            r"(?P<what>SafetensorError.+|.*deserializing header.*)",
            "a weight file is damaged: {what}",
            "download or convert the model again",
            False,
        ),
        (
            r"SIGILL|Illegal instruction|exit code: -4\b",
            "vLLM used AMX instructions that Linux had not granted to it (bfloat16, eager)",
            "use dtype=float32 or dtype=float16",
            False,
        ),
        (
            r"exit code: -9\b|SIGKILL",
            "a process of the engine was killed, most often by the kernel for lack of memory",
            "see the node's kernel log; serve fewer replicas on this node or a smaller model",
            True,
        ),
    )
)


class VllmEngine:
    """One `vllm serve` process; tensor parallel ranks are its own workers."""

    name = "vllm"
    phases: tuple[Phase, ...] = _PHASES
    failures: tuple[KnownFailure, ...] = _FAILURES
    ports: tuple[PortNeed, ...] = (PortNeed("http"),)

    def check(self, spec: EngineSpec) -> None:
        """Refuse a model folder, size or flag that vLLM would refuse after a long start."""
        if looks_like_folder(spec.model):
            profile = read_model(spec.model)
            check_tensor_parallel(
                profile,
                spec.tensor_parallel_size,
                expert_parallel="--enable-expert-parallel" in spec.engine_args,
            )
            if spec.max_model_len is not None:
                check_max_model_len(profile, spec.max_model_len)
        python = Path(spec.engine_python or sys.executable).expanduser()
        if not python.is_file():
            raise ConfigError(
                f'engine_python="{spec.engine_python}"',
                "there is no such interpreter",
                "give the path of a python that has vLLM installed",
            )
        _check_flags(spec.engine_args, None if spec.engine_python else _known_flags())

    def needs(self, spec: EngineSpec) -> Needs:
        return Needs(spec.tensor_parallel_size, spec.tensor_parallel_size)

    def plan(self, spec: EngineSpec, site: Site) -> LaunchPlan:
        lease = site.head
        port = lease.ports["http"]
        model = spec.model
        if looks_like_folder(model):
            model = str(Path(model).expanduser().resolve())
        argv = [spec.engine_python or sys.executable, str(_SERVER)]
        argv += ["--model", model, "--served-model-name", spec.served_model_name]
        argv += ["--host", lease.host, "--port", str(port)]
        argv += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
        # float32 cannot meet the AMX trap (see the failure above) and is as fast on most CPUs.
        argv += ["--dtype", "float32" if spec.dtype == "auto" else spec.dtype]
        if spec.max_model_len is not None:
            argv += ["--max-model-len", str(spec.max_model_len)]
        if not any(arg.endswith("enforce-eager") for arg in spec.engine_args):
            # Compiling takes a minute on a CPU at every first start and gains little there.
            argv.append("--enforce-eager")
        argv += spec.engine_args
        engine = ProcessPlan("engine", tuple(argv), self._environment(spec))
        return LaunchPlan((engine,), f"http://{lease.host}:{port}")

    def _environment(self, spec: EngineSpec) -> dict[str, str]:
        names = [
            "VLLM_CPU_KVCACHE_SPACE",
            "VLLM_CPU_OMP_THREADS_BIND",
            "VLLM_NO_USAGE_STATS",
            "DO_NOT_TRACK",
        ]
        if looks_like_folder(spec.model):
            names.append("HF_HUB_OFFLINE")
        environment = {name: engine_value(name) for name in names}
        environment["OMP_NUM_THREADS"] = str(spec.threads)
        environment["TORCHINDUCTOR_CACHE_DIR"] = engine_value("TORCHINDUCTOR_CACHE_DIR") or str(
            cache_folder() / "torchinductor"
        )
        return environment | dict(spec.env)

    def probe(self, spec: EngineSpec) -> Probe:
        return Probe(
            "/v1/completions",
            {"model": spec.served_model_name, "prompt": "a", "max_tokens": 1, "temperature": 0},
        )

    def stats(self, metrics: str) -> Stats:
        return read_stats(metrics)


def _check_flags(args: tuple[str, ...], known: frozenset[str] | None) -> None:
    for arg in args:
        flag = arg.partition("=")[0]
        if flag in _OURS:
            raise ConfigError(
                f"engine_args has {flag}",
                "Rayscend sets it itself",
                "use the key of that name (ports and addresses are leased)",
            )
        if known is None or not flag.startswith("--"):
            continue
        # vLLM takes underscores for dashes, --no-x for booleans, and --x.y for JSON members.
        name = flag.removeprefix("--").partition(".")[0].replace("_", "-")
        if name not in known and name.removeprefix("no-") not in known:
            raise ConfigError(
                f"engine_args has {flag}",
                f"this vLLM does not know it{did_you_mean(name, known)}",
                "see the engine arguments in vLLM's documentation",
            )


@cache
def _known_flags() -> frozenset[str] | None:
    """Every flag that the installed vLLM's sources name; None where vLLM is not installed.

    Reading the sources takes milliseconds; asking vLLM's parser means importing vLLM (10-20 s).
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    files = [*root.glob("engine/arg_utils.py"), *root.glob("entrypoints/**/cli_args.py")]
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    fields = re.findall(r"^    ([a-z][a-z0-9_]+): ", text, re.MULTILINE)
    flags = re.findall(r"[\"']--([a-z][a-z0-9-]+)[\"']", text)
    return frozenset(flags) | {field.replace("_", "-") for field in fields}

"""The simulated engine: a real HTTP server with OpenAI's API that keeps time instead of computing.

It tests timing and failures exactly, and tries a configuration without a model. Here is what
Rayscend must know of it, and its command line; the program is `server.py`.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_type_hints

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
from cluster.engines.simulated.model import Settings
from cluster.errors import ConfigError, did_you_mean

_OURS = ("--host", "--port", "--model", "--served-model-name")


def _switch(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Switches:
    """Failures that can be turned on by a flag, or at run time by POST /simulate with their names.

    `die_after_tokens` counts the tokens of all streams from the moment it is set,
    `cut_after_tokens` those of each stream.
    """

    stall: bool = _switch(False, "accept requests and answer probes, but yield no token")
    refuse: Literal["", "connect", "reset"] = _switch(
        "", "connect: stop listening; reset: break every connection but /simulate's before a byte"
    )
    die_after_tokens: int = _switch(0, "end the process after this many tokens (0: never)")
    die_with: int = _switch(1, "exit code of that end; -9 is death by signal 9")
    cut_after_tokens: int = _switch(
        0, "close each stream in the middle of the event after this many tokens (0: never)"
    )
    error_status: int = _switch(0, "answer every request below /v1 with this status (0: normally)")
    health_status: int = _switch(200, "status of /health and /ping")


@dataclass(frozen=True)
class StartSwitches:
    """Failures of the start, by flag only."""

    fail_start: str = _switch("", "print this line at the end of the start and exit")
    fail_start_code: int = _switch(1, "exit code of --fail-start")
    orphan: bool = _switch(False, "leave a grandchild in a session of its own")


Options = TypeVar("Options", Settings, Switches, StartSwitches)
_OPTIONS: tuple[type[Any], ...] = (Settings, Switches, StartSwitches)


class SimulatedEngine:
    """Runs anywhere, with any model name; flags for its timing and failures are `engine_args`."""

    name = "simulated"
    ports: tuple[PortNeed, ...] = (PortNeed("http"),)
    phases: tuple[Phase, ...] = (
        Phase("starting Python", 60, usual_cause="a slow disk"),
        Phase("loading the model", 60, re.compile(r"^loading model"), "a large --start-seconds"),
        Phase("warming up", 60, re.compile(r"^warming up"), "a large --start-seconds"),
        Phase("first token", 30, re.compile(r"^server on http://"), "--stall, or a large --ttft"),
    )
    failures: tuple[KnownFailure, ...] = (
        KnownFailure(
            re.compile(r"(?i)address already in use"),
            "another program listens on the port",
            "The next try takes another port",
            transient=True,
        ),
        KnownFailure(
            re.compile(r"error: unrecognized arguments: (?P<flag>\S+)"),
            "the simulated engine does not know the flag {flag}",
            "Remove {flag} from engine_args",
        ),
        KnownFailure(
            re.compile(r"error: (?P<what>argument .*|\w+=.*)"),
            "the simulated engine refuses its command line: {what}",
            "Correct it in engine_args",
        ),
    )

    def check(self, spec: EngineSpec) -> None:
        if spec.tensor_parallel_size < 1:
            raise ConfigError(
                f"tensor_parallel_size={spec.tensor_parallel_size}",
                "a replica has at least one rank",
                "Use 1 or more",
            )
        if spec.max_model_len is not None and spec.max_model_len < 1:
            raise ConfigError(
                f"max_model_len={spec.max_model_len}", "it is in tokens", "Use 1 or more"
            )
        for flag in spec.engine_args:
            if flag.split("=")[0] in _OURS:
                raise ConfigError(
                    f'engine_args has "{flag}"',
                    "Rayscend sets this flag itself",
                    "Remove it",
                )
        self._check_flags(spec)

    def needs(self, spec: EngineSpec) -> Needs:
        return Needs(spec.tensor_parallel_size, spec.tensor_parallel_size)

    def plan(self, spec: EngineSpec, site: Site) -> LaunchPlan:
        lease = site.head
        port = lease.ports["http"]
        python = spec.engine_python or sys.executable
        argv = [python, "-u", "-m", "cluster.engines.simulated.server"]
        argv += ["--host", lease.host, "--port", str(port), "--model", spec.model]
        argv += ["--served-model-name", spec.served_model_name, *_engine_args(spec)]
        engine = ProcessPlan("engine", tuple(argv), dict(spec.env))
        return LaunchPlan((engine,), f"http://{lease.host}:{port}")

    def probe(self, spec: EngineSpec) -> Probe:
        body = {"model": spec.served_model_name, "prompt": "Hello", "max_tokens": 1}
        return Probe("/v1/completions", body)

    def stats(self, metrics: str) -> Stats:
        return read_stats(metrics)

    def _check_flags(self, spec: EngineSpec) -> None:
        parser = make_parser(exit_on_error=False)
        try:
            given, unknown = parser.parse_known_args(_engine_args(spec))
            from_options(Settings, given)
        except (argparse.ArgumentError, ValueError) as error:
            raise ConfigError(
                f"engine_args: {error}", "the simulated engine refuses it", "Correct engine_args"
            ) from None
        if unknown:
            flag = unknown[0].split("=")[0]
            known = [_flag(item) for options in _OPTIONS for item in fields(options)]
            raise ConfigError(
                f'engine_args has "{flag}"{did_you_mean(flag, known)}',
                "the simulated engine has no such flag",
                f"It has {', '.join(known)}",
            )


def make_parser(exit_on_error: bool = True) -> argparse.ArgumentParser:
    """The command line of `python -m cluster.engines.simulated.server`.

    Without `exit_on_error` a wrong value raises `argparse.ArgumentError`.
    """
    parser = argparse.ArgumentParser(
        prog="simulated_server",
        allow_abbrev=False,
        exit_on_error=exit_on_error,
        add_help=exit_on_error,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="simulated", help="shown by /v1/models, never read")
    parser.add_argument("--served-model-name", default="", help="the model's name (else --model)")
    for options in _OPTIONS:
        hints = get_type_hints(options)
        for item in fields(options):
            kind = _kind(item, hints[item.name])
            parser.add_argument(_flag(item), help=item.metadata["help"], **kind)
    return parser


def from_options(kind: type[Options], options: argparse.Namespace) -> Options:
    """Make the dataclass `kind` of the options that bear its fields' names."""
    return kind(**{item.name: getattr(options, item.name) for item in fields(kind)})


def _flag(item: Field[Any]) -> str:
    return "--" + item.name.replace("_", "-")


def _kind(item: Field[Any], hint: Any) -> dict[str, Any]:
    if hint is bool:
        return {"action": "store_true"}
    if choices := get_args(hint):
        return {"choices": choices, "default": item.default}
    return {"type": hint, "default": item.default}


def _engine_args(spec: EngineSpec) -> list[str]:
    """The flags of `spec`; its own engine_args come last, so they win."""
    limit = [] if spec.max_model_len is None else ["--max-model-len", str(spec.max_model_len)]
    return [*limit, *spec.engine_args]

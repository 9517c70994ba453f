"""Every environment variable that Rayscend reads or sets, once.

Ray Serve's own variables are in `serve_apps/serve_settings.py`. `docs/environment.md` would only
repeat this table: print it with `python -m cluster.environment`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Who reads a variable, or for whom we set it."""

    USER = "read by Rayscend; yours to set"
    ENGINE = "set for an engine unless you set it"
    INTERNAL = "set by Rayscend for its own processes"


@dataclass(frozen=True)
class Variable:
    """One variable. `default` None means: unset, or computed as `meaning` says."""

    name: str
    type: str
    default: str | None
    scope: Scope
    meaning: str
    versions: str = "all"


_ALL_VLLM = "vLLM 0.11 to 0.32"

VARIABLES: Mapping[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable(
            "RAYSCEND_CACHE",
            "folder",
            None,
            Scope.USER,
            "where the default model is kept; else $XDG_CACHE_HOME/rayscend or ~/.cache/rayscend",
        ),
        Variable(
            "XDG_CACHE_HOME", "folder", None, Scope.USER, "the user's caches, where it is set"
        ),
        Variable(
            "RAYSCEND_TREE_ID",
            "hex",
            None,
            Scope.INTERNAL,
            "marks every process of one engine, so that none of them can be missed at the end",
        ),
        Variable(
            "SPT_NOENV",
            "0/1",
            "1",
            Scope.INTERNAL,
            "keeps setproctitle from overwriting /proc/PID/environ, where RAYSCEND_TREE_ID is read",
            "setproctitle, as vLLM uses it",
        ),
        Variable(
            "VLLM_CPU_KVCACHE_SPACE",
            "GiB",
            "1",
            Scope.ENGINE,
            "memory for the KV cache of one rank on CPU",
            _ALL_VLLM,
        ),
        Variable(
            "VLLM_CPU_OMP_THREADS_BIND",
            "cores",
            "nobind",
            Scope.ENGINE,
            "which cores a CPU rank is bound to; vLLM's own 'auto' puts every engine of a host "
            "on the same ones",
            _ALL_VLLM,
        ),
        Variable(
            "OMP_NUM_THREADS",
            "count",
            None,
            Scope.ENGINE,
            "threads of one CPU rank; else the node's cores shared out among the app's ranks",
        ),
        Variable("VLLM_NO_USAGE_STATS", "0/1", "1", Scope.ENGINE, "no usage reports", _ALL_VLLM),
        Variable("DO_NOT_TRACK", "0/1", "1", Scope.ENGINE, "no usage reports", _ALL_VLLM),
        Variable(
            "TORCHINDUCTOR_CACHE_DIR",
            "folder",
            None,
            Scope.ENGINE,
            "where compiled kernels are kept from one start to the next; else in Rayscend's cache",
        ),
        Variable(
            "HF_HUB_OFFLINE",
            "0/1",
            "1",
            Scope.ENGINE,
            "set for a model that is a local folder: no call to a hub can hang its start",
        ),
    )
}


def engine_value(name: str) -> str:
    """What an engine gets for `name`: the value in our own environment, else the default."""
    return os.environ.get(name) or VARIABLES[name].default or ""


if __name__ == "__main__":
    for variable in VARIABLES.values():
        print(f"{variable.name} ({variable.type}, default {variable.default}): {variable.scope};")
        print(f"    {variable.meaning} [{variable.versions}]")

"""Rayscend's own variables, and those it sets for vLLM on CPU."""

from __future__ import annotations

from cluster.environment.variable import Scope, Variable

_ALL_VLLM = "vllm>=0.11,<0.33"

VARIABLES = (
    Variable(
        "RAYSCEND_CACHE",
        "folder",
        None,
        Scope.USER,
        "where the default model is kept; else $XDG_CACHE_HOME/rayscend or ~/.cache/rayscend",
    ),
    Variable("XDG_CACHE_HOME", "folder", None, Scope.USER, "the user's caches, where it is set"),
    Variable(
        "RAYSCEND_TREE_ID",
        "hex",
        None,
        Scope.INTERNAL,
        "marks every process of one engine, so that none of them can be missed at the end",
    ),
    Variable(
        "SPT_NOENV",
        "0|1",
        "1",
        Scope.INTERNAL,
        "keeps setproctitle from overwriting /proc/PID/environ, where RAYSCEND_TREE_ID is read",
        "vllm",
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
    Variable(
        "TORCHINDUCTOR_CACHE_DIR",
        "folder",
        None,
        Scope.ENGINE,
        "where compiled kernels are kept from one start to the next; else in Rayscend's cache",
    ),
    Variable("VLLM_NO_USAGE_STATS", "0|1", "1", Scope.ENGINE, "no usage reports", _ALL_VLLM),
    Variable("DO_NOT_TRACK", "0|1", "1", Scope.ENGINE, "no usage reports", _ALL_VLLM),
    Variable(
        "HF_HUB_OFFLINE",
        "0|1",
        "1",
        Scope.ENGINE,
        "set for a model that is a local folder: no call to a hub can hang its start",
    ),
)

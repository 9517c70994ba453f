"""What MindIE Service reads, 1.0.RC3 to 3.0.

Source: docs/zh/user_guide/user_manual/environment_variable.md of
https://github.com/Ascend/MindIE-LLM, and its code.
"""

from __future__ import annotations

from cluster.environment.variable import Scope, Variable

_MINDIE = "mindie"
_SHARED, _PER_NODE, _FORBIDDEN = Scope.SHARED, Scope.PER_NODE, Scope.FORBIDDEN
_LEAK = "a torch launcher's; MindIE reads it too and would take its ranks from it"
_PROXY = "a proxy; MindIE's nodes would look for each other through it"

VARIABLES = (
    Variable(
        "MINDIE_LLM_FRAMEWORK_BACKEND",
        "ATB|MS",
        "ATB",
        _SHARED,
        "the backend; has to agree with backendType in config.json",
        "mindie<3.0.0b3",
    ),
    Variable("MIES_INSTALL_PATH", "folder", None, _PER_NODE, "MindIE's home", "mindie<3.0.0b1"),
    Variable("MINDIE_LLM_HOME_PATH", "folder", None, _PER_NODE, "its home", "mindie>=3.0.0b1"),
    Variable(
        "MIES_CONFIG_JSON_PATH",
        "file",
        None,
        _PER_NODE,
        "a config.json of one's own, so that instances need not share one",
        "mindie>=2.3",
    ),
    Variable(
        "RANKTABLEFILE",
        "file",
        None,
        _PER_NODE,
        "the rank table, as MindIE 1.0 to 2.0 read it",
        "vllm-mindspore; mindspore; mindie",
    ),
    Variable(
        "RANK_TABLE_FILE",
        "file",
        None,
        _PER_NODE,
        "the rank table, as MindIE 2.3 and later and MindSpore's rank-table start read it",
        "vllm-mindspore; mindspore; mindie",
    ),
    Variable("MIES_RANKTABLEFILE", "file", None, _PER_NODE, "the rank table, once more", _MINDIE),
    Variable(
        "MIES_CONTAINER_IP",
        "address",
        None,
        _PER_NODE,
        "this node's address: finds its place in the rank table, and is listened on",
        _MINDIE,
    ),
    Variable("MIES_CONTAINER_MANAGEMENT_IP", "address", None, _PER_NODE, "for management", _MINDIE),
    Variable("HOST_IP", "address", None, _PER_NODE, "the host's address", _MINDIE),
    Variable("MIES_SERVICE_MONITOR_MODE", "0|1", "0", _SHARED, "1: /metrics answers", _MINDIE),
    Variable("MIES_PROFILER_MODE", "0|1", "0", _SHARED, "profiles", _MINDIE),
    Variable("MIES_MEMORY_DETECTOR_MODE", "0|1", "0", _SHARED, "logs memory", _MINDIE),
    Variable(
        "MINDIE_CHECK_INPUTFILES_PERMISSION",
        "0|1",
        "1",
        _SHARED,
        "0: tolerates owner and mode of files; in 3.0 those of weights only",
        _MINDIE,
    ),
    Variable("NPU_MEMORY_FRACTION", "number", "0.8", _SHARED, "share for npuMemSize -1", _MINDIE),
    Variable("RESERVED_MEMORY_GB", "GiB", None, _SHARED, "memory left alone", _MINDIE),
    Variable("BIND_CPU", "0|1", "1", _SHARED, "binds cores by device", _MINDIE),
    Variable("MINDIE_LOG_LEVEL", "text", "INFO", _SHARED, "level, or by component", _MINDIE),
    Variable("MINDIE_LOG_TO_FILE", "text", "true", _SHARED, "log to a file", _MINDIE),
    Variable("MINDIE_LOG_TO_STDOUT", "text", "false", _SHARED, "log to stdout", _MINDIE),
    Variable("MINDIE_LOG_PATH", "text", "~/mindie/log/debug", _SHARED, "where", _MINDIE),
    Variable("MINDIE_LOG_ROTATE", "text", "-fs 20 -r 10", _SHARED, "size and number", _MINDIE),
    *(
        Variable(f"MINDIE_LLM_{old}", "text", None, _SHARED, "log of 1.0", _MINDIE)
        for old in ("LOG_LEVEL", "LOG_TO_FILE", "LOG_TO_STDOUT")
    ),
    *(
        Variable(name, "number", None, _FORBIDDEN, _LEAK, _MINDIE)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    ),
    *(
        Variable(name, "text", None, _PER_NODE, _PROXY, _MINDIE)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    ),
)

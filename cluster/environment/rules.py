"""What a variable must, should or must not be, by the versions of the stack and the layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Trait(StrEnum):
    """What a layout has that some rules depend on."""

    MULTI_NODE = "a replica spans nodes"
    RAY = "ranks are placed by Ray"
    PARALLEL = "a replica has several ranks"
    LEGACY_MODEL = "the model is not of MindFormers' MCore kind"


class Kind(StrEnum):
    """What a rule asks for.

    REQUIRED: has to be set, to `value` if that is known (`a|b`: to one of them).
    ADVISED: should be set; another value is left alone.
    KEEP: may be unset, else has to be `value`.
    FATAL: an engine fails or hangs if it is set.
    USELESS: has no effect.
    RENAMED: `value` is the name that is read instead.
    """

    REQUIRED = "required"
    ADVISED = "advised"
    KEEP = "keep"
    FATAL = "fatal"
    USELESS = "useless"
    RENAMED = "renamed"


@dataclass(frozen=True)
class Rule:
    """One rule on variable `name`, where the stack meets `when` and the layout has `only`.

    `value` may hold `<facts>` of a node, filled in where they are known: `<address>` of the node,
    `<interface>` with that address, `<devices>` (its mask), `<device_count>`, `<scheduler_host>`,
    `<scheduler_port>`, `<lcal_port>`, `<rank_table>`.
    """

    name: str
    kind: Kind
    when: str
    why: str
    value: str = ""
    only: Trait | None = None
    link: str = ""


_PLUGIN = "vllm-mindspore"
_SINCE_04 = "vllm-mindspore>=0.4"
_MS = "mindie<3.0.0b3"
_ISSUES = "https://github.com/vllm-project/vllm-ascend/issues"
_NODES = Trait.MULTI_NODE
_OVERWRITTEN = "vllm-mindspore derives it from vLLM's init method and overwrites it"
_RANK_TABLE = "vllm-mindspore makes its cluster without one; MindSpore would start from this one"
_RANK_TABLE_NAMES = ("RANKTABLEFILE", "RANK_TABLE_FILE")
_BOTH_TABLES = "releases differ in which of the two names they read"

RULES = (
    Rule(
        "vLLM_MODEL_BACKEND",
        Kind.RENAMED,
        _SINCE_04,
        "the name is deprecated since 0.4 and loses against the new one",
        "VLLM_MS_MODEL_BACKEND",
    ),
    Rule(
        "VLLM_MS_MODEL_BACKEND",
        Kind.RENAMED,
        "vllm-mindspore<0.4",
        "releases before 0.4 do not know it",
        "vLLM_MODEL_BACKEND",
    ),
    Rule(
        "MINDFORMERS_MODEL_CONFIG",
        Kind.REQUIRED,
        "vllm-mindspore<0.3",
        "without it the MindFormers backend raises RuntimeError",
        "<predict_yaml>",
    ),
    Rule(
        "MINDFORMERS_MODEL_CONFIG",
        Kind.REQUIRED,
        "vllm-mindspore==0.3.*",
        "a legacy model is described by it; MCore models are not",
        "<predict_yaml>",
        Trait.LEGACY_MODEL,
    ),
    Rule(
        "MINDFORMERS_MODEL_CONFIG",
        Kind.FATAL,
        _SINCE_04,
        "with the MindFormers backend it raises ValueError, though MindFormers' guide asks for it",
    ),
    Rule("VLLM_USE_V1", Kind.KEEP, "vllm-mindspore<0.3", "0.2 has no V1 engine", "0"),
    Rule("VLLM_USE_V1", Kind.KEEP, "vllm-mindspore>=0.5", "from 0.5 on there is only V1", "1"),
    Rule(
        "VLLM_WORKER_MULTIPROC_METHOD",
        Kind.USELESS,
        _PLUGIN,
        "the plugin forks, whatever it says",
    ),
    Rule("vLLM_MODEL_MEMORY_USE_GB", Kind.USELESS, "vllm-mindspore>=0.2", "only 0.1 read it"),
    Rule("ASCEND_TOTAL_MEMORY_GB", Kind.USELESS, "vllm-mindspore>=0.2", "only 0.1 read it"),
    Rule("vLLM_USE_NPU_ADV_STEP_FLASH_OP", Kind.USELESS, _SINCE_04, "nothing reads it after 0.3"),
    *(
        Rule(
            "RUN_MODE",
            kind,
            "vllm-mindspore<0.6",
            "the plugin up to 0.5 misspells it; MindFormers serves with exactly this",
            "predict",
        )
        for kind in (Kind.ADVISED, Kind.KEEP)
    ),
    Rule(
        "DEVICE_NUM_PER_NODE",
        Kind.ADVISED,
        _PLUGIN,
        "the plugin sets 16 on a machine that has another number",
        "<device_count>",
    ),
    Rule(
        "ASCEND_HOME_PATH",
        Kind.REQUIRED,
        "vllm-mindspore; mindie",
        "CANN's set_env.sh was not sourced: its libraries are not found",
        "<cann_home>",
    ),
    Rule(
        "ASCEND_RT_VISIBLE_DEVICES",
        Kind.ADVISED,
        _PLUGIN,
        "Ray counts and masks devices by it",
        "<devices>",
        Trait.RAY,
    ),
    Rule(
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
        Kind.REQUIRED,
        _PLUGIN,
        "Ray would mask each rank to one device that vLLM then looks for under its old number",
        "1",
        Trait.RAY,
        f"{_ISSUES}/167",
    ),
    Rule(
        "RAY_CGRAPH_get_timeout",
        Kind.ADVISED,
        "vllm-mindspore<0.3",
        "Ray gives a step 10 s and ends the engine; later releases set it themselves",
        "360",
        Trait.RAY,
        f"{_ISSUES}/1238",
    ),
    Rule(
        "VLLM_RAY_PER_WORKER_GPUS",
        Kind.KEEP,
        _PLUGIN,
        "ranks cannot share an NPU",
        "1.0|1",
        Trait.RAY,
    ),
    Rule(
        "VLLM_HOST_IP",
        Kind.REQUIRED,
        "vllm",
        "vLLM else takes the address of the default route, which need not be the one Ray knows: "
        "its placement group then waits for ever",
        "<address>",
        _NODES,
        "https://github.com/vllm-project/vllm/pull/43095",
    ),
    *(
        Rule(
            name,
            Kind.ADVISED,
            "vllm-mindspore; mindie",
            "with several interfaces, ranks else meet on a wrong one, or on 127.0.0.1",
            "<interface>",
            _NODES,
            f"{_ISSUES}/5949",
        )
        for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    ),
    Rule(
        "MS_ENABLE_LCCL",
        Kind.KEEP,
        "vllm-mindspore; mindie",
        "LCCL cannot leave a host",
        "off|0",
        _NODES,
    ),
    Rule(
        "HCCL_OP_EXPANSION_MODE",
        Kind.KEEP,
        _PLUGIN,
        "the plugin's guide demands it for several nodes",
        "AIV",
        _NODES,
    ),
    Rule(
        "HCCL_CONNECT_TIMEOUT",
        Kind.ADVISED,
        _PLUGIN,
        "nodes load weights at different speeds, and 120 s are soon over",
        "600",
        _NODES,
    ),
    *(
        Rule(name, Kind.USELESS, _PLUGIN, _OVERWRITTEN)
        for name in ("MS_SCHED_HOST", "MS_SCHED_PORT")
    ),
    Rule("LCAL_IF_PORT", Kind.USELESS, _PLUGIN, "nothing in MindSpore 2.7 and later reads it"),
    *(
        Rule(name, Kind.FATAL, _PLUGIN, _RANK_TABLE)
        for name in ("RANK_TABLE_FILE", "RANKTABLEFILE")
    ),
    Rule(
        "MINDIE_LLM_FRAMEWORK_BACKEND",
        Kind.REQUIRED,
        _MS,
        "backendType alone does not choose MindSpore: this does, for tensors",
        "MS",
    ),
    *(
        Rule(
            name,
            Kind.REQUIRED,
            _MS,
            "the ranks meet there; a second instance on a host needs another port",
            value,
            Trait.PARALLEL,
        )
        for name, value in (
            ("MS_SCHED_HOST", "<scheduler_host>"),
            ("MS_SCHED_PORT", "<scheduler_port>"),
        )
    ),
    Rule(
        "LCAL_IF_PORT",
        Kind.ADVISED,
        _MS,
        "a second instance on a host needs another",
        "<lcal_port>",
        Trait.PARALLEL,
    ),
    *(
        Rule(name, Kind.REQUIRED, "mindie", _BOTH_TABLES, "<rank_table>", _NODES)
        for name in _RANK_TABLE_NAMES
    ),
    Rule(
        "MIES_CONTAINER_IP",
        Kind.REQUIRED,
        "mindie",
        "a node finds its place in the rank table by it",
        "<address>",
        _NODES,
    ),
    Rule(
        "MIES_SERVICE_MONITOR_MODE",
        Kind.ADVISED,
        "mindie",
        "else /metrics answers 500",
        "1",
        link="https://github.com/gpustack/gpustack/issues/1785",
    ),
    Rule(
        "HCCL_CONNECT_TIMEOUT",
        Kind.ADVISED,
        "mindie",
        "nodes do not start at the same time",
        "7200",
        _NODES,
    ),
    Rule(
        "HCCL_DETERMINISTIC",
        Kind.ADVISED,
        "mindie",
        "the vendor's advice for several nodes",
        "true",
        _NODES,
    ),
    Rule("OMP_NUM_THREADS", Kind.ADVISED, "mindie", "else weights load slowly", "1"),
    *(
        Rule(name, Kind.FATAL, "mindie", "MindIE's nodes would go through it", only=_NODES)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    ),
    *(
        Rule(f"MINDIE_LLM_{old}", Kind.RENAMED, "mindie>=2.1", "1.0's name", f"MINDIE_{old}")
        for old in ("LOG_LEVEL", "LOG_TO_FILE", "LOG_TO_STDOUT")
    ),
)

"""What MindSpore itself reads: its cluster, its memory, its kernels.

Ranks of one job meet at a scheduler that MS_* variables name. msadapter sets them all for
vllm-mindspore, from vLLM's init method, unless MS_ROLE is there already; under MindIE MindFormers
sets them, and only the scheduler's host and port come from outside.
Source: https://www.mindspore.cn/tutorials/en/stable/parallel/dynamic_cluster.html
"""

from __future__ import annotations

from cluster.environment.variable import Scope, Variable

_ANY = "vllm-mindspore; mindspore; mindie"
_SHARED, _PER_NODE, _FORBIDDEN = Scope.SHARED, Scope.PER_NODE, Scope.FORBIDDEN
_OWN = "the engine gives each of its ranks its own; one inherited from a shell or from msrun "

VARIABLES = (
    Variable(
        "MS_ROLE",
        "MS_SCHED|MS_WORKER|MS_PSERVER",
        None,
        _FORBIDDEN,
        _OWN + "makes all ranks wait for a scheduler that nobody starts",
        _ANY,
    ),
    Variable("MS_NODE_ID", "text", None, _FORBIDDEN, _OWN + "gives ranks one number", _ANY),
    Variable("MS_WORKER_NUM", "count", None, _FORBIDDEN, _OWN + "has another size", _ANY),
    Variable("RANK_ID", "number", None, _FORBIDDEN, _OWN + "gives ranks one number", _ANY),
    Variable("DEVICE_ID", "number", None, _FORBIDDEN, _OWN + "puts ranks on one device", _ANY),
    Variable(
        "MS_SCHED_HOST",
        "ipv4",
        None,
        _SHARED,
        "address of the scheduler, on the node of rank 0; the same for all ranks",
        _ANY,
    ),
    Variable(
        "MS_SCHED_PORT",
        "port 1024-65535",
        None,
        _SHARED,
        "its port, one for each replica (MindIE's guide has 8090, its script 8119, msrun 8118)",
        _ANY,
    ),
    Variable("MS_WORKER_IP", "address", None, _PER_NODE, "a rank's own address", _ANY),
    Variable("MS_TOPO_TIMEOUT", "seconds", "1800", _SHARED, "until all ranks are there", _ANY),
    Variable(
        "MS_NODE_TIMEOUT",
        "seconds",
        "30",
        _SHARED,
        "heart-beat window; passed, the cluster ends. vllm-mindspore sets 180 from 0.3 on",
        _ANY,
    ),
    Variable("MS_HEARTBEAT_RETRY_TIMEOUT", "seconds", "20", _SHARED, "below MS_NODE_TIMEOUT", _ANY),
    Variable("MS_RECEIVE_MSG_TIMEOUT", "seconds", "300", _SHARED, "for a peer's message", _ANY),
    Variable("MS_RETRY_INTERVAL_LOWER", "seconds", "3", _SHARED, "between registrations", _ANY),
    Variable("MS_RETRY_INTERVAL_UPPER", "seconds", "5", _SHARED, "between registrations", _ANY),
    Variable("MS_DISABLE_HEARTBEAT", "0|1", "0", _SHARED, "no heart-beat", _ANY),
    Variable("MS_ENABLE_RECOVERY", "0|1", "0", _SHARED, "the scheduler's recovery", _ANY),
    Variable("MS_RECOVERY_PATH", "folder", None, _SHARED, "where it keeps its state", _ANY),
    Variable("MS_HCCL_CM_INIT", "0|1", "0", _SHARED, "1 is needed with IPv6", _ANY),
    Variable(
        "MS_ENABLE_LCCL",
        "on|off|1|0",
        "off",
        _SHARED,
        "low-latency collectives within one host; they cannot leave it",
        _ANY,
    ),
    Variable("MS_ALLOC_CONF", "text", "enable_vmm: true", _SHARED, "allocator, key:value,…", _ANY),
    Variable("MS_MEMPOOL_BLOCK_SIZE", "GB", None, _SHARED, "block of the memory pool", _ANY),
    Variable("MS_DEV_RUNTIME_CONF", "text", None, _SHARED, "runtime switches", _ANY),
    Variable(
        "MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST", "text", None, _SHARED, "kernels to avoid", _ANY
    ),
    Variable("MS_ENABLE_INTERNAL_BOOST", "on|off", "on", _SHARED, "fused kernels", _ANY),
    Variable("MS_ENABLE_GRACEFUL_EXIT", "0|1", "0", _SHARED, "end after a step", _ANY),
    Variable("GLOG_v", "number", "3", _SHARED, "MindSpore's log: 0 debug to 4 critical", _ANY),
)

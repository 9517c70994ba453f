"""What CANN reads: devices, HCCL between nodes, LCAL within one, logs.

Source: the environment variable reference of CANN on https://www.hiascend.com/document.
"""

from __future__ import annotations

from cluster.environment.variable import Scope, Variable

_ANY = "vllm-mindspore; mindspore; mindie"
_SHARED, _PER_NODE = Scope.SHARED, Scope.PER_NODE

VARIABLES = (
    Variable(
        "ASCEND_RT_VISIBLE_DEVICES",
        "device ids",
        None,
        _PER_NODE,
        "logical ids that a process may use, ascending, no blanks; from the first bad entry on all "
        "are ignored",
        _ANY,
    ),
    Variable(
        "ASCEND_VISIBLE_DEVICES",
        "text",
        None,
        _PER_NODE,
        "host ids that the container runtime gives a container (0-7, 0,2); says nothing to a "
        "process inside",
        _ANY,
    ),
    Variable(
        "ASCEND_HOME_PATH",
        "folder",
        None,
        _PER_NODE,
        "the CANN in use, set by its set_env.sh; unset, that was not sourced",
        _ANY,
    ),
    Variable("ASCEND_TOOLKIT_HOME", "folder", None, _PER_NODE, "the same, as CANN sees it", _ANY),
    Variable("ASCEND_OPP_PATH", "folder", None, _PER_NODE, "CANN's operators", _ANY),
    Variable("ASCEND_CUSTOM_PATH", "folder", None, _PER_NODE, "operators of your own", _ANY),
    Variable("ASCEND_LAUNCH_BLOCKING", "0|1", "0", _SHARED, "one kernel after another", _ANY),
    Variable("ASCEND_GLOBAL_LOG_LEVEL", "level 0-4", "3", _SHARED, "0 debug to 4 none", _ANY),
    Variable("ASCEND_SLOG_PRINT_TO_STDOUT", "0|1", "0", _SHARED, "CANN's log on stdout", _ANY),
    Variable(
        "HCCL_SOCKET_IFNAME",
        "interfaces",
        None,
        _PER_NODE,
        "network interface on which ranks meet; names, prefixes, ^excluded, =exact",
        _ANY,
    ),
    Variable("HCCL_IF_IP", "address", None, _PER_NODE, "its address; goes before the name", _ANY),
    Variable(
        "HCCL_IF_BASE_PORT",
        "port 1024-65520",
        "60000",
        _SHARED,
        "first of up to 32 ports on which ranks meet: another window for each replica of a host",
        _ANY,
    ),
    Variable(
        "HCCL_HOST_SOCKET_PORT_RANGE", "port range", None, _SHARED, "the same, as a range", _ANY
    ),
    Variable(
        "HCCL_NPU_SOCKET_PORT_RANGE",
        "port range",
        None,
        _SHARED,
        "ports on the NPU's own address; needed where processes share one (else 16666)",
        _ANY,
    ),
    Variable(
        "HCCL_CONNECT_TIMEOUT",
        "seconds 120-7200",
        "120",
        _SHARED,
        "how long ranks wait for each other at a start; the same for all",
        _ANY,
    ),
    Variable(
        "HCCL_EXEC_TIMEOUT",
        "seconds 0-17340",
        "1836",
        _SHARED,
        "how long a collective may take; 0: for ever. vllm-mindspore sets 7200",
        _ANY,
    ),
    Variable("HCCL_RDMA_TIMEOUT", "number", "20", _SHARED, "exponent of the RDMA timeout", _ANY),
    Variable("HCCL_RDMA_RETRY_CNT", "number", "7", _SHARED, "RDMA retries", _ANY),
    Variable(
        "HCCL_BUFFSIZE", "MB", "200", _SHARED, "buffer of each communicator, twice, in HBM", _ANY
    ),
    Variable("HCCL_DETERMINISTIC", "true|false|strict", "false", _SHARED, "same order", _ANY),
    Variable("HCCL_OP_EXPANSION_MODE", "AIV|AI_CPU|HOST", "AIV", _SHARED, "who runs them", _ANY),
    Variable("LCCL_DETERMINISTIC", "0|1", "0", _SHARED, "same order; up to 8 ranks", _ANY),
    Variable(
        "LCAL_COMM_ID",
        "loopback:port",
        "127.0.0.1:10067",
        _PER_NODE,
        "where ranks of one host meet for LCCL: another port for each replica of a host",
        _ANY,
    ),
    Variable(
        "LCAL_IF_PORT",
        "port 1024-65535",
        None,
        _PER_NODE,
        "the same in older releases; MindIE's guide sets 8129. MindSpore 2.7 and later has no "
        "reader of it",
        _ANY,
    ),
    Variable("CUSTOM_MATMUL_SHUFFLE", "on|off", "on", _SHARED, "a faster matmul", _ANY),
    Variable("TE_PARALLEL_COMPILER", "number", "0", _SHARED, "kernel compilers at once", _ANY),
)

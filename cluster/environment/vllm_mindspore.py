"""What vLLM, vllm-mindspore and Ray under them read.

Sources: the plugin's wheels and branches (scripts.py, utils.py), vllm/envs.py, and
https://www.mindspore.cn/vllm_mindspore/docs/en/master/.
"""

from __future__ import annotations

from cluster.environment.variable import Scope, Variable

_PLUGIN = "vllm-mindspore"
_SHARED, _PER_NODE = Scope.SHARED, Scope.PER_NODE

VARIABLES = (
    Variable(
        "VLLM_MS_MODEL_BACKEND",
        "mindformers|native|mindone",
        None,
        _SHARED,
        "where models come from; unset, the first that has the model, in this order. vLLM does not "
        "copy it to other nodes",
        "vllm-mindspore>=0.4",
    ),
    Variable(
        "vLLM_MODEL_BACKEND",
        "mindformers|mindway|mindformer_models|native_models|native|mindone",
        None,
        _SHARED,
        "the same under its old name, which later releases still read but warn of",
        _PLUGIN,
    ),
    Variable(
        "MINDFORMERS_MODEL_CONFIG",
        "file",
        None,
        _SHARED,
        "a MindFormers predict yaml: needed until 0.2, in 0.3 for models of the legacy kind, "
        "refused from 0.4 on, though MindFormers' guide still asks for it",
        _PLUGIN,
    ),
    Variable(
        "vLLM_MODEL_MEMORY_USE_GB", "GB", None, _SHARED, "memory for the model", "vllm-mindspore"
    ),
    Variable("ASCEND_TOTAL_MEMORY_GB", "GB", None, _SHARED, "memory of a device", _PLUGIN),
    Variable(
        "vLLM_USE_NPU_ADV_STEP_FLASH_OP", "on|off", None, _SHARED, "a multi-step kernel", _PLUGIN
    ),
    Variable(
        "DEVICE_NUM_PER_NODE",
        "count",
        "16",
        _PER_NODE,
        "devices of this node; the plugin sets 16 whatever the machine has",
        _PLUGIN,
    ),
    Variable(
        "RUN_MODE",
        "predict|train|finetune|eval",
        None,
        _SHARED,
        'MindFormers serves only in mode predict; the plugin up to 0.5 sets "prefict"',
        "vllm-mindspore; mindformers",
    ),
    Variable("ENFORCE_EAGER", "true|false", None, _SHARED, "PyNative mode", "mindformers"),
    Variable("VLLM_USE_V1", "0|1", "1", _SHARED, "vLLM's V1 engine", _PLUGIN),
    Variable(
        "VLLM_WORKER_MULTIPROC_METHOD",
        "fork|spawn|forkserver",
        None,
        _SHARED,
        "how vLLM starts its processes; the plugin always forks",
        "vllm",
    ),
    Variable(
        "VLLM_HOST_IP",
        "address",
        None,
        _PER_NODE,
        "this node's address, the one its Ray has; unset, that of the default route",
        "vllm",
    ),
    Variable(
        "VLLM_PORT",
        "port 1-65535",
        None,
        _PER_NODE,
        "first port to try for internal connections. A Kubernetes service named vllm sets it to "
        "tcp://…, which vLLM refuses: name the service otherwise",
        "vllm",
    ),
    Variable(
        "VLLM_RAY_PER_WORKER_GPUS", "number", "1.0", _SHARED, "devices a rank asks Ray for", "vllm"
    ),
    Variable(
        "VLLM_RAY_BUNDLE_INDICES",
        "numbers",
        None,
        _SHARED,
        "which bundles of a shared placement group are this engine's: one for each rank",
        "vllm",
    ),
    Variable(
        "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE",
        "auto|shm",
        "auto",
        _SHARED,
        "how pipeline stages pass tensors; nccl needs CUDA",
        _PLUGIN,
    ),
    Variable(
        "VLLM_PP_LAYER_PARTITION",
        "numbers",
        None,
        _SHARED,
        "layers of each pipeline stage; needed where they do not divide evenly",
        "vllm",
    ),
    Variable("VLLM_TORCH_PROFILER_DIR", "folder", None, _SHARED, "where profiles go", "vllm"),
    *(
        Variable(name, kind, None, _PER_NODE, "offline data parallelism", "vllm")
        for name, kind in (
            ("VLLM_DP_RANK", "number"),
            ("VLLM_DP_RANK_LOCAL", "number"),
            ("VLLM_DP_SIZE", "count"),
            ("VLLM_DP_MASTER_IP", "address"),
            ("VLLM_DP_MASTER_PORT", "port 1-65535"),
        )
    ),
    Variable(
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
        "0|1",
        None,
        _SHARED,
        "keeps Ray from rewriting ASCEND_RT_VISIBLE_DEVICES for each actor; the plugin sets it "
        "only where it starts Ray itself",
        _PLUGIN,
    ),
    Variable(
        "RAY_CGRAPH_get_timeout",
        "seconds",
        "360",
        _SHARED,
        "how long a step may take in Ray's compiled graph; Ray's own default is 10",
        "vllm",
    ),
    Variable(
        "GLOO_SOCKET_IFNAME",
        "interfaces",
        None,
        _PER_NODE,
        "network interface of the CPU-side group",
        "vllm; mindie",
    ),
    Variable(
        "TP_SOCKET_IFNAME",
        "interfaces",
        None,
        _PER_NODE,
        "network interface of tensor parallel messages",
        "vllm; mindie",
    ),
    Variable(
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
        "python|upb|cpp",
        None,
        _SHARED,
        "python: the remedy where Ray and MindSpore want different protobufs",
        _PLUGIN,
    ),
)

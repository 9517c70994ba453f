"""The engines that Rayscend can run, by name."""

from __future__ import annotations

from cluster.engines.base import Engine, EngineSpec
from cluster.engines.simulated.engine import SimulatedEngine
from cluster.engines.vllm import VllmEngine
from cluster.errors import ConfigError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VllmEngine(), SimulatedEngine())}

__all__ = ["ENGINES", "Engine", "EngineSpec", "engine_named"]


def engine_named(name: str) -> Engine:
    """Return the engine called `name`; "auto" is vLLM.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return ENGINES["vllm" if name == "auto" else name]
    except KeyError:
        raise ConfigError(f'engine="{name}"', remedy=f"use one of {', '.join(ENGINES)}") from None

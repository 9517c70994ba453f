"""What a preflight is for: the models to be served and where clients are to find them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cluster.engines import EngineSpec
from cluster.environment.rules import Trait
from cluster.models import looks_like_folder
from cluster.preflight.machine import Machine


@dataclass(frozen=True)
class Task:
    """The models to be served; none: the machine is judged by itself.

    `http` is the address and port of the gateway (None: not on this machine), `address` the one
    that Ray knows this node by (empty: Ray was not asked).
    """

    specs: tuple[EngineSpec, ...] = ()
    http: tuple[str, int] | None = None
    address: str = ""

    @property
    def python(self) -> str:
        """The interpreter that runs the engine; empty: this one."""
        return next((spec.engine_python for spec in self.specs if spec.engine_python), "")

    @property
    def folders(self) -> tuple[str, ...]:
        """The models' folders; hub ids are left out."""
        return tuple(
            str(Path(spec.model).expanduser().absolute())
            for spec in self.specs
            if looks_like_folder(spec.model)
        )

    def traits(self, machine: Machine) -> Collection[Trait]:
        """What the layout has that rules on the environment depend on."""
        devices = len(machine.inventory.visible)
        sizes = [spec.tensor_parallel_size for spec in self.specs]
        traits = {Trait.PARALLEL} if any(size > 1 for size in sizes) else set()
        if devices and any(size > devices for size in sizes):
            traits |= {Trait.MULTI_NODE, Trait.RAY}
        return traits

"""DeployConfig: everything a user can say, from `key=value`, a Serve config file, or Python.

One model is said by shorthand (`model=… num_replicas=2`), several under `models:`. Whatever is
wrong is told in one line that names the key, what was given and what is allowed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from cluster.engines import ENGINES, EngineSpec
from cluster.errors import ConfigError, did_you_mean
from cluster.models import looks_like_folder
from serve_apps.limits import GatewayLimits

EngineName = Literal["auto", "vllm", "simulated"]
DTYPES = ("auto", "float32", "float16", "bfloat16")


def _arguments(value: Any) -> Any:
    """A command line may be written as one string, as in a shell, or as a list."""
    return shlex.split(value) if isinstance(value, str) else value


def _json(value: Any) -> Any:
    """`key=value` brings strings: one that stands for a list or an object is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Strict):
    """One model, and how many replicas of it."""

    model: str = Field(
        "", description="A local folder or a hub id. Empty: the default model (see README)."
    )
    served_model_name: str = Field(
        "", description="The name clients ask for. Empty: the folder's name, or the hub id."
    )
    engine: EngineName = Field("auto", description="Which engine serves it.")
    tensor_parallel_size: int = Field(1, ge=1, description="Ranks that share one replica.")
    max_model_len: int | None = Field(None, ge=1, description="Tokens of prompt plus answer.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    num_replicas: int | None = Field(None, ge=1, description="How many replicas Ray Serve keeps.")
    min_replicas: int | None = Field(None, ge=0, description="Autoscaling: at least so many.")
    max_replicas: int | None = Field(None, ge=1, description="Autoscaling: at most so many.")
    target_ongoing_requests: float = Field(
        16, gt=0, description="Autoscaling: requests that one replica should have at once."
    )
    downscale_delay_s: float = Field(
        60, ge=0, description="Autoscaling: how long a replica must be too many before it goes."
    )
    engine_python: str = Field("", description="The interpreter that runs the engine.")
    engine_args: Annotated[tuple[str, ...], BeforeValidator(_arguments)] = Field(
        (), description="Goes to the engine's command line as it is."
    )
    env: Annotated[dict[str, str], BeforeValidator(_json)] = Field(
        default_factory=dict, description="Added to the engine's environment."
    )
    num_cpus: float = Field(1, ge=0, description="CPUs that a replica reserves in Ray.")
    max_ongoing_requests: int = Field(
        256, ge=1, description="Requests at once per replica; more wait in the gateway."
    )
    drain_timeout_s: float = Field(
        600, gt=0, description="How long a replica that goes may finish its requests."
    )
    stall_after_s: float = Field(
        8, gt=0, description="Work but no token for so long: no new requests."
    )
    stall_limit_s: float = Field(
        120, gt=0, description="Work but no token for so long: the replica is replaced."
    )

    @model_validator(mode="after")
    def _replicas_agree(self) -> ModelConfig:
        if self.max_replicas is None:
            if self.min_replicas is not None:
                raise ValueError("min_replicas needs max_replicas beside it")
            return self
        if self.num_replicas is not None:
            raise ValueError("num_replicas and max_replicas exclude each other")
        if self.fewest_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} is more than max_replicas={self.max_replicas}"
            )
        return self

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        if self.served_model_name:
            return self.served_model_name
        return Path(self.model).expanduser().name if looks_like_folder(self.model) else self.model

    @property
    def fewest_replicas(self) -> int:
        """How many replicas there are at least; 0 where they may all go."""
        if self.max_replicas is None:
            return self.most_replicas
        return 1 if self.min_replicas is None else self.min_replicas

    @property
    def most_replicas(self) -> int:
        """How many replicas there can be at once."""
        return self.max_replicas or self.num_replicas or 1

    @property
    def deployment_name(self) -> str:
        """The name in the dashboard: the model's, in the characters that Ray Serve allows."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-") or "model"

    def spec(self) -> EngineSpec:
        """The same wishes in the words of `cluster`."""
        return EngineSpec(
            engine=self.engine,
            model=self.model,
            served_model_name=self.name,
            tensor_parallel_size=self.tensor_parallel_size,
            max_model_len=self.max_model_len,
            dtype=self.dtype,
            engine_python=self.engine_python,
            engine_args=self.engine_args,
            env=self.env,
        )


_SHORTHAND = frozenset(ModelConfig.model_fields)


class DeployConfig(_Strict):
    """What one Ray Serve application of Rayscend serves."""

    models: Annotated[tuple[ModelConfig, ...], BeforeValidator(_json)] = Field(
        (ModelConfig(),), min_length=1
    )
    gateway: Annotated[GatewayLimits, BeforeValidator(_json)] = Field(default_factory=GatewayLimits)
    gateway_replicas: int | None = Field(
        None, ge=1, description="Gateway processes; else one a node of the running cluster."
    )
    http_host: str = Field(
        "127.0.0.1", description="Where `serve run` listens when it starts Ray itself."
    )
    http_port: int = Field(8000, ge=0, le=65535, description="0 takes a free one.")

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> DeployConfig:
        """Read the arguments of `serve run app:deploy k=v …` or `args:` of a Serve config file.

        Raises:
            ConfigError: one line that names every key at fault.
        """
        shorthand = {key: value for key, value in args.items() if key in _SHORTHAND}
        rest = {key: value for key, value in args.items() if key not in _SHORTHAND}
        if shorthand and "models" in rest:
            raise ConfigError(
                f"{', '.join(sorted(shorthand))} and models were both given",
                "the former describe a single model",
                "move them into the entries of models",
            )
        if shorthand:
            rest["models"] = [shorthand]
        try:
            config = cls.model_validate(rest)
        except ValidationError as error:
            raise ConfigError("; ".join(_told(detail) for detail in error.errors())) from None
        config._check_names()
        return config

    def _check_names(self) -> None:
        for field in ("name", "deployment_name"):
            names = [getattr(model, field) for model in self.models]
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(
                        f'models: "{name}" stands twice',
                        "clients could not tell the two apart",
                        "give each its own served_model_name",
                    )


def _told(detail: ErrorDetails) -> str:
    """One pydantic finding in our words: the key as it was written, the value, what is allowed."""
    place = [part for part in detail["loc"] if part != "models" or len(detail["loc"]) == 1]
    key = ".".join(str(part) for part in place if part != 0) or "arguments"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _SHORTHAND | set(DeployConfig.model_fields)
        if "gateway" in place:
            known = frozenset(GatewayLimits.__dataclass_fields__)
        word = str(place[-1])
        return f'unknown key "{key}"{did_you_mean(word, known)}; known: {", ".join(sorted(known))}'
    message = detail["msg"].removeprefix("Value error, ")
    given = json.dumps(detail["input"], default=str)
    return f"{key}={given}: {message[:1].lower()}{message[1:]}"


assert set(get_args(EngineName)) == {"auto", *ENGINES}

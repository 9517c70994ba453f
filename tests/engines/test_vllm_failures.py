"""What real vLLM prints when it cannot start becomes an error with a remedy."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.engines import EngineSpec, engine_named
from cluster.engines.child import LocalChild
from cluster.engines.group import EngineGroup
from cluster.engines.supervisor import processes_of
from cluster.errors import EngineError, PermanentEngineError, TransientEngineError
from cluster.ports import free_port
from tests.sites import one_node

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture
def spec(tiny_model: Path, tmp_path: Path) -> EngineSpec:
    copy = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    return EngineSpec("vllm", str(copy), "tiny", dtype="float32", engine_python=sys.executable)


async def failure(spec: EngineSpec, log: Path, port: int = 0) -> EngineError:
    engine = engine_named("vllm")
    plan = engine.plan(spec, one_node(port or free_port()))
    child = LocalChild(plan.head, log)
    group = EngineGroup(engine, spec, plan, [child], lambda event: None)
    with pytest.raises(EngineError) as caught:
        await group.start()
    assert not processes_of(child.tree_id)
    return caught.value


def change_config(spec: EngineSpec, **changes: object) -> None:
    file = Path(spec.model) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


async def test_a_port_that_somebody_took_is_worth_another_try(
    spec: EngineSpec, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        error = await failure(spec, tmp_path / "log", listener.getsockname()[1])
    assert isinstance(error, TransientEngineError)
    assert "port" in str(error)


async def test_an_unknown_flag_is_named(spec: EngineSpec, tmp_path: Path) -> None:
    error = await failure(replace(spec, engine_args=("--no-such-flag", "1")), tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "--no-such-flag" in str(error)
    assert "engine_args" in error.remedy


async def test_an_architecture_that_vllm_lacks_is_named(spec: EngineSpec, tmp_path: Path) -> None:
    change_config(spec, architectures=["NoSuchForCausalLM"])
    error = await failure(spec, tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "NoSuchForCausalLM" in error.why


async def test_a_model_that_is_nowhere_is_named(spec: EngineSpec, tmp_path: Path) -> None:
    missing = replace(spec, model="no-such/model", env={"HF_HUB_OFFLINE": "1"})
    error = await failure(missing, tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "hub" in error.why


async def test_damaged_weights_are_named(spec: EngineSpec, tmp_path: Path) -> None:
    weights = Path(spec.model) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    error = await failure(spec, tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "damaged" in error.why
    assert error.tail


async def test_a_length_beyond_the_models_is_named(spec: EngineSpec, tmp_path: Path) -> None:
    error = await failure(replace(spec, max_model_len=4096), tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "max_model_len" in str(error)


async def test_a_kv_cache_that_holds_no_whole_request_is_named(
    spec: EngineSpec, tmp_path: Path
) -> None:
    change_config(spec, max_position_embeddings=4_000_000)
    error = await failure(replace(spec, max_model_len=4_000_000), tmp_path / "log")
    assert isinstance(error, PermanentEngineError)
    assert "KV cache" in error.why

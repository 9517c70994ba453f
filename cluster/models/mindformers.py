"""Whether MindFormers serves a model as MCore (from config.json) or as legacy (from a yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.models.profile import ModelProfile

_Version = tuple[int, int]

# architectures[0] -> model_type and the first MindFormers with an MCore class for it. Sources: the
# support list of the MindFormers service deployment page for 1.6, MindFormerRegister for later.
_MCORE: Mapping[str, tuple[str, _Version]] = {
    "Qwen3ForCausalLM": ("qwen3", (1, 6)),
    "Qwen3MoeForCausalLM": ("qwen3_moe", (1, 6)),
    "DeepseekV3ForCausalLM": ("deepseek_v3", (1, 6)),
    "Qwen2ForCausalLM": ("qwen2", (1, 7)),
    "Glm4ForCausalLM": ("glm4", (1, 7)),
    "Glm4MoeForCausalLM": ("glm4_moe", (1, 7)),
    "TeleChat2ForCausalLM": ("telechat", (1, 7)),
    "DeepseekV4ForCausalLM": ("deepseek_v4", (2, 0)),
    "TeleChat3ForCausalLM": ("telechat3", (2, 0)),
    "TeleChat3MoeForCausalLM": ("telechat3_moe", (2, 0)),
}

# From 1.8 on the wheels register no other legacy classes.
_LEGACY = ("LlamaForCausalLM", "ChatGLM2ForConditionalGeneration", "ChatGLM2WithPtuning2")
_LAST_LEGACY_FAMILIES = (1, 7)


@dataclass(frozen=True)
class Support:
    """How MindFormers serves a model, and why so. Legacy models need a predict yaml."""

    kind: Literal["mcore", "legacy"]
    why: str


def mindformers_support(profile: ModelProfile, version: str) -> Support:
    """Tell how MindFormers `version` (such as "1.7.0") serves `profile`.

    MindFormers looks its MCore model up by `architectures[0]` and its configuration by
    `model_type` (`tools/register/register.py`); both must be known.
    """
    release = _release(version)
    architecture = profile.architectures[0]
    model_type, since = _MCORE.get(architecture, ("", None))
    if since is None:
        why = f"MindFormers has no MCore class for {architecture}"
    elif release < since:
        why = f"MindFormers has an MCore class for {architecture} from {_text(since)} on"
    elif profile.model_type != model_type:
        why = f'model_type "{profile.model_type}" is not the "{model_type}" of {architecture}'
    else:
        return Support("mcore", f"MindFormers {version} registers {architecture} as MCore")
    if release > _LAST_LEGACY_FAMILIES and architecture not in _LEGACY:
        known = ", ".join(_LEGACY)
        why += (
            f"; its legacy classes are {known}, so that model.model_config.auto_map of the predict"
            " yaml must name any other"
        )
    return Support("legacy", why)


def _release(version: str) -> _Version:
    major, minor, *_ = [*map(int, re.findall(r"\d+", version)), 0, 0]
    return major, minor


def _text(version: _Version) -> str:
    return ".".join(map(str, version))

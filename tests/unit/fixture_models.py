"""Model folders of the deployment guide's support list: config.json only, and published facts.

`model_facts.json` is computed from the published geometry and agrees with the published totals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.models import ModelProfile, read_model

_FIXTURES = Path(__file__).with_name("fixtures")
FACTS: dict[str, dict[str, Any]] = json.loads((_FIXTURES / "model_facts.json").read_text("utf-8"))


def fixture_model(name: str) -> ModelProfile:
    return read_model(_FIXTURES / "models" / name, weights=False)

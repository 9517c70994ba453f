"""What a rank table must say, as tables of rules: `base.Rule` tells how one is made."""

from __future__ import annotations

from ranktables.rules import devices, limits, servers
from ranktables.rules.base import Chip, Consumer, Rule, Subject

RULES: tuple[Rule, ...] = (*servers.RULES, *devices.RULES, *limits.RULES)

__all__ = ["RULES", "Chip", "Consumer", "Rule", "Subject"]
